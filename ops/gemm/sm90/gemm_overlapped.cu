// The instances of gemm_warp_specialized.cuh for bf16 and f16 whose epilogue is overlapped with the
// next tile's multiplications (WarpSpecializedGemm::accumulate_overlapped).
#include "ops/gemm/sm90/gemm_dense.cuh"

namespace pestle::ops {
namespace {

using hopper::WgmmaType;

template <WgmmaType kWgmma, bool kB_AlongK, int kColumns, int kActivation, bool kAdded>
Status start_overlapped(const Call& call, const char* name, const Operands& o, const GemmJob& job) {
  using EpilogueMode = hopper::Overlapped<kActivation, kAdded, kWgmma == WgmmaType::kBf16>;
  using hopper::GemmConfig;
  return start_warp_specialized<GemmConfig<kWgmma, kColumns, 4, true, kB_AlongK,
                                           hopper::Sum::kDirect, false, false, EpilogueMode>>(
      call, name, o, job);
}

template <WgmmaType kWgmma, bool kB_AlongK, int kColumns, bool kAdded>
Status start_activation(const Call& call, const char* name, const Operands& o, const GemmJob& job) {
  const int activation = job.epilogue.activation;
  if constexpr (kAdded) {
    if (activation == 0)
      return start_overlapped<kWgmma, kB_AlongK, kColumns, 0, true>(call, name, o, job);
  }
  if (activation == 1)
    return start_overlapped<kWgmma, kB_AlongK, kColumns, 1, kAdded>(call, name, o, job);
  if (activation == 2)
    return start_overlapped<kWgmma, kB_AlongK, kColumns, 2, kAdded>(call, name, o, job);
  return start_overlapped<kWgmma, kB_AlongK, kColumns, 3, kAdded>(call, name, o, job);
}

template <WgmmaType kWgmma, bool kB_AlongK>
Status start_columns(const Call& call, const char* name, const Operands& o, const GemmJob& job,
                     int columns) {
  const bool added = job.epilogue.residual.data != nullptr;
  if (columns == 256)
    return added ? start_activation<kWgmma, kB_AlongK, 256, true>(call, name, o, job)
                 : start_activation<kWgmma, kB_AlongK, 256, false>(call, name, o, job);
  return added ? start_activation<kWgmma, kB_AlongK, 192, true>(call, name, o, job)
               : start_activation<kWgmma, kB_AlongK, 192, false>(call, name, o, job);
}

template <WgmmaType kWgmma>
Status start_gemm(const Call& call, const char* name, const Operands& o, const GemmJob& job,
                  int columns) {
  return o.b_along_k ? start_columns<kWgmma, true>(call, name, o, job, columns)
                     : start_columns<kWgmma, false>(call, name, o, job, columns);
}

}  // namespace

int overlapped_columns(const Call& call, const Operands& o, const hopper::EpilogueArguments& e) {
  if (e.activation == 0 && !e.residual.data) return 0;  // as fast as the kernel that finishes first
  if (e.pairs || !e.by_boxes || e.gate.data || !o.a_along_k || o.out.dtype != o.a.dtype) return 0;
  if (cuda::ceil_div(o.a.columns, hopper::kRowBytes / 2) < hopper::kOverlapSteps) return 0;
  const int columns = tile_columns(call, o, GemmSums::kF32);
  if (columns < 192) return 0;
  const int multiprocessors = cuda::multiprocessors(cuda::device_index(call));
  const TilePlan tiles =
      tile_plan_of(columns, o.out.rows, o.out.columns, o.out.batches, multiprocessors);
  return tiles.waves > 1 ? columns : 0;
}

Status start_overlapped_gemm(const Call& call, const char* name, const Operands& o,
                             const GemmJob& job, int columns) {
  return o.a.dtype == DType::kBF16 ? start_gemm<WgmmaType::kBf16>(call, name, o, job, columns)
                                   : start_gemm<WgmmaType::kF16>(call, name, o, job, columns);
}

}  // namespace pestle::ops
