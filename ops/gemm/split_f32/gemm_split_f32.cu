// The kernels of ops/gemm/split_f32/gemm_split_f32.cuh.
#include "ops/gemm/split_f32/gemm_split_f32.cuh"

#include "ops/gemm/split_f32/split_parts.cuh"

namespace pestle::ops {

template <Route kRouteOf, int kPartsOf, int kTileNOf, int kStagesOf, bool kA_AlongK, bool kB_AlongK>
struct SplitF32Config {
  static constexpr Route kRoute = kRouteOf;
  static constexpr hopper::WgmmaType kWgmma =
      kRouteOf == Route::kF16 ? hopper::WgmmaType::kF16 : hopper::WgmmaType::kBf16;
  static constexpr int kParts = kPartsOf;
  static constexpr int kTileN = kTileNOf;
  static constexpr int kStages = kStagesOf;
  static constexpr bool kAlongK_A = kA_AlongK;
  static constexpr bool kAlongK_B = kB_AlongK;
  static constexpr bool kScaled = kRouteOf == Route::kF16;
};

namespace {

using namespace pestle::cuda;
using hopper::Chunks;
using hopper::GemmTiles;
using hopper::kChunkBytes;
using hopper::kRowBytes;
using hopper::kTileM;

template <class Config>
struct SplitF32Memory {
  static constexpr int kABytes = kTileM * kRowBytes;
  static constexpr int kBBytes = Config::kTileN * kRowBytes;
  char a[Config::kStages][Config::kParts][kABytes];
  char b[Config::kStages][Config::kParts][kBBytes];
  Chunks out[2];
  uint64_t full[Config::kStages][Config::kParts];
  uint64_t empty[Config::kStages][Config::kParts];
};

struct SplitF32Launch {
  GemmTiles tiles;
  hopper::EpilogueArguments epilogue;
  const SplitF32State* state = nullptr;
  int64_t k = 0;
};

#if PESTLE_HOPPER

using hopper::Ring;
using hopper::Tile;

template <class Config>
struct SplitF32Gemm {
  static constexpr int kParts = Config::kParts;
  static constexpr int kTileN = Config::kTileN;
  static constexpr int kSums = kTileN / 2;
  static constexpr int kStepA = (Config::kAlongK_A ? 32 : 16 * kRowBytes) >> 4;
  static constexpr int kStepB = (Config::kAlongK_B ? 32 : 16 * kRowBytes) >> 4;
  using Memory = SplitF32Memory<Config>;
  using Stages = Ring<Config::kStages>;

  // A part is a matrix of the map's third dimension.
  template <bool kAlongK, int kRows>
  __device__ static void load_part(char* to, const CUtensorMap* map, uint64_t* full, int row, int k,
                                   int part) {
    if constexpr (kAlongK) {
      hopper::load_box(to, map, full, k, row, part);
    } else {
      for (int c = 0; c < kRows / 64; ++c)
        hopper::load_box(to + c * kChunkBytes, map, full, row + c * 64, k, part);
    }
  }

  // Parts come in the order in which they are needed.
  static constexpr int kSecondFirst = kParts == 3;
  __device__ static int part_at(int place) { return place < 2 ? place ^ kSecondFirst : place; }

  __device__ static void produce(Memory& s, const GemmTiles& t) {
    Stages ring;
    for (int i = blockIdx.x; i < t.total; i += gridDim.x) {
      const Tile tile = hopper::tile_at(t, i);
      for (int step = 0; step < t.k_steps; ++step) {
        for (int place = 0; place < kParts; ++place) {
          const int p = part_at(place);
          uint64_t* full = &s.full[ring.stage][p];
          hopper::wait(&s.empty[ring.stage][p], ring.parity ^ 1);
          hopper::arrive_expecting(full, Memory::kABytes + Memory::kBBytes);
          load_part<Config::kAlongK_A, kTileM>(s.a[ring.stage][p], &t.a, full, tile.m * kTileM,
                                               step * 64, p);
          load_part<Config::kAlongK_B, kTileN>(s.b[ring.stage][p], &t.b, full, tile.n * kTileN,
                                               step * 64, p);
        }
        ring.advance();
      }
    }
  }

  // sum (+)= part pa of A times part pb of B, 64 of k.
  __device__ static void multiply_parts(Memory& s, int stage, int consumer, int pa, int pb,
                                        bool anew, float (&sum)[kSums]) {
    const uint64_t a =
        hopper::describe<Config::kAlongK_A>(s.a[stage][pa] + consumer * kChunkBytes, kChunkBytes);
    const uint64_t b = hopper::describe<Config::kAlongK_B>(s.b[stage][pb], kChunkBytes);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      hopper::multiply<Config::kWgmma, kTileN, Config::kAlongK_A, Config::kAlongK_B>(
          sum, a + i * kStepA, b + i * kStepB, !anew || i > 0);
  }

  // The compiler must not move what uses these registers across it.
  __device__ static void defer(float (&v)[kSums]) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) asm volatile("" : "+f"(v[i])::"memory");
  }

  __device__ static void release(Memory& s, int stage, int part) {
    if (stage >= 0 && threadIdx.x % 128 == 0) hopper::arrive(&s.empty[stage][part]);
  }

  __device__ static void accumulate_one(Memory& s, const GemmTiles& t, Stages& ring, int consumer,
                                        float (&sum)[kSums]) {
    int before = -1;
    for (int step = 0; step < t.k_steps; ++step) {
      hopper::wait(&s.full[ring.stage][0], ring.parity);
      hopper::fence_wgmma();
      multiply_parts(s, ring.stage, consumer, 0, 0, step == 0, sum);
      hopper::commit_wgmma();
      hopper::wait_wgmma<1>();
      release(s, before, 0);
      before = ring.stage;
      ring.advance();
    }
    hopper::wait_wgmma<0>();
    defer(sum);
    release(s, before, 0);
  }

  __device__ static void add(float (&sum)[kSums], float (&first)[kSums]) {
    defer(first);
#pragma unroll
    for (int i = 0; i < kSums; ++i) sum[i] += first[i];
  }

  // hi*hi; then hi*lo and lo*hi, during which hi*hi is added.
  __device__ static void accumulate_two(Memory& s, const GemmTiles& t, Stages& ring, int consumer,
                                        float (&sum)[kSums], float (&first)[kSums],
                                        float (&rest)[kSums]) {
    int before = -1;
    for (int step = 0; step < t.k_steps; ++step) {
      const int stage = ring.stage;
      hopper::wait(&s.full[stage][0], ring.parity);
      hopper::fence_wgmma();
      multiply_parts(s, stage, consumer, 0, 0, true, first);
      hopper::commit_wgmma();
      hopper::wait_wgmma<1>();
      release(s, before, 0);
      release(s, before, 1);
      hopper::wait(&s.full[stage][1], ring.parity);
      multiply_parts(s, stage, consumer, 0, 1, step == 0, rest);
      multiply_parts(s, stage, consumer, 1, 0, false, rest);
      hopper::commit_wgmma();
      hopper::wait_wgmma<1>();
      add(sum, first);
      before = stage;
      ring.advance();
    }
    hopper::wait_wgmma<0>();
    defer(rest);
    release(s, before, 0);
    release(s, before, 1);
  }

  // Of high, middle, low: middle*middle; the two of high and middle, high*high; the two of high
  // and low, during which high*high is added.
  __device__ static void accumulate_three(Memory& s, const GemmTiles& t, Stages& ring, int consumer,
                                          float (&sum)[kSums], float (&first)[kSums],
                                          float (&rest)[kSums]) {
    int before = -1;
    for (int step = 0; step < t.k_steps; ++step) {
      const int stage = ring.stage;
      hopper::wait(&s.full[stage][1], ring.parity);
      hopper::fence_wgmma();
      multiply_parts(s, stage, consumer, 1, 1, step == 0, rest);
      hopper::commit_wgmma();
      hopper::wait_wgmma<1>();
      release(s, before, 0);
      release(s, before, 2);
      hopper::wait(&s.full[stage][0], ring.parity);
      multiply_parts(s, stage, consumer, 0, 1, false, rest);
      multiply_parts(s, stage, consumer, 1, 0, false, rest);
      hopper::commit_wgmma();
      multiply_parts(s, stage, consumer, 0, 0, true, first);
      hopper::commit_wgmma();
      hopper::wait_wgmma<1>();
      release(s, stage, 1);
      hopper::wait(&s.full[stage][2], ring.parity);
      multiply_parts(s, stage, consumer, 0, 2, false, rest);
      multiply_parts(s, stage, consumer, 2, 0, false, rest);
      hopper::commit_wgmma();
      hopper::wait_wgmma<1>();
      add(sum, first);
      before = stage;
      ring.advance();
    }
    hopper::wait_wgmma<0>();
    defer(rest);
    release(s, before, 0);
    release(s, before, 2);
  }

  __device__ static void accumulate(Memory& s, const GemmTiles& t, Stages& ring, int consumer,
                                    float (&sum)[kSums]) {
    constexpr float kRestFactor = Config::kRoute == Route::kF16 ? 0x1p-11f : 1.0f;
    float first[kSums], rest[kSums];
#pragma unroll
    for (int i = 0; i < kSums; ++i) sum[i] = 0;
    if constexpr (kParts == 2)
      accumulate_two(s, t, ring, consumer, sum, first, rest);
    else
      accumulate_three(s, t, ring, consumer, sum, first, rest);
#pragma unroll
    for (int i = 0; i < kSums; ++i) sum[i] = fmaf(rest[i], kRestFactor, sum[i]);
  }

  __device__ static void init(Memory& s) {
    for (int i = 0; i < Config::kStages * kParts; ++i) {
      hopper::init_barrier(&s.full[i / kParts][i % kParts], 1);
      hopper::init_barrier(&s.empty[i / kParts][i % kParts], 2);
    }
    hopper::publish_barriers();
  }

  template <class Epilogue>
  __device__ static void consume(Memory& s, const GemmTiles& t, const Epilogue& epilogue,
                                 int consumer) {
    Stages ring;
    for (int i = blockIdx.x; i < t.total; i += gridDim.x) {
      float sum[kSums];
      const Tile tile = hopper::tile_at(t, i);
      const auto factors = epilogue.row_factors(tile, consumer);
      if constexpr (kParts == 1)
        accumulate_one(s, t, ring, consumer, sum);
      else
        accumulate(s, t, ring, consumer, sum);
      epilogue.finish_by_rows(s.out[consumer].rows[0], tile, consumer, factors, sum);
    }
  }

  template <class Epilogue>
  __device__ static void run(const GemmTiles& t, const Epilogue& epilogue) {
    extern __shared__ __align__(1024) char raw[];
    Memory& s = *reinterpret_cast<Memory*>(raw);
    if (threadIdx.x == 0) init(s);
    __syncthreads();
    const int warpgroup = threadIdx.x / 128;
    if (warpgroup == 0) {
      hopper::give_registers<40>();
      if (threadIdx.x == 0) produce(s, t);
    } else {
      hopper::take_registers<232>();
      consume(s, t, epilogue, warpgroup - 1);
    }
  }
};

#endif  // PESTLE_HOPPER

template <class C>
__global__ void __launch_bounds__(hopper::kGemmThreads, 1)
    split_f32_gemm_kernel(const __grid_constant__ SplitF32Launch job) {
#if PESTLE_HOPPER
  if (route_of(*job.state, job.k) != C::kRoute) return;
  SplitF32Gemm<C>::run(job.tiles, hopper::FusedEpilogue<C::kScaled>{job.epilogue});
#endif
}

// The product in f32 for what no parts represent.
__global__ void __launch_bounds__(kEdgeOfTile* kEdgeOfTile)
    plain_gemm_kernel(const __grid_constant__ FallbackGemm job, int64_t batch,
                      const SplitF32State* state) {
  if (route_of(*state, job.k) != Route::kPlain) return;
  __shared__ float a[kEdgeOfTile][kEdgeOfTile + 1];
  __shared__ float b[kEdgeOfTile][kEdgeOfTile + 1];
  const int x = threadIdx.x % kEdgeOfTile;
  const int y = threadIdx.x / kEdgeOfTile;
  for (int64_t tile = blockIdx.x; tile < job.m_tiles * job.n_tiles; tile += gridDim.x) {
    const int64_t m = tile / job.n_tiles * kEdgeOfTile + y;
    const int64_t n = tile % job.n_tiles * kEdgeOfTile + x;
    float sum = 0;
    for (int64_t k0 = 0; k0 < job.k; k0 += kEdgeOfTile) {
      const int64_t ka = k0 + x, kb = k0 + y;
      a[y][x] = m < job.m && ka < job.k ? job.a.load(job.a.at(batch * job.m + m, ka)) : 0.0f;
      b[y][x] = n < job.n && kb < job.k ? job.b.load(job.b.at(batch * job.k + kb, n)) : 0.0f;
      __syncthreads();
      const int steps = static_cast<int>(min(job.k - k0, int64_t{kEdgeOfTile}));
      for (int i = 0; i < steps; ++i) sum = fmaf(a[y][i], b[i][x], sum);
      __syncthreads();
    }
    if (m < job.m && n < job.n) finish_fallback(job, batch, m, n, sum);
  }
}

// ---- starting -----------------------------------------------------------------------------------

struct Memory {
  char* next;
  template <class T>
  T* take(int64_t count) {
    next = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(next) + 255) & ~uintptr_t{255});
    T* taken = reinterpret_cast<T*>(next);
    next += count * static_cast<int64_t>(sizeof(T));
    return taken;
  }
};

int64_t round_up_8(int64_t n) { return (n + 7) / 8 * 8; }

// Of a (k are columns) or b (k are rows).
SplitF32Source source_of(const Stack& s, bool k_is_columns, bool along_k) {
  const int64_t other = k_is_columns ? s.rows : s.columns;
  const int64_t other_stride = k_is_columns ? s.row_stride : s.column_stride;
  SplitF32Source p;
  p.k = k_is_columns ? s.columns : s.rows;
  const int64_t k_stride = k_is_columns ? s.column_stride : s.row_stride;
  p.data = static_cast<const float*>(s.data);
  p.rows = along_k;
  p.outer = along_k ? other : p.k;
  p.inner = along_k ? p.k : other;
  p.stride = along_k ? other_stride : k_stride;
  p.vectors = reinterpret_cast<uintptr_t>(p.data) % 16 == 0 && p.stride % 4 == 0;
  p.line = round_up_8(p.inner);
  p.part = p.line * p.outer;
  p.which = k_is_columns ? 0 : 1;
  return p;
}

Status start_columns(const Call& call, const char* name, const SplitF32Source& s) {
  const int64_t column_blocks = ceil_div(s.inner, kSplitF32Columns);
  const Grid grid{column_blocks * ceil_div(s.outer, kSplitF32Run), 256};
  PESTLE_TRY(launch(call, name, grid, largest_of_columns_kernel, s, column_blocks));
  PESTLE_TRY(launch(call, name, grid, split_f32_columns_kernel, s, column_blocks));
  return launch(call, name, {ceil_div(s.inner, 256), 256}, finish_columns_kernel, s);
}

// The parts as TMA reads them.
BoxedTensor parts_of(const SplitF32Source& s, bool along_k, int parts, int rows) {
  BoxedTensor t;
  t.data = s.parts;
  t.element_bytes = 2;
  t.size[0] = s.inner;
  t.size[1] = s.outer;
  t.size[2] = parts;
  t.stride_bytes[0] = s.line * 2;
  t.stride_bytes[1] = s.part * 2;
  t.box[0] = 64;
  t.box[1] = along_k ? rows : 64;
  return t;
}

template <class C>
Status allow_split_f32_memory(int device) {
  static std::atomic<uint64_t> done{0};
  const uint64_t bit = uint64_t{1} << (device & 63);
  if (done.load(std::memory_order_relaxed) & bit) return {};
  PESTLE_ON_DEVICE(device);
  PESTLE_CUDA_TRY(cudaFuncSetAttribute(split_f32_gemm_kernel<C>,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(sizeof(SplitF32Memory<C>))));
  done.fetch_or(bit, std::memory_order_relaxed);
  return {};
}

struct SplitF32Job {
  const Operands& o;
  SplitF32Source a, b;
  SplitF32Launch launch;
};

template <class C>
Status start_route(const Call& call, const char* name, SplitF32Job job) {
  static_assert(sizeof(SplitF32Memory<C>) <= 227 * 1024);
  GemmTiles& t = job.launch.tiles;
  PESTLE_TRY(make_tensor_map(parts_of(job.a, C::kAlongK_A, C::kParts, kTileM), &t.a));
  PESTLE_TRY(make_tensor_map(parts_of(job.b, C::kAlongK_B, C::kParts, C::kTileN), &t.b));
  t.k_steps = static_cast<int>(ceil_div(job.launch.k, 64));
  if (!t.cover(job.o.out.rows, job.o.out.columns, 1, C::kTileN))
    return unsupported(std::string(name) + ": more than 2^31 tiles");
  const int device = device_index(call);
  PESTLE_TRY(allow_split_f32_memory<C>(device));
  return cuda::launch(call, name,
                      {std::min<int64_t>(t.total, multiprocessors(device)), hopper::kGemmThreads,
                       sizeof(SplitF32Memory<C>)},
                      split_f32_gemm_kernel<C>, job.launch);
}

template <bool kA_AlongK, bool kB_AlongK>
Status start_routes(const Call& call, const char* name, const SplitF32Job& job, SplitF32Parts how) {
  const auto start = [&]<class F16, class Bf16>() -> Status {
    PESTLE_TRY(start_route<F16>(call, name, job));
    PESTLE_TRY(launch(call, name, {int64_t{multiprocessors(device_index(call))} * 8, 256},
                      split_f32_bf16_kernel, job.a, job.b));
    return start_route<Bf16>(call, name, job);
  };
  if (how == SplitF32Parts::kOnePart)
    return start
        .template operator()<SplitF32Config<Route::kF16, 1, 256, 4, kA_AlongK, kB_AlongK>,
                             SplitF32Config<Route::kBf16, 2, 128, 3, kA_AlongK, kB_AlongK>>();
  return start.template operator()<SplitF32Config<Route::kF16, 2, 128, 3, kA_AlongK, kB_AlongK>,
                                   SplitF32Config<Route::kBf16, 3, 128, 2, kA_AlongK, kB_AlongK>>();
}

// As if a sample had said that f16 parts won't do.
Status give_up_f16(const Call& call, SplitF32State* state) {
  PESTLE_ON_DEVICE(device_index(call));
  PESTLE_CUDA_TRY(
      cudaMemsetAsync(&state->guessed_tiny, 0x7F, 12, static_cast<cudaStream_t>(call.stream)));
  return {};
}

}  // namespace

std::string refuse_split_f32(const Operands& o) {
  if (o.a.dtype != DType::kF32 || o.b.dtype != DType::kF32) return "a and b must both be f32";
  constexpr int64_t kLeast = 64;
  if (o.a.rows < kLeast || o.a.columns < kLeast || o.b.columns < kLeast)
    return "splitting pays from 64 rows, columns and k on";
  if (o.a.rows > INT_MAX / 2 || o.b.columns > INT_MAX / 2 || o.a.columns > INT_MAX / 2)
    return "M, N and K must be below 2^30";
  constexpr double kLeastOfBatch = 1 << 24;
  const auto size = [](int64_t n) { return static_cast<double>(n); };
  if (o.out.batches > 4 && size(o.a.rows) * size(o.a.columns) * size(o.b.columns) < kLeastOfBatch)
    return "many matrices of less than 2^24 products each take longer one by one";
  const auto scattered = [](const Stack& s) { return s.row_stride != 1 && s.column_stride != 1; };
  if (scattered(o.a)) return "a has no dimension whose elements are neighbours";
  if (scattered(o.b)) return "b has no dimension whose elements are neighbours";
  return "";
}

Status start_split_f32_gemm(const Call& call, const char* name, const Operands& o,
                            const hopper::EpilogueArguments& epilogue, SplitF32Parts how,
                            const FallbackGemm& plain, int64_t batch) {
  SplitF32Job job{o, source_of(o.a, true, o.a_along_k), source_of(o.b, false, o.b_along_k), {}};
  Memory memory{static_cast<char*>(call.workspace)};
  job.a.parts = memory.take<char>(6 * job.a.part);
  job.b.parts = memory.take<char>(6 * job.b.part);
  job.a.factor = memory.take<float>(o.a.rows);
  job.b.factor = memory.take<float>(o.b.columns);
  auto* state = memory.take<SplitF32State>(1);
  char* const cleared = reinterpret_cast<char*>(state);
  for (SplitF32Source* s : {&job.a, &job.b}) {
    const int64_t scales = s->which == 0 ? o.a.rows : o.b.columns;
    s->largest = memory.take<uint32_t>(scales);
    s->large = memory.take<int>(scales);
    s->state = state;
    s->count = how == SplitF32Parts::kOnePart ? 1 : 2;
  }
  PESTLE_TRY(clear(call, cleared, memory.next - cleared));
  if (how == SplitF32Parts::kBf16)
    PESTLE_TRY(give_up_f16(call, state));
  else
    PESTLE_TRY(launch(call, name, {2 * kSamples, 256}, guess_range_kernel, job.a, job.b));
  for (const SplitF32Source* s : {&job.a, &job.b}) {
    PESTLE_TRY(s->rows ? launch(call, name, {s->outer, 256}, split_f32_rows_kernel, *s)
                       : start_columns(call, name, *s));
  }
  job.launch = {{}, epilogue, state, o.a.columns};
  job.launch.epilogue.rows = {job.a.factor, 1};
  job.launch.epilogue.columns = {job.b.factor, 1};
  if (o.a_along_k && o.b_along_k)
    PESTLE_TRY((start_routes<true, true>(call, name, job, how)));
  else if (o.a_along_k)
    PESTLE_TRY((start_routes<true, false>(call, name, job, how)));
  else if (o.b_along_k)
    PESTLE_TRY((start_routes<false, true>(call, name, job, how)));
  else
    PESTLE_TRY((start_routes<false, false>(call, name, job, how)));
  return launch(call, name,
                {int64_t{multiprocessors(device_index(call))} * 8, kEdgeOfTile * kEdgeOfTile},
                plain_gemm_kernel, plain, batch, state);
}

}  // namespace pestle::ops
