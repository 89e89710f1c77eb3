// GEMMs by cuBLASLt (gemm_cublaslt.h).
// Map      cuBLASLt's own: the algorithm that it names first for the shape, or a later one where a
//          tuner found that faster. Asked for once a thread, device and shape; then a look into a
//          table of 64 and one call of the library.
// Traffic  a, b, out and residual once, if its tiles fit the L2.
// Numerics f32 sums; no algorithm that adds split-K's sums in less, no atomics: the same call gives
//          the same bits. Bias, residual and scales in f32, then one rounding.
// Measured H200, cuBLASLt 13.1: 1.00 to 1.10 of our kernels' speed, seven large shapes (matmul.md).
#include "ops/gemm/cublaslt/gemm_cublaslt.h"

#include <dlfcn.h>

#include <array>
#include <cstring>
#include <mutex>

#include "backends/cuda/host/early_launch.h"

namespace pestle::ops {
namespace {

constexpr size_t kMostWorkspace = size_t{32} << 20;
constexpr size_t kAligned = 256;

// What is used of cublasLt.h, which a build does not need. The numbers are part of its ABI.
enum : int { kSuccess = 0, kCompute32F = 68 };
enum : int { kReal32F = 0, kReal16F = 2, kReal16BF = 14, kRealE4M3 = 28, kRealE5M2 = 29 };
enum : int { kDescTransA = 3, kDescTransB = 4, kDescEpilogue = 7, kDescBias = 8 };
enum : int { kDescScaleA = 17, kDescScaleB = 18, kDescFast = 25, kDescModeA = 31, kDescModeB = 32 };
enum : int { kLayoutBatches = 5, kLayoutBatchStride = 6, kEpilogueBias = 4, kScaleOfRows = 3 };
enum : int { kScaleOf128 = 4, kScaleOf128x128 = 5 };
enum : int { kPreferWorkspace = 1, kPreferReduction = 3, kPreferAlignment = 5 };  // of a, b, c, d
constexpr uint32_t kReduceInF32 = 2;           // split-K, if any, adds in the type of the sums
constexpr int kVersionWithRowScales = 120900;  // and with those of blocks

struct Algorithm {
  uint64_t data[8];
};
struct Heuristic {
  Algorithm algorithm;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

struct Library {
  size_t (*version)() = nullptr;
  int (*create)(void**) = nullptr;
  int (*desc_create)(void**, int, int) = nullptr;
  int (*desc_set)(void*, int, const void*, size_t) = nullptr;
  int (*desc_destroy)(void*) = nullptr;
  int (*layout_create)(void**, int, uint64_t, uint64_t, int64_t) = nullptr;
  int (*layout_set)(void*, int, const void*, size_t) = nullptr;
  int (*layout_destroy)(void*) = nullptr;
  int (*preference_create)(void**) = nullptr;
  int (*preference_set)(void*, int, const void*, size_t) = nullptr;
  int (*preference_destroy)(void*) = nullptr;
  int (*heuristic)(void*, void*, void*, void*, void*, void*, void*, int, Heuristic*,
                   int*) = nullptr;
  int (*matmul)(void*, void*, const void*, const void*, void*, const void*, void*, const void*,
                const void*, void*, void*, void*, const Algorithm*, void*, size_t, void*) = nullptr;
  bool found = false;
};

void* open_library() {
  for (const int loaded : {RTLD_NOLOAD, 0}) {
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"}) {
      if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL | loaded)) return library;
    }
  }
  return nullptr;
}

const Library& library() {
  static const Library one = [] {
    Library l;
    void* from = open_library();
    if (!from) return l;
    bool all = true;
    const auto get = [&](auto& function, const char* name) {
      void* address = dlsym(from, name);
      std::memcpy(&function, &address, sizeof address);
      all &= address != nullptr;
    };
    get(l.version, "cublasLtGetVersion");
    get(l.create, "cublasLtCreate");
    get(l.desc_create, "cublasLtMatmulDescCreate");
    get(l.desc_set, "cublasLtMatmulDescSetAttribute");
    get(l.desc_destroy, "cublasLtMatmulDescDestroy");
    get(l.layout_create, "cublasLtMatrixLayoutCreate");
    get(l.layout_set, "cublasLtMatrixLayoutSetAttribute");
    get(l.layout_destroy, "cublasLtMatrixLayoutDestroy");
    get(l.preference_create, "cublasLtMatmulPreferenceCreate");
    get(l.preference_set, "cublasLtMatmulPreferenceSetAttribute");
    get(l.preference_destroy, "cublasLtMatmulPreferenceDestroy");
    get(l.heuristic, "cublasLtMatmulAlgoGetHeuristic");
    get(l.matmul, "cublasLtMatmul");
    l.found = all;
    return l;
  }();
  return one;
}

// Making handles and plans may allocate and load code, which a thread that captures a graph must
// be allowed to.
class WhileCapturing {
 public:
  WhileCapturing() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~WhileCapturing() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  WhileCapturing(const WhileCapturing&) = delete;
  WhileCapturing& operator=(const WhileCapturing&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// One handle a device for the whole process; null where there is none. The device is current.
void* handle_of(int device) {
  constexpr int kDevices = 64;
  static std::array<std::atomic<void*>, kDevices> handles{};
  static std::mutex mutex;
  if (device < 0 || device >= kDevices) return nullptr;
  std::atomic<void*>& place = handles[static_cast<size_t>(device)];
  if (void* handle = place.load(std::memory_order_acquire)) return handle;
  const std::lock_guard<std::mutex> lock(mutex);
  void* handle = place.load(std::memory_order_relaxed);
  if (handle != nullptr) return handle;
  const WhileCapturing relaxed;
  if (library().create(&handle) != kSuccess) return nullptr;
  place.store(handle, std::memory_order_release);
  return handle;
}

// Row-major matrices, read as cuBLAS's column-major transposes: out^T = b^T * a^T.
struct Shape {
  int64_t m, n, k, batches;
  int64_t a_stride, b_stride, out_stride, residual_stride;  // between rows, as they lie in memory
  int64_t a_batch, b_batch, out_batch, residual_batch;
  int64_t aligned_a, aligned_b, aligned_out, aligned_residual;
  int64_t a_along_k, b_along_k, has_bias, has_residual, scales, fast;
  int64_t a_dtype, b_dtype, out_dtype, device, algorithm;
  bool operator==(const Shape& other) const = default;
};

int64_t outer_stride(const Stack& s, bool k_is_columns, bool along_k) {
  const bool rows_are_dense = k_is_columns == along_k;
  const int64_t outer = rows_are_dense ? s.rows : s.columns;
  // A matrix of one row has no distance between rows.
  if (outer == 1) return rows_are_dense ? s.columns : s.rows;
  return rows_are_dense ? s.row_stride : s.column_stride;
}

int64_t alignment_of(const Stack& s) {
  const auto address = reinterpret_cast<uintptr_t>(s.data) | kAligned;
  return static_cast<int64_t>(address & (~address + 1));
}

Shape shape_of(const Operands& o, const CublasEpilogue& e) {
  Shape s{};
  s.m = o.out.rows;
  s.n = o.out.columns;
  s.k = o.a.columns;
  s.batches = o.out.batches;
  s.a_along_k = o.a_along_k;
  s.b_along_k = o.b_along_k;
  s.a_stride = outer_stride(o.a, true, o.a_along_k);
  s.b_stride = outer_stride(o.b, false, o.b_along_k);
  s.out_stride = o.out.rows == 1 ? o.out.columns : o.out.row_stride;
  s.a_batch = o.a.batch_stride;
  s.b_batch = o.b.batch_stride;
  s.out_batch = o.out.batch_stride;
  s.aligned_a = alignment_of(o.a);
  s.aligned_b = alignment_of(o.b);
  s.aligned_out = alignment_of(o.out);
  if (e.residual) {
    s.has_residual = 1;
    s.residual_stride = e.residual->rows == 1 ? e.residual->columns : e.residual->row_stride;
    s.residual_batch = e.residual->batch_stride;
    s.aligned_residual = alignment_of(*e.residual);
  }
  s.has_bias = e.bias != nullptr;
  s.scales = static_cast<int64_t>(e.scales);
  s.fast = e.fast;
  s.a_dtype = static_cast<int64_t>(o.a.dtype);
  s.b_dtype = static_cast<int64_t>(o.b.dtype);
  s.out_dtype = static_cast<int64_t>(o.out.dtype);
  return s;
}

uint64_t hash_of(const Shape& s) {
  uint64_t hash = 1;
  for (const int64_t word :
       {s.m, s.n, s.k, s.batches, s.a_stride, s.b_stride,
        s.a_along_k | s.b_along_k << 1 | s.has_bias << 2 | s.has_residual << 3 | s.a_dtype << 8 |
            s.out_dtype << 16 | s.device << 24 | s.algorithm << 32 | s.scales << 40 | s.fast << 44})
    hash = (hash ^ static_cast<uint64_t>(word)) * 0x9E3779B97F4A7C15u;
  return hash >> 32;
}

int real_of(int64_t dtype) {
  switch (static_cast<DType>(dtype)) {
    case DType::kF32: return kReal32F;
    case DType::kBF16: return kReal16BF;
    case DType::kE4M3: return kRealE4M3;
    case DType::kE5M2: return kRealE5M2;
    default: return kReal16F;
  }
}

// What cuBLASLt wants to know of a shape, and its algorithm. Of one thread.
class Plan {
 public:
  Plan() = default;
  ~Plan() { clear(); }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  bool is_of(const Shape& shape) const { return ready_ && shape_ == shape; }
  // Algorithms are named for pointers that are there: scales of rows have none without.
  bool make(void* handle, const Shape& shape, const CublasEpilogue& e) {
    clear();
    shape_ = shape;
    ready_ = make_desc() && set_pointers(e) == kSuccess && make_layouts() && find_algorithm(handle);
    return ready_;
  }
  int run(void* handle, const Operands& o, const CublasEpilogue& e, void* workspace,
          void* stream) const {
    if (const int status = set_pointers(e); status != kSuccess) return status;
    const float one = 1, factor = e.residual ? 1.0f : 0.0f;
    return library().matmul(handle, desc_, &one, o.b.data, b_, o.a.data, a_, &factor,
                            e.residual ? e.residual->data : o.out.data, e.residual ? c_ : out_,
                            const_cast<void*>(o.out.data), out_, &algorithm_, workspace,
                            kMostWorkspace, stream);
  }

 private:
  int set_pointers(const CublasEpilogue& e) const {
    const void* const pointers[] = {e.bias ? e.bias->data : nullptr, e.b.data, e.a.data};
    const int attributes[] = {kDescBias, kDescScaleA, kDescScaleB};
    for (int i = 0; i < 3; ++i) {
      if (!pointers[i]) continue;
      const int status = library().desc_set(desc_, attributes[i], &pointers[i], sizeof pointers[i]);
      if (status != kSuccess) return status;
    }
    return kSuccess;
  }
  template <class T>
  bool set(int attribute, T value) {
    return library().desc_set(desc_, attribute, &value, sizeof value) == kSuccess;
  }
  bool make_desc() {
    const Shape& s = shape_;
    bool ok = library().desc_create(&desc_, kCompute32F, kReal32F) == kSuccess &&
              set<int32_t>(kDescTransA, s.b_along_k ? 1 : 0) &&
              set<int32_t>(kDescTransB, s.a_along_k ? 0 : 1);
    if (s.has_bias) ok = ok && set<uint32_t>(kDescEpilogue, kEpilogueBias);
    if (s.fast) ok = ok && set<int8_t>(kDescFast, 1);
    const auto scales = static_cast<CublasScales>(s.scales);
    if (scales == CublasScales::kRow) ok = ok && set_modes(kScaleOfRows, kScaleOfRows);
    if (scales == CublasScales::kBlock) ok = ok && set_modes(kScaleOf128x128, kScaleOf128);
    return ok;
  }
  // Of our b and a: its first operand is our second.
  bool set_modes(int32_t b, int32_t a) { return set(kDescModeA, b) && set(kDescModeB, a); }
  bool make_layout(void** layout, int64_t dtype, bool dense, int64_t inner, int64_t outer,
                   int64_t stride, int64_t batch_stride) {
    const Library& l = library();
    const auto rows = static_cast<uint64_t>(dense ? inner : outer);
    const auto columns = static_cast<uint64_t>(dense ? outer : inner);
    if (l.layout_create(layout, real_of(dtype), rows, columns, stride) != kSuccess) return false;
    const auto batches = static_cast<int32_t>(shape_.batches);
    return batches == 1 ||
           (l.layout_set(*layout, kLayoutBatches, &batches, sizeof batches) == kSuccess &&
            l.layout_set(*layout, kLayoutBatchStride, &batch_stride, sizeof batch_stride) ==
                kSuccess);
  }
  bool make_layouts() {
    const Shape& s = shape_;
    return make_layout(&b_, s.b_dtype, s.b_along_k, s.k, s.n, s.b_stride, s.b_batch) &&
           make_layout(&a_, s.a_dtype, s.a_along_k, s.k, s.m, s.a_stride, s.a_batch) &&
           make_layout(&out_, s.out_dtype, true, s.n, s.m, s.out_stride, s.out_batch) &&
           (!s.has_residual ||
            make_layout(&c_, s.out_dtype, true, s.n, s.m, s.residual_stride, s.residual_batch));
  }
  bool set_preference(void* preference) {
    const Library& l = library();
    const Shape& s = shape_;
    const size_t bytes = kMostWorkspace;
    const int64_t c = s.has_residual ? s.aligned_residual : s.aligned_out;
    const int64_t aligned[] = {s.aligned_b, s.aligned_a, c, s.aligned_out};
    bool ok = l.preference_set(preference, kPreferWorkspace, &bytes, sizeof bytes) == kSuccess &&
              l.preference_set(preference, kPreferReduction, &kReduceInF32, sizeof kReduceInF32) ==
                  kSuccess;
    for (int i = 0; i < 4; ++i) {
      const auto value = static_cast<uint32_t>(aligned[i]);
      ok = ok &&
           l.preference_set(preference, kPreferAlignment + i, &value, sizeof value) == kSuccess;
    }
    return ok;
  }
  bool find_algorithm(void* handle) {
    const Library& l = library();
    void* preference = nullptr;
    if (l.preference_create(&preference) != kSuccess) return false;
    std::array<Heuristic, kCublasAlgorithms> found{};
    const int wanted = static_cast<int>(shape_.algorithm) + 1;
    int count = 0;
    void* c = shape_.has_residual ? c_ : out_;
    const bool ok =
        set_preference(preference) && l.heuristic(handle, desc_, b_, a_, c, out_, preference,
                                                  wanted, found.data(), &count) == kSuccess;
    l.preference_destroy(preference);
    if (!ok || count < 1) return false;
    const Heuristic& best = found[static_cast<size_t>(std::min(wanted, count) - 1)];
    algorithm_ = best.algorithm;
    return best.state == kSuccess && best.workspace <= kMostWorkspace;
  }
  void clear() {
    const Library& l = library();
    if (desc_) l.desc_destroy(desc_);
    for (void* layout : {a_, b_, out_, c_}) {
      if (layout) l.layout_destroy(layout);
    }
    desc_ = a_ = b_ = out_ = c_ = nullptr;
    ready_ = false;
  }

  Shape shape_{};
  void *desc_ = nullptr, *a_ = nullptr, *b_ = nullptr, *out_ = nullptr, *c_ = nullptr;
  Algorithm algorithm_{};
  bool ready_ = false;
};

// ---- decode scales that it can't read where they are --------------------------------------------

struct ScaleCopy {
  ScalesAt from;
  float* to = nullptr;
  int64_t to_row = 1, to_step = 0;
  int rows = 0, steps = 1;
};
struct ScaleCopies {
  ScaleCopy a, b;
  int blocks_of_a;
  bool of_blocks;
};
constexpr int kCopyThreads = 256;
constexpr uintptr_t kAlignedScales = 16;  // of rows: where cuBLASLt wants them to begin

// As cuBLASLt wants them; of blocks NaN for an infinite one, as a factor of terms has it.
__global__ void __launch_bounds__(kCopyThreads)
    copy_scales_kernel(const __grid_constant__ ScaleCopies job) {
  cuda::wait_previous_kernel();
  const int block = static_cast<int>(blockIdx.x);
  const bool of_a = block < job.blocks_of_a;
  const ScaleCopy& copy = of_a ? job.a : job.b;
  const int i =
      (of_a ? block : block - job.blocks_of_a) * kCopyThreads + static_cast<int>(threadIdx.x);
  const int row = i / copy.steps, step = i - row * copy.steps;
  if (row >= copy.rows) return;
  const float* from = copy.from.data + row * copy.from.row + step * copy.from.step;
  copy.to[row * copy.to_row + step * copy.to_step] =
      job.of_blocks ? hopper::factor_of_terms(from) : __ldg(from);
}

char* aligned_up(void* p) {
  return reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(p) + kAligned - 1) / kAligned *
                                 kAligned);
}

// Are `rows` scales such as cuBLASLt reads where they are?
bool lie_ready(CublasScales scales, const ScalesAt& at, int64_t rows) {
  if (scales == CublasScales::kTensor) return true;
  return scales == CublasScales::kRow && (at.row == 1 || rows == 1) &&
         reinterpret_cast<uintptr_t>(at.data) % kAlignedScales == 0;
}

// Room for one operand's scales, from `memory` on, where they are not ready; they are read there.
ScaleCopy place_scales(const CublasEpilogue& e, bool of_a, const Operands& o, char** memory,
                       ScalesAt* at) {
  ScaleCopy copy;
  const int64_t rows = of_a ? o.out.rows : o.out.columns;
  if (lie_ready(e.scales, *at, rows)) return copy;
  const auto k_blocks = static_cast<int>(cuda::ceil_div(o.a.columns, 128));
  copy.from = *at;
  copy.rows = static_cast<int>(rows);
  int64_t floats = copy.rows;
  if (e.scales == CublasScales::kBlock) {
    // a's: rows beside one another; b's: 128 of k, in fours.
    copy.rows = static_cast<int>(of_a ? rows : cuda::ceil_div(rows, 128));
    copy.steps = k_blocks;
    copy.to_row = of_a ? 1 : cuda::ceil_div(k_blocks, 4) * 4;
    copy.to_step = of_a ? copy.rows : 1;
    floats = of_a ? int64_t{copy.rows} * k_blocks : copy.rows * copy.to_row;
  }
  copy.to = reinterpret_cast<float*>(*memory);
  at->data = copy.to;
  *memory = aligned_up(*memory + 4 * floats);
  return copy;
}

// Into the workspace, where any must be copied; `e` names them there.
Status copy_scales(const Call& call, const char* name, const Operands& o, char** memory,
                   CublasEpilogue* e) {
  ScaleCopies job;
  job.a = place_scales(*e, true, o, memory, &e->a);
  job.b = place_scales(*e, false, o, memory, &e->b);
  const auto blocks = [](const ScaleCopy& c) {
    return cuda::ceil_div(int64_t{c.rows} * c.steps, kCopyThreads);
  };
  job.blocks_of_a = static_cast<int>(blocks(job.a));
  job.of_blocks = e->scales == CublasScales::kBlock;
  // None where both are ready.
  return cuda::launch_early(call, name, {job.blocks_of_a + blocks(job.b), kCopyThreads},
                            copy_scales_kernel, job);
}

std::string refuse_result(const char* name, const Stack& s, DType dtype) {
  if (s.dtype != dtype) return std::string(name) + " must have out's dtype";
  if (s.column_stride != 1 && s.columns != 1)
    return std::string(name) + " must have neighbouring columns";
  const int64_t bytes = dtype_bytes(s.dtype);
  if (reinterpret_cast<uintptr_t>(s.data) % 16 != 0 ||
      (s.rows != 1 && s.row_stride * bytes % 16 != 0) || s.columns * bytes % 16 != 0)
    return std::string(name) + " must have rows at multiples of 16 bytes";
  if (s.rows != 1 && s.row_stride < s.columns) return std::string(name) + " has rows that overlap";
  return "";
}

std::string refuse_bias(const TensorView& bias, DType out) {
  if (bias.dtype != out || out == DType::kF32) return "bias must have out's dtype, bf16 or f16";
  if (bias.strides[0] != 1 && bias.shape[0] != 1) return "bias must be dense";
  if (reinterpret_cast<uintptr_t>(bias.data) % 16 != 0)
    return "bias must begin at a multiple of 16 bytes";
  return "";
}

// 8-bit floats: what cuBLASLt has kernels for on Hopper.
std::string refuse_codes_of_8_bits(const Operands& o, const CublasEpilogue& e) {
  if (!o.a_along_k || !o.b_along_k) return "needs 8-bit operands along k";
  if (o.a.dtype == DType::kE5M2 && o.b.dtype == DType::kE5M2)
    return "cuBLASLt has no product of e5m2 and e5m2";
  if (!e.fast && !cublas_is_accurate(cublas_version()))
    return "is for accumulation=fast: how often this cuBLASLt adds in f32 was not measured";
  if (o.a.columns % 16 != 0 || o.out.columns % 16 != 0)
    return "needs K and N to be multiples of 16 for 8-bit floats";
  if (e.residual) return "takes no residual after 8-bit floats";
  if (e.scales != CublasScales::kTensor && cublas_version() < kVersionWithRowScales)
    return "cuBLASLt has scales of rows and blocks from 12.9 on";
  if (e.scales != CublasScales::kBlock) return "";
  if (e.bias) return "takes no bias after scales of blocks";
  if (o.out.rows % 4 != 0) return "needs M to be a multiple of 4 for scales of blocks";
  return "";
}

}  // namespace

// Seen at 13.1 (ops/gemm/scaled_mm_fp8/scaled_mm_fp8.md).
bool cublas_is_accurate(int version) { return version == 130100; }

int cublas_version() { return library().found ? static_cast<int>(library().version()) : 0; }

std::string refuse_cublas_quantized(const Call& call, int alpha) {
  if (call.integer(alpha + 3) != 0) return "cuBLASLt has not the contract's activations";
  if (call.has(alpha)) return "takes no alpha";
  return call.has(alpha + 2) ? "takes no residual after 8-bit floats" : "";
}

std::string refuse_cublas(const Operands& o, const CublasEpilogue& e) {
  if (!library().found) return "no libcublasLt.so.13 or .12 is loaded or on the loader's path";
  if (o.out.dtype != o.a.dtype && o.out.dtype != DType::kF32 && dtype_bytes(o.a.dtype) != 1)
    return "out must be f32 or have the operands' dtype";
  std::string why = refuse_result("out", o.out, o.out.dtype);
  if (why.empty() && e.residual) why = refuse_result("residual", *e.residual, o.out.dtype);
  if (why.empty() && e.bias) why = refuse_bias(*e.bias, o.out.dtype);
  if (why.empty() && dtype_bytes(o.a.dtype) == 1) why = refuse_codes_of_8_bits(o, e);
  if (!why.empty()) return why;
  const Shape s = shape_of(o, e);
  if (s.a_stride < (s.a_along_k ? s.k : s.m) || s.b_stride < (s.b_along_k ? s.k : s.n))
    return "rows of a or b overlap";
  if (s.m * s.n * s.batches > INT32_MAX) return "out has more than 2^31 - 1 elements";
  return "";
}

Status run_cublas(const Call& call, const char* name, const Operands& o, CublasEpilogue e,
                  int algorithm) {
  constexpr size_t kPlans = 64;
  thread_local std::array<Plan, kPlans> plans;
  const int device = cuda::device_index(call);
  PESTLE_ON_DEVICE(device);
  void* handle = handle_of(device);
  if (!handle) return {Code::kDeviceError, std::string(name) + ": cublasLtCreate failed"};
  Shape s = shape_of(o, e);
  s.device = device;
  s.algorithm = std::min(algorithm, kCublasAlgorithms - 1);
  Plan& plan = plans[hash_of(s) % kPlans];
  char* memory = aligned_up(call.workspace);
  if (e.scales != CublasScales::kNone) PESTLE_TRY(copy_scales(call, name, o, &memory, &e));
  int status = kSuccess;
  if (plan.is_of(s)) {
    status = plan.run(handle, o, e, memory, call.stream);
  } else {
    const WhileCapturing relaxed;
    if (!plan.make(handle, s, e))
      return {Code::kDeviceError, std::string(name) + ": cuBLASLt " +
                                      std::to_string(cublas_version()) +
                                      " names no algorithm for the shape; force another "
                                      "implementation, `pestle why` lists them"};
    status = plan.run(handle, o, e, memory, call.stream);
  }
  if (status == kSuccess) return {};
  return {Code::kDeviceError,
          std::string(name) + ": cublasLtMatmul failed with status " + std::to_string(status)};
}

}  // namespace pestle::ops
