// matmul_backward on CUDA: which implementations there are.
// Map      cuda/matmul_backward_hopper: two GEMMs by matmul's kernels
//          (ops/gemm/sm90/gemm_warp_specialized.cuh) on transposed views, nothing is copied; a
//          result whose columns are dense is made as the transposed GEMM. Where an activation
//          followed, matmul's GEMM is made again into the workspace (f32), and a pass over it makes
//          d_pre = d_out * slope there. d_bias: sums of 64 columns of a run of rows a CTA, then of
//          the runs in their order.
//          cuda/matmul_backward_cublaslt: the same steps, the two gradients by cuBLASLt
//          (ops/gemm/cublaslt/gemm_cublaslt.h), which takes them from where matmul gives it a GEMM.
//          cuda/matmul_backward_split: f32, the GEMMs by ops/gemm/split_f32/gemm_split_f32.cuh.
//          cuda/matmul_backward_any: the same steps by kernels for any strides and dtypes.
// Traffic  d_out, a and b once for each GEMM that reads them, d_a and d_b once.
// Numerics f32 sums in one order. d_pre made in the workspace is rounded to a's dtype (_any: f32).
// Measured H200, bf16: _cublaslt 669 to 705 TFLOP/s, torch's speed; _hopper 0.96 (notebook)
#include "backends/cuda/device/numeric/activations.cuh"
#include "ops/gemm/fallback/gemm_fallback.cuh"
#include "ops/gemm/matmul_backward/matmul_backward_spec.h"
#include "ops/gemm/operands/gemm_rows.cuh"
#include "ops/gemm/select/gemm_advice.cuh"
#include "ops/gemm/sm90/gemm_dense.cuh"
#include "ops/gemm/split_f32/gemm_split_f32.cuh"

namespace pestle::ops::matmul_backward {
namespace {

using namespace pestle::cuda;

constexpr int64_t kMostRuns = 64;
constexpr int64_t kLeastRows = 128;

// ---- element by element, and sums over rows -----------------------------------------------------

// to = from, or from * slope(pre).
template <class Rows>
struct Pointwise {
  Rows from, to, pre;
  int64_t rows = 0, columns = 0, units = 0;  // of 8 columns
  int activation = 0;                        // 0: pre is not read
};

#ifdef __CUDACC__

template <class Rows>
__global__ void __launch_bounds__(256)
    pointwise_kernel(const __grid_constant__ Pointwise<Rows> job) {
  const int64_t unit = int64_t{blockIdx.x} * 256 + threadIdx.x;
  const int64_t row = unit / job.units;
  if (row >= job.rows) return;
  const int64_t column = (unit - row * job.units) * 8;
  const int count = static_cast<int>(min(job.columns - column, int64_t{8}));
  float v[8] = {};
  job.from.load(row, column, count, v);
  if (job.activation) {
    float pre[8] = {}, slope[8];
    job.pre.load(row, column, count, pre);
    activate_with_slope(job.activation == 1   ? pestle::Activation::kGelu
                        : job.activation == 2 ? pestle::Activation::kGeluTanh
                                              : pestle::Activation::kSilu,
                        pre, slope);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] *= slope[i];
  }
  job.to.store(row, column, count, v);
}

// Sums of 64 columns over a run of rows: 32 lanes of rows, added in one order.
template <class Rows>
__global__ void __launch_bounds__(256)
    column_sums_kernel(const __grid_constant__ Rows from, float* sums, int64_t rows,
                       int64_t columns, int64_t run_rows, int64_t column_blocks) {
  __shared__ float partial[32][65];
  const int64_t run = blockIdx.x / column_blocks;
  const int lane = threadIdx.x / 8, unit = threadIdx.x % 8;
  const int64_t first = (blockIdx.x - run * column_blocks) * 64;
  const int count = static_cast<int>(min(columns - first - unit * 8, int64_t{8}));
  float sum[8] = {};
  const int64_t end = min(rows, (run + 1) * run_rows);
  for (int64_t row = run * run_rows + lane; count > 0 && row < end; row += 32) {
    float v[8] = {};
    from.load(row, first + unit * 8, count, v);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] += v[i];
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) partial[lane][unit * 8 + i] = sum[i];
  __syncthreads();
  const int column = threadIdx.x;
  if (column >= 64 || first + column >= columns) return;
  float total = 0;
  for (int i = 0; i < 32; ++i) total += partial[i][column];
  sums[run * columns + first + column] = total;
}

__global__ void __launch_bounds__(256)
    add_runs_kernel(const float* sums, int64_t runs, int64_t columns,
                    const __grid_constant__ AnyTensor out) {
  const int64_t column = int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (column >= columns) return;
  float total = 0;
  for (int64_t run = 0; run < runs; ++run) total += sums[run * columns + column];
  out.store(out.at(0, column), total);
}

#endif

template <class Rows>
Status start_pointwise(const Call& call, const char* name, Pointwise<Rows> job, int64_t rows,
                       int64_t columns) {
  job.rows = rows;
  job.columns = columns;
  job.units = ceil_div(columns, 8);
  return launch(call, name, {ceil_div(rows * job.units, 256), 256}, pointwise_kernel<Rows>, job);
}

template <class Rows>
Status start_column_sums(const Call& call, const char* name, const Rows& from, float* sums,
                         int64_t rows) {
  const int64_t columns = call.tensor(kDBias).shape[0];
  const int64_t run_rows = std::max(kLeastRows, ceil_div(rows, kMostRuns));
  const int64_t runs = ceil_div(rows, run_rows);
  const int64_t column_blocks = ceil_div(columns, 64);
  PESTLE_TRY(launch(call, name, {runs * column_blocks, 256}, column_sums_kernel<Rows>, from, sums,
                    rows, columns, run_rows, column_blocks));
  return launch(call, name, {ceil_div(columns, 256), 256}, add_runs_kernel, sums, runs, columns,
                AnyTensor(call.tensor(kDBias)));
}

// ---- the caller's memory ------------------------------------------------------------------------

#define PESTLE_SM90_BYTES                                                  \
  "1024 + if(has(bias), 256*N, 0) + if(activation == none, 0, 4*B*M*N) + " \
  "if(activation != none || bytes(d_out) == 4, 2*B*M*N, 0)"
constexpr const char* kSm90Workspace = PESTLE_SM90_BYTES;
constexpr const char* kLibraryWorkspace = PESTLE_SM90_BYTES " + " PESTLE_CUBLAS_BYTES;
#undef PESTLE_SM90_BYTES
constexpr const char* kFallbackWorkspace =
    "1024 + if(has(bias), 256*N, 0) + if(activation == none, 0, 4*B*M*N)";

struct Workspace {
  char* next;
  explicit Workspace(const Call& call) : next(static_cast<char*>(call.workspace)) {}
  template <class T>
  T* take(int64_t count) {
    next = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(next) + 255) & ~uintptr_t{255});
    T* taken = reinterpret_cast<T*>(next);
    next += count * static_cast<int64_t>(sizeof(T));
    return taken;
  }
};

// ---- Hopper -------------------------------------------------------------------------------------

Stack transposed(Stack s) {
  std::swap(s.rows, s.columns);
  std::swap(s.row_stride, s.column_stride);
  return s;
}

Operands gemm_of(const Stack& a, const Stack& b, const Stack& out) {
  Operands o;
  const bool by_columns = out.column_stride != 1 && out.row_stride == 1 && out.columns > 1;
  o.a = by_columns ? transposed(b) : a;
  o.b = by_columns ? transposed(a) : b;
  o.out = by_columns ? transposed(out) : out;
  o.a_along_k = lies_along_k(o.a, true);
  o.b_along_k = lies_along_k(o.b, false);
  return o;
}

// Dense matrices of the workspace in the shape of d_out.
Stack dense_like(const Stack& s, DType dtype, void* data) {
  return {data, dtype, s.rows, s.columns, s.batches, s.columns, 1, s.rows * s.columns};
}

struct Stacks {
  Stack d_out, a, b, d_a, d_b, d_residual;
  bool makes_d_pre = false;
  bool makes_pre = false;

  Operands pre(void* memory) const { return gemm_of(a, b, dense_like(d_out, DType::kF32, memory)); }
  Stack d_pre(void* memory) const {
    return makes_d_pre ? dense_like(d_out, a.dtype, memory) : d_out;
  }
  Operands to_a(const Stack& d_pre) const { return gemm_of(d_pre, transposed(b), d_a); }
  Operands to_b(const Stack& d_pre) const { return gemm_of(transposed(a), d_pre, d_b); }
};

std::string read_stacks(const Call& call, Stacks* s) {
  const std::pair<int, Stack*> tensors[] = {{kDOut, &s->d_out}, {kA, &s->a},
                                            {kB, &s->b},        {kDA, &s->d_a},
                                            {kDB, &s->d_b},     {kDResidual, &s->d_residual}};
  for (const auto& [index, stack] : tensors) {
    if (call.has(index) && !make_stack(call.tensor(index), stack))
      return std::string("the leading dimensions of ") +
             spec.args[static_cast<size_t>(index)].name + " are not evenly spaced";
  }
  s->makes_pre = call.integer(kActivation) != 0;
  s->makes_d_pre = s->makes_pre || s->d_out.dtype != s->a.dtype;
  return "";
}

std::string refuses_sm90(const Call& call, const Machine& machine) {
  if (std::string why = refuse_machine(machine); !why.empty()) return why;
  const DType dtype = call.tensor(kA).dtype;
  const DType of_out = call.tensor(kDOut).dtype;
  if (dtype != call.tensor(kB).dtype || dtype_bytes(dtype) != 2)
    return "a and b must both be bf16 or both f16";
  if (of_out != dtype && of_out != DType::kF32) return "d_out must have a's dtype or be f32";
  Stacks s;
  std::string why = read_stacks(call, &s);
  if (!why.empty()) return why;
  const Stack d_pre = s.d_pre(nullptr);
  if (s.makes_pre) why = refuse_operands(s.pre(nullptr));
  if (why.empty()) why = refuse_operands(s.to_a(d_pre));
  if (why.empty()) why = refuse_operands(s.to_b(d_pre));
  return why.empty() ? refuse_misaligned(call, {kDOut, kBias, kAlpha, kDA, kDB, kDResidual}) : why;
}

// `bias` may be null.
Status fill_epilogue(const Call& call, const Operands& o, const TensorView* bias,
                     hopper::EpilogueArguments* e) {
  if (call.has(kAlpha)) e->alpha = call.tensor(kAlpha).as<float>();
  if (bias) e->bias = bias_row(*bias);
  return fill_output(o, e);
}

Status start_gemm(const Call& call, const Operands& o, const TensorView* bias) {
  GemmJob job{};
  PESTLE_TRY(fill_epilogue(call, o, bias, &job.epilogue));
  return start_dense_gemm(call, "matmul_backward_hopper", o, job);
}

// One gradient; what it needs of memory is the call's.
using StartGradient = Status (*)(const Call&, const Operands&);

Status start_by_tiles(const Call& call, const Operands& o) { return start_gemm(call, o, nullptr); }

Status start_by_library(const Call& call, const Operands& o) {
  return run_cublas(call, "matmul_backward_cublaslt", o, {},
                    algorithm_for(call, key_of(o, GemmSums::kF32)));
}

Status run_gradients(const Call& call, StartGradient start) {
  Stacks s;
  if (const std::string why = read_stacks(call, &s); !why.empty()) return unsupported(why);
  Workspace memory(call);
  const int64_t rows = s.d_out.batches * s.d_out.rows, n = s.d_out.columns;
  const auto even = [&](const Stack& t) { return EvenRows{float_matrix(t), t.rows}; };
  const char* name = "matmul_backward_elements";
  float* const sums = memory.take<float>(call.has(kDBias) ? kMostRuns * n : 0);
  Stack d_pre = s.d_out;
  if (s.makes_d_pre) {
    Pointwise<EvenRows> job;
    if (s.makes_pre) {
      const Operands pre = s.pre(memory.take<float>(rows * n));
      PESTLE_TRY(start_gemm(call, pre, call.has(kBias) ? &call.tensor(kBias) : nullptr));
      job.pre = even(pre.out);
      job.activation = static_cast<int>(call.integer(kActivation));
    }
    d_pre = s.d_pre(memory.take<uint16_t>(rows * n));
    job.from = even(s.d_out);
    job.to = even(d_pre);
    PESTLE_TRY(start_pointwise(call, name, job, rows, n));
  }
  Call inner = call;
  inner.workspace = memory.take<char>(0);
  PESTLE_TRY(start(inner, s.to_a(d_pre)));
  PESTLE_TRY(start(inner, s.to_b(d_pre)));
  if (call.has(kDBias)) PESTLE_TRY(start_column_sums(call, name, even(d_pre), sums, rows));
  if (!call.has(kDResidual)) return {};
  return start_pointwise<EvenRows>(call, name, {even(s.d_out), even(s.d_residual), {}}, rows, n);
}

Status run_sm90(const Call& call) { return run_gradients(call, start_by_tiles); }
Status run_by_cublas(const Call& call) { return run_gradients(call, start_by_library); }

// ---- cuBLASLt, and which path the gradients take ------------------------------------------------

std::string refuses_cublas(const Call& call, const Machine& machine) {
  std::string why = refuses_sm90(call, machine);
  if (!why.empty()) return why;
  if (call.has(kAlpha)) return "takes no alpha";
  Stacks s;
  read_stacks(call, &s);
  const Stack d_pre = s.d_pre(nullptr);
  why = refuse_cublas(s.to_a(d_pre), {});
  return why.empty() ? refuse_cublas(s.to_b(d_pre), {}) : why;
}

constexpr GemmIds kIds{nullptr, "cuda/matmul_backward_hopper", "cuda/matmul_backward_cublaslt"};

// The GEMMs of d_a and of d_b; false: none of sm_90's 16-bit ones.
bool read_advised(const Call& call, const Machine& machine, AdvisedGemm (&gemms)[2]) {
  if (!refuses_sm90(call, machine).empty()) return false;
  const bool library = refuses_cublas(call, machine).empty();
  Stacks s;
  read_stacks(call, &s);
  const Stack d_pre = s.d_pre(nullptr);
  const Operands both[] = {s.to_a(d_pre), s.to_b(d_pre)};
  for (int i = 0; i < 2; ++i) {
    gemms[i].key = key_of(both[i], GemmSums::kF32);
    gemms[i].options.library = library;
    fill_machine(call, machine, &gemms[i]);
  }
  return true;
}

// cuBLASLt where both go there: the two have as many terms, so that only a tuner's file parts them.
const char* prefer(const Call& call, const Machine& machine) {
  AdvisedGemm gemms[2];
  if (!read_advised(call, machine, gemms)) return nullptr;
  const bool library = std::all_of(std::begin(gemms), std::end(gemms), [](const AdvisedGemm& p) {
    return choose_path(p.key, p.options, tuned_for(p)).path == GemmPath::kLibrary;
  });
  return kIds.of(library ? GemmPath::kLibrary : GemmPath::kTile);
}

std::string plan(const Call& call, const Machine& machine, std::string_view impl) {
  AdvisedGemm gemms[2];
  if (!read_advised(call, machine, gemms)) return "";
  const std::string of_a = plan_of(kIds, gemms[0], impl);
  return of_a.empty() ? "" : "d_a: " + of_a + "; d_b: " + plan_of(kIds, gemms[1], impl);
}

[[maybe_unused]] const bool kAdvised = advise({spec.name, prefer, plan});

// ---- any strides and dtypes ---------------------------------------------------------------------

TensorView transposed(TensorView t) {
  std::swap(t.shape[t.rank - 1], t.shape[t.rank - 2]);
  std::swap(t.strides[t.rank - 1], t.strides[t.rank - 2]);
  return t;
}

FallbackGemm fallback_gemm(const Call& call, const TensorView& a, const TensorView& b,
                           const TensorView& out, const TensorView* bias) {
  FallbackGemm job;
  job.a = AnyTensor(a);
  job.b = AnyTensor(b);
  job.out = AnyTensor(out);
  if (bias) job.bias = AnyTensor(*bias);
  if (call.has(kAlpha)) job.alpha = call.tensor(kAlpha).as<char>();
  job.m = out.shape[out.rank - 2];
  job.n = out.shape[out.rank - 1];
  job.k = a.shape[a.rank - 1];
  job.m_tiles = ceil_div(job.m, kEdgeOfTile);
  job.n_tiles = ceil_div(job.n, kEdgeOfTile);
  return job;
}

Status start_fallback(const Call& call, const TensorView& a, const TensorView& b,
                      const TensorView& out, const TensorView* bias) {
  if (numel(out) == 0) return {};
  const FallbackGemm job = fallback_gemm(call, a, b, out, bias);
  const int64_t batches = numel(out) / (job.m * job.n);
  return launch(call, "matmul_backward_any",
                {batches * job.m_tiles * job.n_tiles, kEdgeOfTile * kEdgeOfTile},
                fallback_gemm_kernel<float>, job);
}

Status run_fallback(const Call& call) {
  const TensorView& d_out = call.tensor(kDOut);
  const TensorView &a = call.tensor(kA), &b = call.tensor(kB);
  const int64_t n = d_out.shape[d_out.rank - 1];
  const int64_t rows = n == 0 ? 0 : numel(d_out) / n;
  const char* name = "matmul_backward_any_elements";
  Workspace memory(call);
  TensorView d_pre = d_out;
  if (call.integer(kActivation) != 0) {
    d_pre = make_view(memory.take<float>(rows * n), DType::kF32, d_out.rank, d_out.shape);
    d_pre.device = d_out.device;
    PESTLE_TRY(start_fallback(call, a, b, d_pre, call.has(kBias) ? &call.tensor(kBias) : nullptr));
    const StridedRows made{AnyTensor(d_pre)};
    PESTLE_TRY(start_pointwise<StridedRows>(
        call, name,
        {{AnyTensor(d_out)}, made, made, 0, 0, 0, static_cast<int>(call.integer(kActivation))},
        rows, n));
  }
  PESTLE_TRY(start_fallback(call, d_pre, transposed(b), call.tensor(kDA), nullptr));
  PESTLE_TRY(start_fallback(call, transposed(a), d_pre, call.tensor(kDB), nullptr));
  if (call.has(kDBias))
    PESTLE_TRY(start_column_sums(call, name, StridedRows{AnyTensor(d_pre)},
                                 memory.take<float>(kMostRuns * n), rows));
  if (!call.has(kDResidual)) return {};
  return start_pointwise<StridedRows>(
      call, name, {{AnyTensor(d_out)}, {AnyTensor(call.tensor(kDResidual))}, {}}, rows, n);
}

// ---- f32 by narrow parts ------------------------------------------------------------------------

constexpr const char* kSplitF32BackwardWorkspace =
    "8192 + if(has(bias), 256*N, 0) + if(activation == none, 0, 4*B*M*N) +"
    "6*(M*K + K*N + M*N) + 180*(M + N + K)";

std::string refuses_split_f32(const Call& call, const Machine& machine) {
  if (std::string why = refuse_machine(machine); !why.empty()) return why;
  Stacks s;
  std::string why = read_stacks(call, &s);
  if (!why.empty()) return why;
  if (s.d_out.dtype != DType::kF32) return "d_out must be f32";
  why = refuse_split_f32(gemm_of(s.a, s.b, s.d_out));
  if (why.empty()) why = refuse_split_f32(s.to_a(s.d_out));
  if (why.empty()) why = refuse_split_f32(s.to_b(s.d_out));
  return why.empty() ? refuse_misaligned(call, {kDOut, kA, kB, kBias, kAlpha, kDA, kDB, kDResidual})
                     : why;
}

// One matrix of the batch after the other, in the same memory.
Status start_split_f32(const Call& call, char* memory, const TensorView& a, const TensorView& b,
                       const TensorView& out, const TensorView* bias) {
  Stack of_a, of_b, of_out;
  if (!make_stack(a, &of_a) || !make_stack(b, &of_b) || !make_stack(out, &of_out))
    return unsupported("matmul_backward: leading dimensions are not evenly spaced");
  Call inner = call;
  inner.workspace = memory;
  const FallbackGemm plain = fallback_gemm(call, a, b, out, bias);
  for (int64_t i = 0; i < of_out.batches; ++i) {
    const Operands o = gemm_of(matrix_of(of_a, i), matrix_of(of_b, i), matrix_of(of_out, i));
    hopper::EpilogueArguments e;
    PESTLE_TRY(fill_epilogue(call, o, bias, &e));
    PESTLE_TRY(start_split_f32_gemm(inner, "matmul_backward_split", o, e, SplitF32Parts::kExact,
                                    plain, i));
  }
  return {};
}

Status run_split_f32(const Call& call) {
  const TensorView& d_out = call.tensor(kDOut);
  const TensorView &a = call.tensor(kA), &b = call.tensor(kB);
  const int64_t n = d_out.shape[d_out.rank - 1];
  const int64_t rows = numel(d_out) / n;
  const char* name = "matmul_backward_elements";
  Workspace memory(call);
  float* const sums = memory.take<float>(call.has(kBias) ? kMostRuns * n : 0);
  const int activation = static_cast<int>(call.integer(kActivation));
  TensorView d_pre = d_out;
  if (activation != 0) {
    d_pre = make_view(memory.take<float>(rows * n), DType::kF32, d_out.rank, d_out.shape);
    d_pre.device = d_out.device;
  }
  char* const rest = memory.take<char>(0);
  Stacks s;
  if (const std::string why = read_stacks(call, &s); !why.empty()) return unsupported(why);
  const auto even = [&](const Stack& t) { return EvenRows{float_matrix(t), t.rows}; };
  Stack made = s.d_out;
  if (activation != 0) {
    made = dense_like(s.d_out, DType::kF32, d_pre.data);
    PESTLE_TRY(
        start_split_f32(call, rest, a, b, d_pre, call.has(kBias) ? &call.tensor(kBias) : nullptr));
    Pointwise<EvenRows> job{even(s.d_out), even(made), even(made)};
    job.activation = activation;
    PESTLE_TRY(start_pointwise(call, name, job, rows, n));
  }
  PESTLE_TRY(start_split_f32(call, rest, d_pre, transposed(b), call.tensor(kDA), nullptr));
  PESTLE_TRY(start_split_f32(call, rest, transposed(a), d_pre, call.tensor(kDB), nullptr));
  if (call.has(kDBias)) PESTLE_TRY(start_column_sums(call, name, even(made), sums, rows));
  if (!call.has(kDResidual)) return {};
  return start_pointwise<EvenRows>(call, name, {even(s.d_out), even(s.d_residual), {}}, rows, n);
}

constexpr Impl kImpls[] = {
    {.id = "cuda/matmul_backward_hopper",
     .device = DeviceType::kCuda,
     .min_compute_capability = 90,
     .refuses = refuses_sm90,
     .run = run_sm90,
     .workspace = kSm90Workspace},
    {.id = "cuda/matmul_backward_cublaslt",
     .device = DeviceType::kCuda,
     .min_compute_capability = 90,
     .refuses = refuses_cublas,
     .run = run_by_cublas,
     .workspace = kLibraryWorkspace},
    {.id = "cuda/matmul_backward_split",
     .device = DeviceType::kCuda,
     .min_compute_capability = 90,
     .refuses = refuses_split_f32,
     .run = run_split_f32,
     .workspace = kSplitF32BackwardWorkspace},
    {.id = "cuda/matmul_backward_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_fallback,
     .workspace = kFallbackWorkspace},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::matmul_backward
