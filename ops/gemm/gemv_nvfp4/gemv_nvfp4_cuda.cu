// gemv_nvfp4 on CUDA.
// Words: gemv_nvfp4_slices.cuh.
// _any: a warp a row, a block of 16 a lane, byte by byte: any strides, offsets and K.
// Nibbles  both operands have the same order, on which a sum of products does not depend.
#include <algorithm>

#include "backends/cuda/device/numeric/fp8.cuh"
#include "backends/cuda/device/tensor/any_tensor.cuh"
#include "backends/cuda/host/launch.h"
#include "formats/nvfp4.h"
#include "formats/swizzle.h"
#include "ops/gemm/gemv_nvfp4/gemv_nvfp4_slices.cuh"
#include "ops/gemm/gemv_nvfp4/gemv_nvfp4_spec.h"

namespace pestle::ops::gemv_nvfp4 {
namespace {

constexpr int kA = arg_index(spec, "a");
constexpr int kB = arg_index(spec, "b");
constexpr int kScaleA = arg_index(spec, "scale_a");
constexpr int kScaleB = arg_index(spec, "scale_b");
constexpr int kAlpha = arg_index(spec, "alpha");
constexpr int kOut = arg_index(spec, "out");
constexpr int kScaleLayout = arg_index(spec, "scale_layout");

constexpr int kWarps = 8;  // of a CTA of _any

// Any strides: a block of 16 a lane, each code and scale a byte.
struct FallbackJob {
  cuda::AnyTensor a, b, scale_a, scale_b, out;
  const char* alpha;
  int64_t rows, k, batches;
  bool swizzled;

  __device__ float scale(const cuda::AnyTensor& t, int64_t batch, int64_t row,
                         int64_t block) const {
    int64_t i = row, j = block;
    if (swizzled) {
      const int64_t offset = formats::swizzle_offset(row, block, k / kBlock);
      i = offset / t.shape[2];
      j = offset % t.shape[2];
    }
    const char* at = t.data + batch * t.strides[0] + i * t.strides[1] + j * t.strides[2];
    return cuda::e4m3_value(static_cast<uint8_t>(*at));
  }
};

__global__ void __launch_bounds__(kWarps * 32) gemv_fallback(FallbackJob job) {
  const int64_t warp = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int64_t batch = warp / job.rows, row = warp % job.rows;
  if (batch >= job.batches) return;
  const char* a = job.a.data + batch * job.a.strides[0] + row * job.a.strides[1];
  const char* b = job.b.data + batch * job.b.strides[0];
  float sum = 0;
  for (int64_t block = threadIdx.x % 32; block < job.k / kBlock; block += 32) {
    float products = 0;
    for (int i = 0; i < kBlock / 2; ++i) {
      const int64_t byte = block * (kBlock / 2) + i;
      const auto x = static_cast<uint8_t>(a[byte * job.a.strides[2]]);
      const auto y = static_cast<uint8_t>(b[byte * job.b.strides[2]]);
      products += formats::f32_from_e2m1(x & 15) * formats::f32_from_e2m1(y & 15) +
                  formats::f32_from_e2m1(x >> 4) * formats::f32_from_e2m1(y >> 4);
    }
    sum += products *
           (job.scale(job.scale_a, batch, row, block) * job.scale(job.scale_b, batch, 0, block));
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
  if (threadIdx.x % 32 == 0) store_result(job.out, job.alpha, batch, row, sum);
}

const char* alpha_of(const Call& call) {
  return call.has(kAlpha) ? call.tensor(kAlpha).as<char>() : nullptr;
}

bool apart_by(const TensorView& t, int64_t bytes) {
  for (int d = 0; d + 1 < t.rank; ++d) {
    if (t.shape[d] > 1 && t.strides[d] % bytes != 0) return false;
  }
  return reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(bytes) == 0;
}

std::string refuse_codes(const char* name, const TensorView& t) {
  if (t.strides[2] == 1 && apart_by(t, 16)) return "";
  return std::string(name) +
         " needs dense rows that are 16 bytes apart and begin at a multiple of 16";
}

std::string refuse_scales(const char* name, const TensorView& t, bool swizzled) {
  const bool dense = t.shape[2] <= 1 || t.strides[2] == 1;
  const bool whole = !swizzled || t.shape[1] <= 1 || t.strides[1] == t.shape[2];
  if (dense && whole && apart_by(t, 2)) return "";
  return std::string(name) +
         (swizzled ? " needs the 128 x 4 tiles of a batch as one run of bytes at an even address"
                   : " needs dense rows that begin at even addresses");
}

std::string refuses(const Call& call, const Machine&) {
  if (call.tensor(kA).shape[2] % 16 != 0) return "K must be a multiple of 32";
  // Places are products of 32-bit numbers.
  constexpr int64_t kMost = int64_t{1} << 30;
  if (call.tensor(kA).shape[1] > kMost) return "a needs at most 2^30 rows";
  for (const int index : {kA, kScaleA}) {
    const int64_t row = call.tensor(index).strides[1];
    if (row < 0 || row > kMost) return "rows of a and scale_a must be at most 2^30 bytes apart";
  }
  const bool swizzled = call.integer(kScaleLayout) == 0;
  for (const int index : {kA, kB}) {
    const auto& name = spec.args[static_cast<size_t>(index)].name;
    if (auto why = refuse_codes(name, call.tensor(index)); !why.empty()) return why;
  }
  for (const int index : {kScaleA, kScaleB}) {
    const auto& name = spec.args[static_cast<size_t>(index)].name;
    if (auto why = refuse_scales(name, call.tensor(index), swizzled); !why.empty()) return why;
  }
  return "";
}

Job job_of(const Call& call) {
  const TensorView& a = call.tensor(kA);
  const TensorView& b = call.tensor(kB);
  const TensorView& out = call.tensor(kOut);
  const int64_t k = a.shape[2] * 2;
  const bool swizzled = call.integer(kScaleLayout) == 0;
  return {a.as<char>(),
          a.strides[0],
          a.strides[1],
          b.as<char>(),
          b.strides[0],
          Scales(call.tensor(kScaleA), k / kBlock, swizzled),
          Scales(call.tensor(kScaleB), k / kBlock, swizzled),
          alpha_of(call),
          cuda::AnyTensor(out),
          out.shape[1],
          k};
}

// Quads of a CTA: as many as leave all CTAs at once on the device, where sums have room for them.
int64_t quads_each(int64_t quads, int64_t batches, int warps, int device) {
  const int64_t at_once =
      int64_t{cuda::multiprocessors(device)} * std::min(32, kResidentWarps / warps);
  const int64_t each = std::max<int64_t>(1, cuda::ceil_div(quads * batches, at_once));
  return each <= kMostQuads ? each
                            : cuda::ceil_div(quads, cuda::ceil_div(quads, int64_t{kMostQuads}));
}

Status run(const Call& call) {
  const int64_t batches = call.tensor(kOut).shape[0];
  Job job = job_of(call);
  const int warps = static_cast<int>(
      std::clamp(cuda::ceil_div(job.k, int64_t{kSlice}), int64_t{1}, int64_t{kSliceWarps}));
  const int64_t quads = quads_of(job.rows, job.scale_a.swizzled);
  job.quads = quads_each(quads, batches, warps, cuda::device_index(call));
  job.row_groups = cuda::ceil_div(quads, job.quads);
  const cuda::Grid grid{.blocks = job.row_groups * batches, .threads = 32 * warps};
  const auto kernel = job.scale_a.swizzled ? gemv_slices<true> : gemv_slices<false>;
  return cuda::launch(call, "gemv_nvfp4", grid, kernel, job, quads);
}

Status run_fallback(const Call& call) {
  const TensorView& out = call.tensor(kOut);
  const FallbackJob job{cuda::AnyTensor(call.tensor(kA)),
                        cuda::AnyTensor(call.tensor(kB)),
                        cuda::AnyTensor(call.tensor(kScaleA)),
                        cuda::AnyTensor(call.tensor(kScaleB)),
                        cuda::AnyTensor(out),
                        alpha_of(call),
                        out.shape[1],
                        call.tensor(kA).shape[2] * 2,
                        out.shape[0],
                        call.integer(kScaleLayout) == 0};
  const int64_t warps = out.shape[0] * out.shape[1];
  const cuda::Grid grid{.blocks = cuda::ceil_div(warps, kWarps), .threads = kWarps * 32};
  return cuda::launch(call, "gemv_nvfp4_any", grid, gemv_fallback, job);
}

constexpr Impl kImpls[] = {
    {.id = "cuda/gemv_nvfp4",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run},
    {.id = "cuda/gemv_nvfp4_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_fallback},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::gemv_nvfp4
