// The norms' rows without a sum before the norm, by blocks that stay: many rows, one set of
// parameters or few.
// Map      One block a multiprocessor, or a cluster that shares a row. Its teams of 1 to 12 warps
//          take rows in turns. A team's row lies packed in its registers, up to 80 elements a
//          thread at places that constants tell from one another, and its next row is on its way to
//          shared memory meanwhile. Parameters lie there, too, as f32: made once a block and group
//          of rows, so neither conversion nor L1 traffic is left a row.
// Traffic  x once, out or codes once; parameters once a block.
// Numerics norm_rows.h; 16-bit sums and sums of squares by the tensor cores in one pass (exact
//          products, f32 sums); where less than a thirty-second of the squares' sum is left about
//          the mean, squared differences in a second one. f32: always two. Codes:
//          product_codes.cuh.
// Measured H200, share of the copy, 20480 x 5120 to codes: fp8 87 to 88 %, int8 87, mxfp8 80, int8
//          rotated by 256 44; f32 parameters: layer_norm 1024 x 65536 80, rms_norm 85, 256 x 262144
//          82. norm_rows.md
#include "backends/cuda/host/launch.h"
#include "backends/cuda/host/shared_memory.h"
#include "core/machine.h"
#include "ops/norm/forward/norm_resident.h"
#include "ops/norm/forward/norm_resident_codes.cuh"
#include "ops/norm/forward/norm_resident_rotated.cuh"

namespace pestle::ops {
namespace norm_device {
namespace {

template <class T, class Kind>
__global__ void __launch_bounds__(ResidentMap<T, Kind>::kWarps * 32, 1)
    resident_kernel(const __grid_constant__ ResidentNorm p) {
  using Map = ResidentMap<T, Kind>;
  extern __shared__ __align__(128) char shared[];
  __shared__ ResidentJoins joins;
  ResidentTeam team(p, joins);
  const uint32_t memory = shared_place(shared);
  const uint32_t behind = p.teams * p.warps * p.steps * Map::kStepBytes;
  const ResidentPlace<T, Kind> place(p, team, memory);
  const ResidentParameters<T, Kind> given(p, team, memory + behind);
  place.clear();
  const int number = p.cluster == 1 ? blockIdx.x : blockIdx.x / p.cluster;
  const int groups_at_once =
      (p.cluster == 1 ? gridDim.x : gridDim.x / p.cluster) / p.clusters_of_group;
  const int step = p.clusters_of_group * p.teams;
  char* exchange = shared + behind +
                   p.warps * p.steps * Map::kStepQuads * 16 * (p.addend.data == nullptr ? 1 : 2) +
                   threadIdx.x / 32 * Map::kExchangeBytes;
  Nvfp4Scale global{};
  if constexpr (std::is_same_v<Kind, Nvfp4Codes>)
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
    int r = number % p.clusters_of_group + team.index * p.clusters_of_group;
    const char* x = p.x + static_cast<int64_t>(group) * p.rows_of_group * p.x_row_bytes;
    ResidentParameters<T, Kind>::announce(p, team.rank, group);
    if (r < p.rows_of_group) place.fetch(row_at(x, p.x_row_bytes, r));
    __syncthreads();  // the last group's parameters have been read
    const bool own_plain = ResidentParameters<T, Kind>::fill(
        p, team.rank, group, reinterpret_cast<float4*>(shared + behind));
    const bool plain = __syncthreads_and(own_plain) != 0;
    for (; r < p.rows_of_group; r += step) {
      const int row_index = group * p.rows_of_group + r;
      wait_for_copies<0>();
      __syncwarp();
      ResidentRow<T, Kind> row(place);
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
      const RowStatistics s = row.statistics(p, team, joins, own);
      char* out = p.out == nullptr ? nullptr : row_at(p.out, p.out_row_bytes, row_index);
      const ResidentValues<T, Kind> values(p, row, given, s, plain);
      if constexpr (!Kind::kCodes) {
        put_numbers<T>(values, out);
      } else if constexpr (Kind::kBytes) {
        put_bytes_of<T, typename Kind::Code>(p, team, joins, values, out, row_index, of_all);
      } else if constexpr (Map::kRotates) {
        put_rotated_of<T>(p, team, joins, values, out, row_index,
                          reinterpret_cast<float4*>(exchange));
      } else if constexpr (Map::kRuns) {
        put_rotated_runs_of<T>(p, team, joins, values, out, row_index, unpack,
                               shared_place(exchange));
      } else if constexpr (std::is_same_v<Kind, Nvfp4Codes>) {
        put_nvfp4_of<T>(p, team, values, out, next, row_index, p.groups * p.rows_of_group, global,
                        unpack);
      } else {
        put_blocks_of<T>(p, team, values, out, row_index, p.groups * p.rows_of_group);
      }
      team.turn ^= 1;
    }
  }
}

// ---- host ----

// Clusters that run at once, on GPUs whose multiprocessors come in groups of 16 to 18.
int clusters_at_once(const Call& call, int cluster) {
  const int all = multiprocessors(device_index(call));
  return cluster <= 2 ? all / cluster : all * 10 / 11 / cluster;
}

// The smallest cluster whose blocks have room for two teams' rows; false: none has.
template <class T, class Kind>
bool fit(ResidentNorm& job, int most_blocks, int most_bytes) {
  using Map = ResidentMap<T, Kind>;
  const int warp_steps = static_cast<int>(ceil_div(job.granules, 32));
  for (job.cluster = 1; job.cluster <= most_blocks; job.cluster *= 2) {
    const auto of_block = static_cast<int>(ceil_div(warp_steps, job.cluster));
    job.warps = static_cast<int>(ceil_div(of_block, Map::kSteps));
    if (job.warps > kWarpsOfTeam) continue;
    job.steps = static_cast<int>(ceil_div(of_block, job.warps));
    const int kept = job.warps * job.steps * Map::kStepQuads * 16 * (job.addend.data ? 2 : 1);
    const int row = job.warps * (job.steps * Map::kStepBytes + Map::kExchangeBytes);
    const int room = (most_bytes - kept) / row;
    job.teams = std::min(Map::kWarps / job.warps, room);
    if (job.cluster > 1) job.teams = std::min(job.teams, kTeamsOfCluster);
    if (job.warps > 1) job.teams = std::min(job.teams, 15);  // barriers of a block
    if (job.teams >= 2) return true;
  }
  return false;
}

template <class T, class Kind>
bool plan(const Call& call, const NormRows& n, ResidentNorm& job) {
  using Map = ResidentMap<T, Kind>;
  const int device = device_index(call);
  const Machine machine = machine_for({DeviceType::kCuda, device});
  if (n.columns() % Map::kN != 0) return false;
  job.granules = static_cast<int>(n.columns() / Map::kN);
  const int most = most_shared_bytes(device) - (8 << 10);
  if (!fit<T, Kind>(job, largest_cluster(machine.compute_capability), most)) return false;
  // Rows enough for each block to be worth its parameters.
  const int at_once = clusters_at_once(call, job.cluster);
  if (n.rows() < int64_t{4} * at_once * job.teams || n.rows() > 1 << 30) return false;
  if (job.groups > 1 && job.rows_of_group < 8 * job.teams) return false;
  job.clusters_of_group = std::max(at_once / job.groups, 1);
  return job.groups == 1 || job.groups >= 8 * at_once || at_once % job.groups <= at_once / 16;
}

template <class T, class Kind>
Status start(const Call& call, const char* name, const NormRows& n, ResidentNorm& job,
             bool& taken) {
  using Map = ResidentMap<T, Kind>;
  taken = plan<T, Kind>(call, n, job);
  if (!taken) return {};
  const int at_once = clusters_at_once(call, job.cluster);
  const int clusters = job.groups >= at_once ? at_once : job.clusters_of_group * job.groups;
  const int elements = job.warps * job.steps * 32;
  const int bytes = job.teams * elements * Map::kPieces * kPieceBytes +
                    elements * Map::kQuads * 16 * (job.addend.data ? 2 : 1) +
                    job.teams * job.warps * Map::kExchangeBytes;
  const auto kernel = resident_kernel<T, Kind>;
  PESTLE_TRY(allow_shared(call, kernel, std::max(bytes, 49 << 10)));
  return launch(call, name,
                {int64_t{clusters} * job.cluster, job.teams * job.warps * 32,
                 static_cast<size_t>(bytes), job.cluster},
                kernel, job);
}

template <class T>
Status start_kind(const Call& call, const char* name, const NormRows& n, ResidentNorm& job,
                  bool& taken) {
  switch (n.quant.format) {
    case OutFormat::kNone: return start<T, NoCodes>(call, name, n, job, taken);
    case OutFormat::kInt8Row:
      if (n.quant.hadamard > kLongestGroup) return {};
      if (n.quant.hadamard == 256 && n.columns() % 256 == 0) {
        return start<T, RotatedRuns>(call, name, n, job, taken);
      }
      if (n.quant.hadamard > 0) return start<T, RotatedCodes>(call, name, n, job, taken);
      return start<T, ByteCodes<Int8Code>>(call, name, n, job, taken);
    case OutFormat::kNvfp4:
      if constexpr (std::is_same_v<T, Bf16>) return start<T, Nvfp4Codes>(call, name, n, job, taken);
      return {};  // rows in shared memory
    case OutFormat::kMxfp8: return start<T, Mxfp8Codes>(call, name, n, job, taken);
    default: return start<T, ByteCodes<Fp8Code<formats::E4m3>>>(call, name, n, job, taken);
  }
}

}  // namespace

bool is_simple(const NormRows& n) {
  const bool weighs = n.weight.data != nullptr || n.bias.data != nullptr;
  const bool modulates = n.scale.data != nullptr || n.shift.data != nullptr;
  return !(weighs && modulates) && n.residual.data == nullptr && n.gate.data == nullptr;
}

Status start_resident_norm(const Call& call, const char* name, const NormRows& n, bool& taken) {
  taken = false;
  if (!is_simple(n) || (n.x.dtype == DType::kF32 && n.quant.format != OutFormat::kNone)) return {};
  const bool modulates = n.scale.data != nullptr || n.shift.data != nullptr;
  ResidentNorm job;
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
    default: return start<F32, NoCodes>(call, name, n, job, taken);
  }
}

}  // namespace norm_device
}  // namespace pestle::ops
