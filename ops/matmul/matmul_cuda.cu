// matmul on CUDA.
// Map      cuda/matmul_hopper: tiles of 128 x 256, 192 or 128 by warpgroup instructions
//          (ops/common/matmul_hopper.cuh), each operand along k or across it as its strides say.
//          _any: a thread a result, tiles of 16 x 16 through shared memory, any strides and dtypes.
// Traffic  a and b once from memory where a group of tiles fits the L2; out and residual once.
// Numerics f32 sums along k in one order; the tensor cores truncate what falls below the sum's last
// bit.
//          Epilogue in f32, one rounding.
// Measured H200, bf16: 654 to 794 TFLOP/s on seven large shapes, about cuBLAS's (matmul.md).
#include <atomic>

#include "backends/cuda/device/any_tensor.cuh"
#include "backends/cuda/launch.h"
#include "backends/cuda/runtime.h"
#include "backends/cuda/tensor_map.h"
#include "formats/e4m3.h"
#include "formats/e5m2.h"
#include "ops/common/epilogue.h"
#include "ops/common/matmul_epilogue.cuh"
#include "ops/common/matmul_hopper.cuh"
#include "ops/matmul/matmul_spec.h"

namespace pestle::ops::matmul {
namespace {

using namespace pestle::cuda;

constexpr int kA = arg_index(spec, "a");
constexpr int kB = arg_index(spec, "b");
constexpr int kOut = arg_index(spec, "out");
constexpr int kAlpha = arg_index(spec, "alpha");
constexpr int kBias = arg_index(spec, "bias");
constexpr int kResidual = arg_index(spec, "residual");
constexpr int kActivation = arg_index(spec, "activation");

// ---- any
// ------------------------------------------------------------------------------------------

constexpr int kEdgeOfTile = 16;

struct AnyJob {
  AnyTensor a, b, out, bias, residual;
  const char* alpha = nullptr;
  int activation = 0;
  int64_t m = 0, n = 0, k = 0, m_tiles = 0, n_tiles = 0;
};

__device__ float load_any(const AnyTensor& t, const char* p) {
  if (t.dtype == DType::kE4M3)
    return formats::f32_from_code<formats::E4m3>(static_cast<uint8_t>(*p));
  if (t.dtype == DType::kE5M2)
    return formats::f32_from_code<formats::E5m2>(static_cast<uint8_t>(*p));
  return t.load(p);
}

__device__ float activate_any(int activation, float y) {
  switch (activation) {
    case 1: return 0.5f * y * (1.0f + erff(y * 0.70710678118654752440f));
    case 2: return 0.5f * y * (1.0f + tanhf(0.79788456080286535588f * (y + 0.044715f * y * y * y)));
    case 3: return y / (1.0f + expf(-y));
    default: return y;
  }
}

__global__ void __launch_bounds__(kEdgeOfTile* kEdgeOfTile) any_kernel(AnyJob job) {
  __shared__ float a[kEdgeOfTile][kEdgeOfTile + 1];
  __shared__ float b[kEdgeOfTile][kEdgeOfTile + 1];
  const int x = threadIdx.x % kEdgeOfTile;
  const int y = threadIdx.x / kEdgeOfTile;
  const int64_t tiles = job.m_tiles * job.n_tiles;
  const int64_t batch = blockIdx.x / tiles;
  const int64_t tile = blockIdx.x % tiles;
  const int64_t m = tile / job.n_tiles * kEdgeOfTile + y;
  const int64_t n = tile % job.n_tiles * kEdgeOfTile + x;
  float sum = 0;
  for (int64_t k0 = 0; k0 < job.k; k0 += kEdgeOfTile) {
    a[y][x] =
        m < job.m && k0 + x < job.k ? load_any(job.a, job.a.at(batch * job.m + m, k0 + x)) : 0;
    b[y][x] =
        n < job.n && k0 + y < job.k ? load_any(job.b, job.b.at(batch * job.k + k0 + y, n)) : 0;
    __syncthreads();
    for (int i = 0; i < kEdgeOfTile && k0 + i < job.k; ++i) sum = fmaf(a[y][i], b[i][x], sum);
    __syncthreads();
  }
  if (m >= job.m || n >= job.n) return;
  if (job.alpha) sum *= __uint_as_float(AnyTensor::bits(job.alpha, 4));
  if (job.bias.data) sum += job.bias.load(job.bias.at(0, n));
  sum = activate_any(job.activation, sum);
  if (job.residual.data) sum += job.residual.load(job.residual.at(batch * job.m + m, n));
  job.out.store(job.out.at(batch * job.m + m, n), sum);
}

AnyTensor optional_tensor(const Call& call, int index) {
  return call.has(index) ? AnyTensor(call.tensor(index)) : AnyTensor();
}

Status run_any(const Call& call) {
  const TensorView& out = call.tensor(kOut);
  if (numel(out) == 0) return {};
  AnyJob job;
  job.a = AnyTensor(call.tensor(kA));
  job.b = AnyTensor(call.tensor(kB));
  job.out = AnyTensor(out);
  job.bias = optional_tensor(call, kBias);
  job.residual = optional_tensor(call, kResidual);
  job.alpha = call.has(kAlpha) ? call.tensor(kAlpha).as<char>() : nullptr;
  job.activation = static_cast<int>(call.integer(kActivation));
  job.m = out.shape[out.rank - 2];
  job.n = out.shape[out.rank - 1];
  job.k = call.tensor(kA).shape[out.rank - 1];
  job.m_tiles = ceil_div(job.m, kEdgeOfTile);
  job.n_tiles = ceil_div(job.n, kEdgeOfTile);
  const int64_t batches = numel(out) / (job.m * job.n);
  return launch(call, "matmul_any",
                {batches * job.m_tiles * job.n_tiles, kEdgeOfTile * kEdgeOfTile}, any_kernel, job);
}

// ---- Hopper
// -----------------------------------------------------------------------------------------

// A stack of matrices with one distance between them; strides in elements.
struct Stack {
  const void* data = nullptr;
  DType dtype = DType::kNone;
  int64_t rows = 0, columns = 0, batches = 1;
  int64_t row_stride = 0, column_stride = 0, batch_stride = 0;
};

// False when the leading dimensions are not evenly spaced.
bool make_stack(const TensorView& t, Stack* s) {
  s->data = t.data;
  s->dtype = t.dtype;
  s->rows = t.shape[t.rank - 2];
  s->columns = t.shape[t.rank - 1];
  s->row_stride = t.strides[t.rank - 2];
  s->column_stride = t.strides[t.rank - 1];
  s->batches = 1;
  s->batch_stride = 0;
  for (int d = t.rank - 3; d >= 0; --d) {
    if (t.shape[d] == 1) continue;
    if (s->batches == 1)
      s->batch_stride = t.strides[d];
    else if (t.strides[d] != s->batch_stride * s->batches)
      return false;
    s->batches *= t.shape[d];
  }
  return true;
}

// The operand as the copy engine reads it; `rows` is what is not k.
BoxedTensor boxes_of(const Stack& s, bool k_is_columns, bool along_k) {
  const int64_t outer_size = k_is_columns ? s.rows : s.columns;
  const int64_t outer_stride = k_is_columns ? s.row_stride : s.column_stride;
  const int64_t k_size = k_is_columns ? s.columns : s.rows;
  const int64_t k_stride = k_is_columns ? s.column_stride : s.row_stride;
  const int bytes = dtype_bytes(s.dtype);
  BoxedTensor t;
  t.data = s.data;
  t.element_bytes = bytes;
  t.size[0] = along_k ? k_size : outer_size;
  t.size[1] = along_k ? outer_size : k_size;
  t.size[2] = s.batches;
  t.stride_bytes[0] = (along_k ? outer_stride : k_stride) * bytes;
  t.stride_bytes[1] = s.batch_stride * bytes;
  // A dimension of one element has no stride that matters.
  if (t.size[1] == 1) t.stride_bytes[0] = (t.size[0] * bytes + 15) / 16 * 16;
  if (t.size[2] == 1) t.stride_bytes[1] = t.stride_bytes[0];
  t.box[0] = 64;
  t.box[1] = 64;
  return t;
}

bool lies_along_k(const Stack& s, bool k_is_columns) {
  return (k_is_columns ? s.column_stride : s.row_stride) == 1 ||
         (k_is_columns ? s.columns : s.rows) == 1;
}

struct Operands {
  Stack a, b, out, residual;
  bool a_along_k = true, b_along_k = true;
};

std::string read_operands(const Call& call, Operands* o) {
  if (!make_stack(call.tensor(kA), &o->a) || !make_stack(call.tensor(kB), &o->b) ||
      !make_stack(call.tensor(kOut), &o->out))
    return "the leading dimensions of a, b or out are not evenly spaced";
  if (call.has(kResidual) && !make_stack(call.tensor(kResidual), &o->residual))
    return "the leading dimensions of residual are not evenly spaced";
  o->a_along_k = lies_along_k(o->a, true);
  o->b_along_k = lies_along_k(o->b, false);
  return "";
}

std::string refuse_operand(const char* name, const Stack& s, bool k_is_columns, bool along_k) {
  const int64_t inner = along_k ? 1 : (k_is_columns ? s.row_stride : s.column_stride);
  if (inner != 1 && (k_is_columns ? s.rows : s.columns) != 1)
    return std::string(name) + " has neighbouring elements neither along k nor across it";
  const char* why = refuse_boxes(boxes_of(s, k_is_columns, along_k));
  return *why ? std::string(name) + " " + why : "";
}

std::string refuses_hopper(const Call& call, const Machine& machine) {
  if (machine.compute_capability != 90) return "needs compute capability 9.0 (Hopper)";
  if (cuda::portable() != 0) return "needs code for sm_90a, this build has portable code only";
  const TensorView& a = call.tensor(kA);
  const TensorView& b = call.tensor(kB);
  if (a.dtype != b.dtype || (a.dtype != DType::kBF16 && a.dtype != DType::kF16))
    return "a and b must both be bf16 or both f16";
  Operands o;
  std::string why = read_operands(call, &o);
  if (!why.empty()) return why;
  if (o.a.columns == 0 || numel(call.tensor(kOut)) == 0)
    return "is for products that are not empty";
  if (o.a.rows > INT_MAX / 2 || o.out.columns > INT_MAX / 2 || o.a.columns > INT_MAX / 2)
    return "M, N and K must be below 2^30";
  why = refuse_operand("a", o.a, true, o.a_along_k);
  if (why.empty()) why = refuse_operand("b", o.b, false, o.b_along_k);
  for (int i : {kOut, kBias, kResidual, kAlpha}) {
    if (why.empty() && call.has(i) &&
        reinterpret_cast<uintptr_t>(call.tensor(i).data) % dtype_bytes(call.tensor(i).dtype))
      why = std::string(spec.args[i].name) + " does not begin at a multiple of its element's size";
  }
  return why;
}

using hopper::Product;

struct HopperJob {
  hopper::MatmulTiles tiles;
  hopper::EpilogueArguments epilogue;
};

template <class C>
__global__ void __launch_bounds__(hopper::kMatmulThreads, 1)
    hopper_kernel(const __grid_constant__ HopperJob job) {
#if PESTLE_HOPPER
  hopper::HopperMatmul<C>::run(job.tiles, hopper::MatmulEpilogue{job.epilogue});
#endif
}

// Shared memory beyond 48 KB must be asked for, once a kernel and device.
template <class C>
Status allow_memory(int device, size_t bytes) {
  static std::atomic<uint64_t> done{0};
  const uint64_t bit = uint64_t{1} << (device & 63);
  if (done.load(std::memory_order_relaxed) & bit) return {};
  PESTLE_CUDA_TRY(cudaFuncSetAttribute(
      hopper_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  done.fetch_or(bit, std::memory_order_relaxed);
  return {};
}

hopper::Float float_kind(DType dtype) {
  return dtype == DType::kF32    ? hopper::Float::kF32
         : dtype == DType::kBF16 ? hopper::Float::kBf16
                                 : hopper::Float::kF16;
}

hopper::FloatMatrix float_matrix(const Stack& s) {
  hopper::FloatMatrix t;
  t.data = static_cast<const char*>(s.data);
  t.dtype = float_kind(s.dtype);
  t.row_stride = s.row_stride;
  t.column_stride = s.column_stride;
  t.batch_stride = s.batch_stride;
  const int vector = 16 / t.element_bytes();
  t.aligned = reinterpret_cast<uintptr_t>(s.data) % 16 == 0 && s.column_stride == 1 &&
              s.row_stride % vector == 0 && s.batch_stride % vector == 0;
  return t;
}

Status fill_epilogue(const Call& call, const Operands& o, hopper::EpilogueArguments* e) {
  e->m = static_cast<int>(o.out.rows);
  e->n = static_cast<int>(o.out.columns);
  e->activation = static_cast<int>(call.integer(kActivation));
  if (call.has(kAlpha)) e->alpha = call.tensor(kAlpha).as<float>();
  if (call.has(kBias)) {
    const TensorView& bias = call.tensor(kBias);
    e->bias = float_matrix({bias.data, bias.dtype, 1, bias.shape[0], 1, 0, bias.strides[0], 0});
  }
  if (o.residual.data) e->residual = float_matrix(o.residual);
  e->out = float_matrix(o.out);
  const BoxedTensor boxes = boxes_of(o.out, true, true);
  // Rows of the copy engine end at multiples of 16 bytes.
  e->by_boxes = e->out.element_bytes() == 2 && e->out.column_stride == 1 && e->n % 8 == 0 &&
                e->activation == 0 && !e->bias.data && !e->residual.data && !*refuse_boxes(boxes);
  return e->by_boxes ? make_tensor_map(boxes, &e->out_map) : Status();
}

template <class C>
Status start(const Call& call, const Operands& o, int sm_count) {
  HopperJob job{};
  BoxedTensor a = boxes_of(o.a, true, C::kAlongK_A);
  BoxedTensor b = boxes_of(o.b, false, C::kAlongK_B);
  if (C::kAlongK_A) a.box[1] = hopper::kTileM;
  if (C::kAlongK_B) b.box[1] = C::kTileN;
  PESTLE_TRY(make_tensor_map(a, &job.tiles.a));
  PESTLE_TRY(make_tensor_map(b, &job.tiles.b));
  PESTLE_TRY(fill_epilogue(call, o, &job.epilogue));
  job.tiles.m_tiles = static_cast<int>(ceil_div(o.out.rows, hopper::kTileM));
  job.tiles.n_tiles = static_cast<int>(ceil_div(o.out.columns, C::kTileN));
  job.tiles.k_steps = static_cast<int>(ceil_div(o.a.columns, hopper::kRowBytes / 2));
  const int64_t total = o.out.batches * job.tiles.m_tiles * job.tiles.n_tiles;
  if (total > INT_MAX) return unsupported("matmul: more than 2^31 tiles");
  job.tiles.total = static_cast<int>(total);
  const size_t bytes = sizeof(hopper::MatmulMemory<C::kTileN, C::kStages>) + 1024;
  PESTLE_TRY(allow_memory<C>(device_index(call), bytes));
  return launch(call, "matmul_hopper",
                {std::min<int64_t>(total, sm_count), hopper::kMatmulThreads, bytes},
                hopper_kernel<C>, job);
}

// The tile that wastes least: rounds of tiles over the GPU, times a tile's columns, with what
// narrow tiles lose by reading more of a for each product.
int choose_tile_n(int64_t m, int64_t n, int64_t batches, int sm_count) {
  struct Candidate {
    int tile_n;
    double slowdown;
  };
  constexpr Candidate kCandidates[] = {{256, 1.0}, {192, 1.0}, {128, 1.04}};
  int best = 256;
  double least = 0;
  for (const Candidate& c : kCandidates) {
    const int64_t tiles = ceil_div(m, hopper::kTileM) * ceil_div(n, c.tile_n) * batches;
    const double cost = static_cast<double>(ceil_div(tiles, sm_count)) * c.tile_n * c.slowdown;
    if (least == 0 || cost < least) {
      least = cost;
      best = c.tile_n;
    }
  }
  return best;
}

template <Product kProduct, bool kA_AlongK, bool kB_AlongK>
Status start_tile(const Call& call, const Operands& o) {
  const int sm_count = multiprocessors(device_index(call));
  switch (choose_tile_n(o.out.rows, o.out.columns, o.out.batches, sm_count)) {
    case 256:
      return start<hopper::MatmulConfig<kProduct, 256, 4, kA_AlongK, kB_AlongK>>(call, o, sm_count);
    case 192:
      return start<hopper::MatmulConfig<kProduct, 192, 4, kA_AlongK, kB_AlongK>>(call, o, sm_count);
    default:
      return start<hopper::MatmulConfig<kProduct, 128, 6, kA_AlongK, kB_AlongK>>(call, o, sm_count);
  }
}

template <Product kProduct>
Status start_product(const Call& call, const Operands& o) {
  if (o.a_along_k && o.b_along_k) return start_tile<kProduct, true, true>(call, o);
  if (o.a_along_k) return start_tile<kProduct, true, false>(call, o);
  if (o.b_along_k) return start_tile<kProduct, false, true>(call, o);
  return start_tile<kProduct, false, false>(call, o);
}

Status run_hopper(const Call& call) {
  Operands o;
  const std::string why = read_operands(call, &o);
  if (!why.empty()) return unsupported(why);
  return call.tensor(kA).dtype == DType::kBF16 ? start_product<Product::kBf16>(call, o)
                                               : start_product<Product::kF16>(call, o);
}

constexpr Impl kImpls[] = {
    {.id = "cuda/matmul_hopper",
     .device = DeviceType::kCuda,
     .min_compute_capability = 90,
     .refuses = refuses_hopper,
     .run = run_hopper},
    {.id = "cuda/matmul_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::matmul
