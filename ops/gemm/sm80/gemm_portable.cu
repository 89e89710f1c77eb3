#include "ops/gemm/sm80/gemm_portable.cuh"

#include "ops/gemm/sm80/gemm_portable.h"

namespace pestle::ops {
namespace {

namespace portable = cuda::portable_gemm;
using cuda::warp::Kind;
using portable::Job;
using portable::Side;

template <class C>
__global__ void __launch_bounds__(portable::kThreads, C::kTileN == 128 ? 2 : 1)
    portable_kernel(const __grid_constant__ Job job) {
  portable::WgmmaType<C>::run(job);
}

// Shared memory beyond 48 KB must be asked for, once a kernel and device.
template <class C>
Status allow_portable(int device) {
  static std::atomic<uint64_t> done{0};
  const uint64_t bit = uint64_t{1} << (device & 63);
  if (done.load(std::memory_order_relaxed) & bit) return {};
  PESTLE_ON_DEVICE(device);
  PESTLE_CUDA_TRY(cudaFuncSetAttribute(
      portable_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kSharedBytes));
  done.fetch_or(bit, std::memory_order_relaxed);
  return {};
}

template <class C>
Status start(const Call& call, const char* name, const Operands& o, Job job) {
  job.m_tiles = static_cast<int>(cuda::ceil_div(o.out.rows, portable::kTileM));
  job.n_tiles = static_cast<int>(cuda::ceil_div(o.out.columns, C::kTileN));
  if (int64_t{job.m_tiles} * job.n_tiles > INT_MAX / portable::kGroup)
    return unsupported(std::string(name) + ": more than 2^27 tiles of a matrix");
  PESTLE_TRY(allow_portable<C>(cuda::device_index(call)));
  const int64_t blocks = o.out.batches * job.m_tiles * job.n_tiles;
  return cuda::launch(call, name, {blocks, portable::kThreads, C::kSharedBytes}, portable_kernel<C>,
                      job);
}

// 144 KiB of shared memory where a CTA may have it (sm_80, 87, 90, 100), else 96.
template <Kind kKind, bool kA, bool kB>
Status start_copied(const Call& call, const char* name, const Operands& o, const Job& job) {
  using Large = portable::Config<kKind, kA, kB, false, 256, 128, 3>;
  using Small = portable::Config<kKind, kA, kB, false, 256, 64, 4>;
  const int most = cuda::most_shared_bytes(cuda::device_index(call));
  if (most >= Large::kSharedBytes) return start<Large>(call, name, o, job);
  return start<Small>(call, name, o, job);
}
template <Kind kKind>
Status start_16_bit(const Call& call, const char* name, const Operands& o, const Job& job) {
  if (o.a_along_k && o.b_along_k) return start_copied<kKind, true, true>(call, name, o, job);
  if (o.a_along_k) return start_copied<kKind, true, false>(call, name, o, job);
  if (o.b_along_k) return start_copied<kKind, false, true>(call, name, o, job);
  return start_copied<kKind, false, false>(call, name, o, job);
}
template <Kind kKind>
Status start_guarded(const Call& call, const char* name, const Operands& o, const Job& job) {
  return start<portable::Config<kKind, true, true, true, 128, 64, 2>>(call, name, o, job);
}

bool is_fp8(DType t) { return t == DType::kE4M3 || t == DType::kE5M2; }

Side side_of(const Stack& s, bool k_is_columns, bool along_k) {
  const int bytes = dtype_bytes(s.dtype);
  Side t;
  t.data = static_cast<const char*>(s.data);
  t.row_stride = (k_is_columns ? s.row_stride : s.column_stride) * bytes;
  t.k_stride = (k_is_columns ? s.column_stride : s.row_stride) * bytes;
  t.batch_stride = s.batch_stride * bytes;
  t.rows = static_cast<int>(k_is_columns ? s.rows : s.columns);
  t.e5m2 = s.dtype == DType::kE5M2;
  t.widened = is_fp8(s.dtype);
  t.along_k = along_k;
  return t;
}

// Can cp.async take it, 16 bytes at a time?
bool is_copied(const Side& t, DType dtype, bool along_k) {
  const int bytes = dtype_bytes(dtype);
  const auto aligned = [](int64_t stride) { return stride % 16 == 0; };
  if (reinterpret_cast<uintptr_t>(t.data) % 16 != 0 || !aligned(t.batch_stride)) return false;
  if (along_k) return aligned(t.row_stride) && t.k_stride == bytes;
  return bytes == 2 && aligned(t.k_stride) && t.row_stride == bytes;
}

// Within a tile of one stage, offsets are 32 bits.
bool is_near(const Side& t) {
  constexpr int64_t kFar = INT_MAX / 512;
  return std::abs(t.row_stride) < kFar && std::abs(t.k_stride) < kFar;
}

}  // namespace

std::string refuse_portable(const Operands& o) {
  const DType a = o.a.dtype, b = o.b.dtype;
  const bool same = a == b && (a == DType::kBF16 || a == DType::kF16 || a == DType::kI8);
  if (!same && !(is_fp8(a) && is_fp8(b)))
    return "a and b must both be bf16, both f16, both i8 or both 8-bit floats";
  if (o.a.columns == 0 || o.out.rows == 0 || o.out.columns == 0 || o.out.batches == 0)
    return "is for products that are not empty";
  if (o.a.rows > INT_MAX / 2 || o.out.columns > INT_MAX / 2 || o.a.columns > INT_MAX / 4)
    return "M and N must be below 2^30, K below 2^29";
  for (const Stack* s : {&o.a, &o.b}) {
    const bool along_k = s == &o.a ? o.a_along_k : o.b_along_k;
    const Side t = side_of(*s, s == &o.a, along_k);
    if (reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(dtype_bytes(s->dtype)) != 0)
      return "an operand does not begin at a multiple of its element's size";
    if (!is_copied(t, s->dtype, along_k) && !is_near(t))
      return "an operand's neighbouring rows lie 4 MiB or more apart";
  }
  return "";
}

Status run_portable(const Call& call, const char* name, const Operands& o,
                    const hopper::EpilogueArguments& e) {
  const std::string why = refuse_portable(o);
  if (!why.empty()) return unsupported(std::string(name) + ": " + why);
  Job job;
  job.epilogue = e;
  job.a = side_of(o.a, true, o.a_along_k);
  job.b = side_of(o.b, false, o.b_along_k);
  job.k = static_cast<int>(o.a.columns);
  const bool copied =
      is_copied(job.a, o.a.dtype, o.a_along_k) && is_copied(job.b, o.b.dtype, o.b_along_k);
  switch (o.a.dtype) {
    case DType::kBF16:
      return copied ? start_16_bit<Kind::kBf16>(call, name, o, job)
                    : start_guarded<Kind::kBf16>(call, name, o, job);
    case DType::kF16:
      return copied ? start_16_bit<Kind::kF16>(call, name, o, job)
                    : start_guarded<Kind::kF16>(call, name, o, job);
    case DType::kI8:
      return copied ? start_copied<Kind::kInt8, true, true>(call, name, o, job)
                    : start_guarded<Kind::kInt8>(call, name, o, job);
    default:
      return copied ? start_copied<Kind::kCodes, true, true>(call, name, o, job)
                    : start_guarded<Kind::kF16>(call, name, o, job);
  }
}

}  // namespace pestle::ops
