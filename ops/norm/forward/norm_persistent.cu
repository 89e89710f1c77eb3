// Norms without a sum before them by a persistent, register-resident kernel: many rows, one set of
// parameters or few. Numbers or quantised output.
// Map      One CTA an SM, or a cluster that shares a row. Its subgroups of 1 to 12
//          warps take rows in turns. A subgroup's row lies packed in its registers, up to 80
//          elements a thread at places that constants tell from one another, and its next row is on
//          its way to shared memory meanwhile. Parameters lie there, too, as f32: made once a block
//          and group of rows, so neither conversion nor L1 traffic is left a row.
// Traffic  x once, out or codes once; parameters once a block.
// Numerics norm_rows.h; 16-bit sums and sums of squares by the tensor cores in one pass (exact
//          products, f32 sums); where less than a thirty-second of the squares' sum is left about
//          the mean, squared differences in a second one. f32: always two. Codes:
//          quantize_by_reciprocal.cuh.
// Measured H200, share of the copy, 20480 x 5120 to codes: fp8 87 to 88 %, int8 87, mxfp8 80, int8
//          rotated by 256 44; f32 parameters: layer_norm 1024 x 65536 80, rms_norm 85, 256 x 262144
//          82. norm_rows.md
#include "backends/cuda/host/launch.h"
#include "backends/cuda/host/shared_memory.h"
#include "core/machine.h"
#include "ops/norm/forward/norm_persistent.h"
#include "ops/norm/forward/norm_persistent_quantized.cuh"
#include "ops/norm/forward/norm_persistent_rotated.cuh"

namespace pestle::ops {
namespace norm_device {
namespace {

template <class T, class Kind>
__global__ void __launch_bounds__(PersistentMap<T, Kind>::kWarps * 32, 1)
    persistent_kernel(const __grid_constant__ PersistentNorm p) {
  using Map = PersistentMap<T, Kind>;
  extern __shared__ __align__(128) char shared[];
  __shared__ PersistentReductions joins;
  PersistentSubgroup subgroup(p, joins);
  const uint32_t memory = shared_place(shared);
  const uint32_t behind = p.subgroups * p.warps * p.steps * Map::kStepBytes;
  const PersistentPlace<T, Kind> place(p, subgroup, memory);
  const PersistentParameters<T, Kind> given(p, subgroup, memory + behind);
  place.clear();
  const int number = p.cluster == 1 ? blockIdx.x : blockIdx.x / p.cluster;
  const int groups_at_once =
      (p.cluster == 1 ? gridDim.x : gridDim.x / p.cluster) / p.clusters_of_group;
  const int step = p.clusters_of_group * p.subgroups;
  char* exchange = shared + behind +
                   p.warps * p.steps * Map::kStepQuads * 16 * (p.addend.data == nullptr ? 1 : 2) +
                   threadIdx.x / 32 * Map::kExchangeBytes;
  Nvfp4Scale global{};
  if constexpr (std::is_same_v<Kind, Nvfp4Output>)
    global = Nvfp4Scale::from<T>(p.codes.global_scale);
  const TensorUnpack unpack;
  __shared__ ByteRule of_all;  // where all rows have one scale that is given
  if constexpr (Kind::kBytes) {
    if (threadIdx.x < 32 && p.codes.given != nullptr && p.codes.one_scale) {
      const ByteRule rule = given_rule<T, typename Kind::Code>(__ldg(p.codes.given));
      if (threadIdx.x == 0) of_all = rule;
    }
  }
  for (int group = number / p.clusters_of_group; group < p.groups; group += groups_at_once) {
    int r = number % p.clusters_of_group + subgroup.index * p.clusters_of_group;
    const char* x = p.x + static_cast<int64_t>(group) * p.rows_of_group * p.x_row_bytes;
    PersistentParameters<T, Kind>::announce(p, subgroup.rank, group);
    if (r < p.rows_of_group) place.fetch(row_at(x, p.x_row_bytes, r));
    __syncthreads();  // the last group's parameters have been read
    const bool own_plain = PersistentParameters<T, Kind>::fill(
        p, subgroup.rank, group, reinterpret_cast<float4*>(shared + behind));
    const bool plain = __syncthreads_and(own_plain) != 0;
    for (; r < p.rows_of_group; r += step) {
      const int row_index = group * p.rows_of_group + r;
      wait_for_copies<0>();
      __syncwarp();
      PersistentRow<T, Kind> row(place);
      float own;
      if constexpr (T::kBytes == 2) {
        own = row.load_16();
      } else {
        row.each([&](int s) { row.x[s][0] = place.load(s, 0); });
        own = p.subtract_mean ? row.sum_over([](float v, float sum) { return sum + v; }) : 0.0f;
      }
      __syncwarp();
      const char* next = r + step < p.rows_of_group ? row_at(x, p.x_row_bytes, r + step) : nullptr;
      if (!Map::kStays && next != nullptr) place.fetch(next);
      const RowStatistics s = row.statistics(p, subgroup, joins, own);
      char* out = p.out == nullptr ? nullptr : row_at(p.out, p.out_row_bytes, row_index);
      const PersistentValues<T, Kind> values(p, row, given, s, plain);
      if constexpr (!Kind::kQuantizes) {
        put_numbers<T>(values, out);
      } else if constexpr (Kind::kBytes) {
        put_bytes_of<T, typename Kind::Code>(p, subgroup, joins, values, out, row_index, of_all);
      } else if constexpr (Map::kRotates) {
        put_rotated_of<T>(p, subgroup, joins, values, out, row_index,
                          reinterpret_cast<float4*>(exchange));
      } else if constexpr (Map::kRuns) {
        put_rotated_runs_of<T>(p, subgroup, joins, values, out, row_index, unpack,
                               shared_place(exchange));
      } else if constexpr (std::is_same_v<Kind, Nvfp4Output>) {
        put_nvfp4_of<T>(p, subgroup, values, out, next, row_index, p.groups * p.rows_of_group,
                        global, unpack);
      } else {
        put_blocks_of<T>(p, subgroup, values, out, row_index, p.groups * p.rows_of_group);
      }
      subgroup.turn ^= 1;
    }
  }
}

// ---- host ----

// Clusters that run at once, on GPUs whose multiprocessors come in groups of 16 to 18.
int clusters_at_once(const Call& call, int cluster) {
  const int all = multiprocessors(device_index(call));
  return cluster <= 2 ? all / cluster : all * 10 / 11 / cluster;
}

// The smallest cluster whose blocks have room for two subgroups' rows; false: none has.
template <class T, class Kind>
bool fit(PersistentNorm& job, int most_blocks, int most_bytes) {
  using Map = PersistentMap<T, Kind>;
  const int warp_steps = static_cast<int>(ceil_div(job.granules, 32));
  for (job.cluster = 1; job.cluster <= most_blocks; job.cluster *= 2) {
    const auto of_block = static_cast<int>(ceil_div(warp_steps, job.cluster));
    job.warps = static_cast<int>(ceil_div(of_block, Map::kSteps));
    if (job.warps > kWarpsOfSubgroup) continue;
    job.steps = static_cast<int>(ceil_div(of_block, job.warps));
    const int kept = job.warps * job.steps * Map::kStepQuads * 16 * (job.addend.data ? 2 : 1);
    const int row = job.warps * (job.steps * Map::kStepBytes + Map::kExchangeBytes);
    const int room = (most_bytes - kept) / row;
    job.subgroups = std::min(Map::kWarps / job.warps, room);
    if (job.cluster > 1) job.subgroups = std::min(job.subgroups, kSubgroupsOfCluster);
    if (job.warps > 1) job.subgroups = std::min(job.subgroups, 15);  // barriers of a block
    if (job.subgroups >= 2) return true;
  }
  return false;
}

template <class T, class Kind>
bool plan(const Call& call, const NormRows& n, PersistentNorm& job) {
  using Map = PersistentMap<T, Kind>;
  const int device = device_index(call);
  const Machine machine = machine_for({DeviceType::kCuda, device});
  if (n.columns() % Map::kN != 0) return false;
  job.granules = static_cast<int>(n.columns() / Map::kN);
  const int most = most_shared_bytes(device) - (8 << 10);
  if (!fit<T, Kind>(job, largest_cluster(machine.compute_capability), most)) return false;
  // Rows enough for each block to be worth its parameters.
  const int at_once = clusters_at_once(call, job.cluster);
  if (n.rows() < int64_t{4} * at_once * job.subgroups || n.rows() > 1 << 30) return false;
  if (job.groups > 1 && job.rows_of_group < 8 * job.subgroups) return false;
  job.clusters_of_group = std::max(at_once / job.groups, 1);
  return job.groups == 1 || job.groups >= 8 * at_once || at_once % job.groups <= at_once / 16;
}

template <class T, class Kind>
Status start(const Call& call, const char* name, const NormRows& n, PersistentNorm& job,
             bool& taken) {
  using Map = PersistentMap<T, Kind>;
  taken = plan<T, Kind>(call, n, job);
  if (!taken) return {};
  const int at_once = clusters_at_once(call, job.cluster);
  const int clusters = job.groups >= at_once ? at_once : job.clusters_of_group * job.groups;
  const int elements = job.warps * job.steps * 32;
  const int bytes = job.subgroups * elements * Map::kPieces * kPieceBytes +
                    elements * Map::kQuads * 16 * (job.addend.data ? 2 : 1) +
                    job.subgroups * job.warps * Map::kExchangeBytes;
  const auto kernel = persistent_kernel<T, Kind>;
  PESTLE_TRY(allow_shared(call, kernel, std::max(bytes, 49 << 10)));
  return launch(call, name,
                {int64_t{clusters} * job.cluster, job.subgroups * job.warps * 32,
                 static_cast<size_t>(bytes), job.cluster},
                kernel, job);
}

template <class T>
Status start_kind(const Call& call, const char* name, const NormRows& n, PersistentNorm& job,
                  bool& taken) {
  switch (n.quant.format) {
    case OutFormat::kNone: return start<T, PlainOutput>(call, name, n, job, taken);
    case OutFormat::kInt8Row:
      if (n.quant.hadamard > kLongestGroup) return {};
      if (n.quant.hadamard == 256 && n.columns() % 256 == 0) {
        return start<T, RotatedRuns>(call, name, n, job, taken);
      }
      if (n.quant.hadamard > 0) return start<T, RotatedOutput>(call, name, n, job, taken);
      return start<T, ByteOutput<Int8Code>>(call, name, n, job, taken);
    case OutFormat::kNvfp4:
      if constexpr (std::is_same_v<T, Bf16>)
        return start<T, Nvfp4Output>(call, name, n, job, taken);
      return {};  // rows in shared memory
    case OutFormat::kMxfp8: return start<T, Mxfp8Output>(call, name, n, job, taken);
    default: return start<T, ByteOutput<Fp8Code<formats::E4m3>>>(call, name, n, job, taken);
  }
}

}  // namespace

bool is_simple(const NormRows& n) {
  const bool weighs = n.weight.data != nullptr || n.bias.data != nullptr;
  const bool modulates = n.scale.data != nullptr || n.shift.data != nullptr;
  return !(weighs && modulates) && n.residual.data == nullptr && n.gate.data == nullptr;
}

Status start_persistent_norm(const Call& call, const char* name, const NormRows& n, bool& taken) {
  taken = false;
  if (!is_simple(n) || (n.x.dtype == DType::kF32 && n.quant.format != OutFormat::kNone)) return {};
  const bool modulates = n.scale.data != nullptr || n.shift.data != nullptr;
  PersistentNorm job;
  job.x = n.x.as<const char>();
  job.x_row_bytes = row_distance(n.x);
  job.out = n.out.as<char>();
  job.out_row_bytes = n.out.data ? row_distance(n.out) : 0;
  job.factor = Operand(modulates ? n.scale : n.weight);
  job.addend = Operand(modulates ? n.shift : n.bias);
  job.one = modulates ? 1.0f : 0.0f;
  const TensorView& of_groups = n.scale.data ? n.scale : n.shift;
  job.groups = modulates ? static_cast<int>(row_count(of_groups)) : 1;
  job.rows_of_group = static_cast<int>(n.rows() / job.groups);
  job.eps = n.eps;
  job.share = 1.0f / static_cast<float>(n.columns());
  job.subtract_mean = n.subtract_mean;
  job.codes = RowQuantizer(n.quant);
  switch (n.x.dtype) {
    case DType::kBF16: return start_kind<Bf16>(call, name, n, job, taken);
    case DType::kF16: return start_kind<F16>(call, name, n, job, taken);
    default: return start<F32, PlainOutput>(call, name, n, job, taken);
  }
}

}  // namespace norm_device
}  // namespace pestle::ops
