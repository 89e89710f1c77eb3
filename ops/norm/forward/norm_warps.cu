// nvfp4 codes of norms of bf16 rows: no sum before the norm, many rows, one set of parameters or
// few.
// Map      One block a multiprocessor that stays; each of its warps takes rows in turns, by itself.
//          A warp's row lies in shared memory; as soon as 1024 elements of it have been read for
//          the last time, the copy engine brings the next row's in their place. Parameters lie
//          there, too, as f32, made once a block and group of rows.
// Traffic  x once, codes and scales once; parameters once a block.
// Numerics norm_rows.h; sums and the factor, as two bf16, by the tensor cores (norm_persistent.cu).
//          Codes: quick_nvfp4.cuh.
// Measured H200, share of the copy, 20480 x 5120: rms_norm 79 %, adaln 72 (by blocks that stay,
//          norm_persistent.cu: 62 and 60); against the ways that take other calls, 4096 x 5120
//          1.20 times as fast, 32768 x 9216 1.16, adaln 4608 x 3072 1.11. norm_rows.md
#include "backends/cuda/host/launch.h"
#include "backends/cuda/host/shared_memory.h"
#include "core/machine.h"
#include "ops/norm/forward/norm_persistent.h"
#include "ops/norm/forward/norm_warps.h"
#include "ops/norm/forward/norm_warps_quantized.cuh"

namespace pestle::ops {
namespace norm_device {
namespace {

constexpr int kMostWarps = 20, kLeastWarps = 8;

template <bool kMean, bool kAdds>
__global__ void __launch_bounds__(kMostWarps * 32, 1)
    warps_kernel(const __grid_constant__ WarpRows p) {
  extern __shared__ __align__(128) char shared[];
  __shared__ uint64_t arrived[kMostWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row_bytes = p.units * kPieceBytes;
  char* parameters = shared + p.warps * p.steps * kStepBytes;
  const uint32_t memory = shared_place(shared);
  RowPlace at;
  at.row = memory + warp * p.steps * kStepBytes;
  at.x = at.row + (lane * 2 + (lane >> 2 & 1)) * kPieceBytes;
  at.factor = memory + p.warps * p.steps * kStepBytes + lane * kPieceBytes;
  at.addend = at.factor + p.steps * kParameterBytes;
  at.barrier = shared_place(arrived + warp);
  asm volatile("" : "+r"(at.x));
  asm volatile("" : "+r"(at.factor));
  asm volatile("" : "+r"(at.addend));
  // What lies past the row's end is zeros for good, or values that nobody asks for.
  for (int i = lane; i < p.steps * (kStepBytes / kPieceBytes); i += 32) {
    store_shared(at.row + i * kPieceBytes, make_uint4(0, 0, 0, 0));
  }
#if __CUDA_ARCH__ >= 900
  if (lane == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at.barrier) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
  __syncwarp();
  const float g = __uint_as_float(AnyTensor::bits(p.codes.global_scale, 4));
  const QuickNvfp4 global(g);
  uint32_t phase = 0;
  const int number = blockIdx.x, blocks = p.blocks_of_group, step = blocks * p.warps;
  for (int group = number / blocks; group < p.groups; group += gridDim.x / blocks) {
    int r = number % blocks + warp * blocks;
    const char* x = p.x + static_cast<int64_t>(group) * p.rows_of_group * p.x_row_bytes;
    if (lane == 0 && r < p.rows_of_group) {
      expect(at.barrier, row_bytes);
      bring(at.row, row_at(x, p.x_row_bytes, r), row_bytes, at.barrier);
    }
    __syncthreads();  // the last group's parameters have been read
    bool plain = fill(p, p.factor, 1.0f, p.one, group, reinterpret_cast<float4*>(parameters));
    if (kAdds) {
      plain = fill(p, p.addend, 0.0f, 0.0f, group,
                   reinterpret_cast<float4*>(parameters + p.steps * kParameterBytes)) &&
              plain;
    }
    plain = __syncthreads_and(plain) != 0;
    for (; r < p.rows_of_group; r += step) {
      const int index = group * p.rows_of_group + r;
      await(at.barrier, phase);
      phase ^= 1;
      const RowValues<kMean, kAdds> row(p, at, plain);
      const char* coming =
          r + step < p.rows_of_group ? row_at(x, p.x_row_bytes, r + step) : nullptr;
      NextRow next(coming, at.row, at.barrier, row_bytes);
      put_nvfp4(p, row, next, index, global, g);
    }
  }
}

// ---- host ----

// As many warps as shared memory has room for, and blocks for all groups alike.
bool plan(const Call& call, const NormRows& n, WarpRows& job) {
  const int device = device_index(call);
  const Machine machine = machine_for({DeviceType::kCuda, device});
  if (machine.compute_capability < 90 || n.rows() > 1 << 30) return false;
  const int64_t row_steps = ceil_div(n.columns(), kStepRuns * kRun);
  job.steps = static_cast<int>(ceil_div(row_steps, kTurnSteps) * kTurnSteps);
  const int kept = job.steps * kParameterBytes * (job.addend.data != nullptr ? 2 : 1);
  job.warps = std::min(kMostWarps,
                       (most_shared_bytes(device) - (1 << 10) - kept) / (job.steps * kStepBytes));
  if (job.warps < kLeastWarps) return false;
  const int at_once = multiprocessors(device);
  // Rows of a multiprocessor, shared out evenly.
  const auto rows = static_cast<int>(std::min<int64_t>(ceil_div(n.rows(), at_once), 1 << 20));
  const int turns = static_cast<int>(ceil_div(rows, job.warps));
  job.warps = static_cast<int>(ceil_div(rows, turns));
  if (job.warps < kLeastWarps) return false;
  if (job.groups > at_once) return false;
  job.blocks_of_group = at_once / job.groups;
  return job.groups == 1 || at_once % job.groups <= at_once / 16;
}

Status start(const Call& call, const char* name, const WarpRows& job, bool mean) {
  const bool adds = job.addend.data != nullptr;
  const int bytes = job.steps * (job.warps * kStepBytes + kParameterBytes * (adds ? 2 : 1));
  const auto start = [&](auto kernel) -> Status {
    PESTLE_TRY(allow_shared(call, kernel, std::max(bytes, 49 << 10)));
    return launch(
        call, name,
        {int64_t{job.blocks_of_group} * job.groups, job.warps * 32, static_cast<size_t>(bytes)},
        kernel, job);
  };
  if (mean) {
    return adds ? start(warps_kernel<true, true>) : start(warps_kernel<true, false>);
  }
  return adds ? start(warps_kernel<false, true>) : start(warps_kernel<false, false>);
}
bool suits_warps(const NormRows& n) {
  return n.quant.format == OutFormat::kNvfp4 && n.quant.high_first && n.x.dtype == DType::kBF16 &&
         n.columns() % kRun == 0 && is_simple(n);
}

}  // namespace

Status start_warps_norm(const Call& call, const char* name, const NormRows& n, bool& taken) {
  taken = false;
  if (!suits_warps(n)) return {};
  const bool modulates = n.scale.data != nullptr || n.shift.data != nullptr;
  WarpRows job;
  job.x = n.x.as<const char>();
  job.x_row_bytes = row_distance(n.x);
  job.out = n.out.as<char>();
  job.out_row_bytes = n.out.data ? row_distance(n.out) : 0;
  job.factor = Operand(modulates ? n.scale : n.weight);
  job.addend = Operand(modulates ? n.shift : n.bias);
  job.one = modulates ? 1.0f : 0.0f;
  job.units = static_cast<int>(n.columns() / kUnit);
  job.groups = modulates ? static_cast<int>(row_count(n.scale.data ? n.scale : n.shift)) : 1;
  job.rows_of_group = static_cast<int>(n.rows() / job.groups);
  job.eps = n.eps;
  job.share = 1.0f / static_cast<float>(n.columns());
  job.codes = RowQuantizer(n.quant);
  taken = plan(call, n, job);
  return taken ? start(call, name, job, n.subtract_mean) : Status{};
}

}  // namespace norm_device
}  // namespace pestle::ops
