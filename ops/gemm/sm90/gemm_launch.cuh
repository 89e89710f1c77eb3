// Starting the GEMM of gemm_warp_specialized.cuh: operands as TMA reads them, the epilogue's
// arguments, the tile. For the .cu files of ops that multiply.
#pragma once

#include "backends/cuda/host/early_launch.h"
#include "backends/cuda/host/launch_together.h"
#include "backends/cuda/host/runtime.h"
#include "backends/cuda/host/tensor_map.h"
#include "ops/gemm/cpu/quant_linear.h"
#include "ops/gemm/epilogue/fused_epilogue.cuh"
#include "ops/gemm/select/gemm_tuned.h"
#include "ops/gemm/sm90/gemm_warp_specialized.cuh"

namespace pestle::ops {

namespace hopper = cuda::hopper;
using cuda::BoxedTensor;

inline std::string refuse_machine(const Machine& machine) {
  if (machine.compute_capability != 90) return "needs compute capability 9.0 (Hopper)";
  return cuda::portable() ? "needs code for sm_90a, this build has portable code only" : "";
}

// The same for a call that is already known to run on a GPU.
inline bool on_hopper(const Call& call) {
  return !cuda::portable() && cuda::compute_capability(cuda::device_index(call)) == 90;
}

// A stack of matrices with one distance between them; strides in elements.
struct Stack {
  const void* data = nullptr;
  DType dtype = DType::kNone;
  int64_t rows = 0, columns = 0, batches = 1;
  int64_t row_stride = 0, column_stride = 0, batch_stride = 0;
};

// False when the leading dimensions are not evenly spaced.
inline bool make_stack(const TensorView& t, Stack* s) {
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

// The operand as TMA reads it; `rows` is what is not k.
inline BoxedTensor boxes_of(const Stack& s, bool k_is_columns, bool along_k) {
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
  t.box[0] = hopper::kRowBytes / bytes;
  t.box[1] = 64;
  return t;
}

inline bool lies_along_k(const Stack& s, bool k_is_columns) {
  return (k_is_columns ? s.column_stride : s.row_stride) == 1 ||
         (k_is_columns ? s.columns : s.rows) == 1;
}

// a is M x K, b is K x N.
struct Operands {
  Stack a, b, out, residual;
  bool a_along_k = true, b_along_k = true;
};

inline std::string refuse_operand(const char* name, const Stack& s, bool k_is_columns,
                                  bool along_k) {
  const int64_t inner = along_k ? 1 : (k_is_columns ? s.row_stride : s.column_stride);
  if (inner != 1 && (k_is_columns ? s.rows : s.columns) != 1)
    return std::string(name) + " has neighbouring elements neither along k nor across it";
  const char* why = cuda::refuse_boxes(boxes_of(s, k_is_columns, along_k));
  return *why ? std::string(name) + " " + why : "";
}

inline std::string refuse_operands(const Operands& o) {
  if (o.a.columns == 0 || o.out.rows == 0 || o.out.columns == 0 || o.out.batches == 0)
    return "is for products that are not empty";
  if (o.a.rows > INT_MAX / 2 || o.out.columns > INT_MAX / 2 || o.a.columns > INT_MAX / 2)
    return "M, N and K must be below 2^30";
  const std::string why = refuse_operand("a", o.a, true, o.a_along_k);
  return why.empty() ? refuse_operand("b", o.b, false, o.b_along_k) : why;
}

// Loads of whole elements: of these arguments, those that are present begin at one.
inline std::string refuse_misaligned(const Call& call, std::initializer_list<int> tensors) {
  for (const int i : tensors) {
    if (call.has(i) &&
        reinterpret_cast<uintptr_t>(call.tensor(i).data) % dtype_bytes(call.tensor(i).dtype))
      return std::string(call.spec->args[static_cast<size_t>(i)].name) +
             " does not begin at a multiple of its element's size";
  }
  return "";
}

struct GemmJob {
  hopper::GemmTiles tiles;
  hopper::EpilogueArguments epilogue;
};

// What split-K needs, for a contract with symbols M and N and so many matrices: counts, and the
// sums of splits, of which there are no more than kMostParts of 128 x 256.
#define PESTLE_SPLIT_K_BYTES(batches) \
  "2048 + min(" PESTLE_MOST_SPLIT_K_BYTES ", 28*" batches "*round_up(M,128)*round_up(N,256))"
#define PESTLE_MOST_SPLIT_K_BYTES "17301504"
constexpr int64_t kCountBytes = 1536;
static_assert(kMostParts * 128 * 256 * 4 == 17301504 && kMostSplitsOfK == 8 &&
              kMostParts * 2 * 4 <= kCountBytes);

template <class C>
__global__ void __launch_bounds__(hopper::kGemmThreads, 1)
    gemm_kernel(const __grid_constant__ GemmJob job) {
#if PESTLE_HOPPER
  hopper::WarpSpecializedGemm<C>::run(job.tiles,
                                      hopper::FusedEpilogue<C::kScaled, C::kPairs>{job.epilogue});
#endif
}

inline hopper::Float float_kind(DType dtype) {
  return dtype == DType::kF32    ? hopper::Float::kF32
         : dtype == DType::kBF16 ? hopper::Float::kBf16
                                 : hopper::Float::kF16;
}

inline hopper::FloatMatrix float_matrix(const Stack& s) {
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

// Where the result goes and what is added to it.
inline void fill_output_values(const Operands& o, hopper::EpilogueArguments* e) {
  e->m = static_cast<int>(o.out.rows);
  e->n = static_cast<int>(o.out.columns);
  e->out = float_matrix(o.out);
  if (o.residual.data) e->residual = float_matrix(o.residual);
}

// Can TMA move out and residual? Its rows end at multiples of 16 bytes.
inline bool moves_by_boxes(const Operands& o) {
  const auto takes = [&](const Stack& s) {
    return dtype_bytes(s.dtype) == 2 && s.column_stride == 1 &&
           !*cuda::refuse_boxes(boxes_of(s, true, true));
  };
  return o.out.columns % 8 == 0 && takes(o.out) &&
         (!o.residual.data || (o.residual.dtype == o.out.dtype && takes(o.residual)));
}

// The same, and whether TMA moves them.
inline Status fill_output(const Operands& o, hopper::EpilogueArguments* e) {
  fill_output_values(o, e);
  e->by_boxes = moves_by_boxes(o);
  if (!e->by_boxes) return {};
  PESTLE_TRY(cuda::make_tensor_map(boxes_of(o.out, true, true), &e->out_map));
  return o.residual.data ? cuda::make_tensor_map(boxes_of(o.residual, true, true), &e->residual_map)
                         : Status();
}

inline hopper::FloatMatrix bias_row(const TensorView& bias) {
  return float_matrix({bias.data, bias.dtype, 1, bias.shape[0], 1, 0, bias.strides[0], 0});
}

// Why the kernel, which reads these operands, has not the extended epilogue (pairs, gate, beta)
// that the call wants.
// `scaled`: factors of columns are in the epilogue.
inline std::string refuse_extended_parts(const Call& call, int first, const Operands& o,
                                         bool scaled) {
  const bool pairs = call.integer(first + kGatedPlace) != 0;
  const bool gate = call.has(first + kGatePlace);
  if (pairs && (gate || o.residual.data)) return "gated: has no gate or residual beside pairs";
  if (pairs && (!o.a_along_k || !moves_by_boxes(o)))
    return "gated: needs a along k and out in 16 bits, its rows at multiples of 16 bytes";
  if (gate) {
    const TensorView& g = call.tensor(first + kGatePlace);
    int64_t row = 0;
    if (!even_rows(g, row)) return "gate's rows are not dense and evenly spaced";
    const int64_t rows = o.out.batches * o.out.rows, each = rows / row_count(g);
    if (rows > INT_MAX) return "gate: is for fewer than 2^31 rows";
    if (each % o.out.rows != 0 && (o.out.rows % each != 0 || each % hopper::kTileM != 0))
      return "gate: its row changes within 128 rows of out";
    if (scaled && call.integer(first + 3) != 0) return "gate: no activation before it";
  }
  return refuse_misaligned(call, {first + kBetaPlace, first + kGatePlace});
}

// Arguments alpha, bias, residual, activation stand side by side from `first` on, as kEpilogueArgs.
inline void fill_factors(const Call& call, int first, hopper::EpilogueArguments* e) {
  e->activation = static_cast<int>(call.integer(first + 3));
  if (call.has(first)) e->alpha = call.tensor(first).as<float>();
  if (call.has(first + 1)) e->bias = bias_row(call.tensor(first + 1));
}
inline void fill_extended_parts(const Call& call, int first, const Operands& o,
                                hopper::EpilogueArguments* e) {
  if (call.has(first + kBetaPlace)) e->beta = call.tensor(first + kBetaPlace).as<float>();
  if (call.has(first + kGatePlace)) {
    const TensorView& g = call.tensor(first + kGatePlace);
    Stack rows{g.data, g.dtype, row_count(g), row_length(g), 1, 0, 1, 0};
    even_rows(g, rows.row_stride);
    e->gate = float_matrix(rows);
    e->rows_per_gate = static_cast<int>(o.out.batches * o.out.rows / rows.rows);
  }
  const int64_t gated = call.integer(first + kGatedPlace);
  e->pairs = gated != 0;
  const int half = static_cast<int>(o.out.columns);
  e->first_of_pairs = gated == 2 ? half : 0;
  e->last_of_pairs = gated == 1 ? half : 0;
}
inline Status fill_epilogue(const Call& call, int first, const Operands& o,
                            hopper::EpilogueArguments* e) {
  fill_factors(call, first, e);
  fill_extended_parts(call, first, o, e);
  return fill_output(o, e);
}
// The same without TMA.
inline void fill_epilogue_values(const Call& call, int first, const Operands& o,
                                 hopper::EpilogueArguments* e) {
  fill_factors(call, first, e);
  fill_output_values(o, e);
}

// Starts the last tiles by split-K; the job's units are those of whole tiles so far.
template <class C>
Status start_split_k(const Call& call, const char* name, const TilePlan& tile,
                     const cuda::Grid& grid, GemmJob job) {
  hopper::GemmTiles& t = job.tiles;
  const int64_t split = tile.tiles - tile.whole;
  auto* memory = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(call.workspace) + 255) &
                                         ~uintptr_t{255});
  t.told = reinterpret_cast<uint32_t*>(memory);
  t.parts = memory + kCountBytes;
  t.splits = tile.splits;
  t.whole = static_cast<int>(tile.whole);
  t.units = static_cast<int>(tile.whole + split * tile.splits);
  cuda::Grid all = grid;
  all.blocks = tile.whole > 0 ? grid.blocks : t.units;
  return cuda::launch_together(call, name, all, gemm_kernel<C>, job);
}

// `job` comes with its epilogue filled, and the scales of blocks. `split_k`: in the call's
// workspace (PESTLE_SPLIT_K_BYTES), where they are faster.
template <class C>
Status start_warp_specialized(const Call& call, const char* name, const Operands& o, GemmJob job,
                              bool split_k = false) {
  constexpr int kElementBytes = hopper::is_8_bit(C::kWgmma) ? 1 : 2;
  BoxedTensor a = boxes_of(o.a, true, C::kAlongK_A);
  BoxedTensor b = boxes_of(o.b, false, C::kAlongK_B);
  if (C::kAlongK_A) a.box[1] = hopper::kTileM;
  constexpr int kColumns = C::kPairs ? C::kTileN / 2 : C::kTileN;  // of out
  if (C::kAlongK_B) b.box[1] = kColumns;
  PESTLE_TRY(cuda::make_tensor_map(a, &job.tiles.a));
  PESTLE_TRY(cuda::make_tensor_map(b, &job.tiles.b));
  job.tiles.first_of_pairs = job.epilogue.first_of_pairs;
  job.tiles.last_of_pairs = job.epilogue.last_of_pairs;
  job.tiles.k_steps =
      static_cast<int>(cuda::ceil_div(o.a.columns, hopper::kRowBytes / kElementBytes));
  // Wide tiles of sums along all of k are 1 to 3 % slower with a lead.
  const bool leads = C::kTileN == 128 || C::kSum != hopper::Sum::kDirect || C::kPairs;
  job.tiles.lead = leads && job.tiles.k_steps > 2 * hopper::kLead ? hopper::kLead : 0;
  // Chunks of out lie in the last stages, where there are as many.
  job.tiles.kept =
      C::EpilogueMode::kOverlapped ? 0 : std::max(0, kColumns / 64 - hopper::kOwnChunks);
  if (!job.epilogue.by_boxes || job.tiles.kept > job.tiles.k_steps) {
    job.epilogue.by_boxes = false;
    job.tiles.kept = 0;
  }
  if (!job.tiles.cover(o.out.rows, o.out.columns, o.out.batches, kColumns))
    return unsupported(std::string(name) + ": more than 2^31 tiles");
  const size_t bytes = sizeof(hopper::GemmMemory<C::kTileN, C::kStages, C::kOwn>);
  static_assert(sizeof(hopper::GemmMemory<C::kTileN, C::kStages, C::kOwn>) <= 227 * 1024);
  const int device = cuda::device_index(call);
  const int multiprocessors = cuda::multiprocessors(device);
  const cuda::Grid grid{std::min(job.tiles.total, multiprocessors), hopper::kGemmThreads, bytes};
  if (C::kCanSplitK && split_k) {
    const TilePlan tile = with_split_k(
        tile_plan_of(kColumns, o.out.rows, o.out.columns, o.out.batches, multiprocessors),
        job.tiles.k_steps, multiprocessors);
    if (tile.splits > 1) return start_split_k<C>(call, name, tile, grid, job);
  }
  return cuda::launch_early(call, name, grid, gemm_kernel<C>, job);
}

// What a tuner's choices are looked up by.
inline GemmKey key_of(const Operands& o, GemmSums sums) {
  return {o.a.dtype,   o.b.dtype,     o.out.dtype, o.out.rows,  o.out.columns,
          o.a.columns, o.out.batches, o.a_along_k, o.b_along_k, sums};
}

template <hopper::WgmmaType kWgmma, hopper::Sum kSum>
constexpr GemmSums sums_of() {
  if (kSum == hopper::Sum::kBlocks) return GemmSums::kBlocks;
  if (kSum == hopper::Sum::kPromoted) return GemmSums::kAccurate;
  if (kWgmma == hopper::WgmmaType::kInt8) return GemmSums::kInteger;
  return hopper::is_8_bit(kWgmma) ? GemmSums::kFast : GemmSums::kF32;
}

// Columns of the tile, by a tuner's choice of this path or by rule; `split_k`: of split-K's path.
inline int tile_columns(const Call& call, const Operands& o, GemmSums sums, bool split_k = false) {
  const int device = cuda::device_index(call);
  const GemmKey key = key_of(o, sums);
  GemmOptions options{90, cuda::multiprocessors(device)};
  options.split_k = split_k;
  const GemmPath path = split_k ? GemmPath::kSplitK : GemmPath::kTile;
  const GemmChoice* tuned =
      tuned_choice(key, cuda::compute_capability(device), options.multiprocessors);
  return choose_path(key, options, tuned && tuned->path == path ? tuned : nullptr).variant;
}

// Of pairs: columns of the GEMM, twice out's.
inline int pair_columns(const Call& call, const Operands& o) {
  return choose_tile_plan(o.out.rows, 2 * o.out.columns, o.out.batches,
                          cuda::multiprocessors(cuda::device_index(call)), true)
      .n;
}

// The instance for the shape's tile.
template <hopper::WgmmaType kWgmma, bool kA_AlongK, bool kB_AlongK,
          hopper::Sum kSum = hopper::Sum::kDirect, bool kScaled = false, bool kPairs = false>
Status start_tile(const Call& call, const char* name, const Operands& o, const GemmJob& job,
                  bool split_k = false) {
  constexpr bool kHalves = kSum != hopper::Sum::kDirect || kPairs;
  const int columns =
      kPairs ? pair_columns(call, o) : tile_columns(call, o, sums_of<kWgmma, kSum>(), split_k);
  using hopper::GemmConfig;
  if constexpr (!kHalves) {
    if (columns == 192)
      return start_warp_specialized<
          GemmConfig<kWgmma, 192, 4, kA_AlongK, kB_AlongK, kSum, kScaled>>(call, name, o, job,
                                                                           split_k);
  }
  if (columns == 256)
    return start_warp_specialized<
        GemmConfig<kWgmma, 256, 4, kA_AlongK, kB_AlongK, kSum, kScaled, kPairs>>(call, name, o, job,
                                                                                 split_k);
  return start_warp_specialized<
      GemmConfig<kWgmma, 128, 6, kA_AlongK, kB_AlongK, kSum, kScaled, kPairs>>(call, name, o, job,
                                                                               split_k);
}

}  // namespace pestle::ops
