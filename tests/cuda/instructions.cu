// Every function of backends/cuda/device/ptx once, and each form that it is used in, so that the
// assembler sees every instruction also where the library's kernels end as PTX. Compiled, not run.
#include "backends/cuda/device/ptx/async_copy.cuh"
#include "backends/cuda/device/ptx/bulk_reduce.cuh"
#include "backends/cuda/device/ptx/cluster.cuh"
#include "backends/cuda/device/ptx/cluster_messages.cuh"
#include "backends/cuda/device/ptx/mma.cuh"
#include "backends/cuda/device/ptx/wgmma_registers.cuh"

namespace pestle::instructions {

using namespace pestle::cuda;

template <warp::Kind kKind, class Sum>
__device__ void add_product(Sum* sums, const uint32_t* w) {
  Sum d[4] = {sums[0], sums[1], sums[2], sums[3]};
  warp::multiply<kKind>(d, w[0], w[1], w[2], w[3], w[4], w[5]);
  sums[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}

__global__ void of_a_warp(float* sums, int* counts, uint32_t* words) {
  __shared__ uint32_t shared[256];
  const uint32_t at = warp::shared_place(shared);
  uint32_t w[6];
  copy_async(shared, words);
  copy_async(at, words, 8);
  copy_async_of_line(at, words, 16);
  copy_word_async(at, words, 2);
  commit_copies();
  wait_for_copies(static_cast<int>(words[0]));
  wait_for_copies<0>();
  wait_for_all_copies();
  arrive_behind_copies(at);
  warp::load_fragments<false>(at, w[0], w[1], w[2], w[3]);
  warp::load_fragments<true>(at, w[2], w[3], w[4], w[5]);
  w[0] ^= warp::load_word(at);
  const warp::Tf32Parts parts = warp::tf32_parts(w[1]);
  const uint2 wide = warp::widen(w[4], words[1] != 0), nans = warp::widen_nans(w[5], wide);
  w[1] = parts.high ^ parts.low ^ wide.x ^ nans.y;
  add_product<warp::Kind::kBf16>(sums, w);
  add_product<warp::Kind::kF16>(sums, w);
  add_product<warp::Kind::kTf32>(sums, w);
  add_product<warp::Kind::kInt8>(counts, w);
}

__global__ void of_a_cluster(float* out) {
  __shared__ float4 own[32];
  __shared__ float2 two[32];
  __shared__ float one[32];
  __shared__ uint32_t word[32];
  __shared__ uint64_t barrier;
  begin_barrier(&barrier);
  cluster_begin();
  cluster_wait();
  cluster_arrive();
  cluster_wait();
  expect_bytes(&barrier, 32);
  store_to_block(own, 1, make_float4(1, 2, 3, 4));
  tell_block(one, &barrier, 1, 1.0f);
  tell_block(word, &barrier, 1, uint32_t{1});
  tell_block(two, &barrier, 1, make_float2(1, 2));
  tell_block(own, &barrier, 1, make_float4(1, 2, 3, 4));
  arrive_at_block(&barrier, 1);
  wait_bytes_here(&barrier, 0);
  wait_bytes(&barrier, 0);
  out[threadIdx.x] =
      own[0].x + two[0].y + one[0] + static_cast<float>(word[0] + shared_of_block(own, 0));
}

// Hopper's, empty elsewhere.
using hopper::WgmmaType;

__global__ void of_the_copy_engine(const __grid_constant__ CUtensorMap map, uint32_t* count,
                                   float* out) {
#if PESTLE_HOPPER
  __shared__ alignas(128) float tile[1024];
  __shared__ uint64_t barrier;
  hopper::prefetch_map(&map);
  hopper::init_barrier(&barrier, 1);
  hopper::publish_barriers();
  hopper::arrive_expecting(&barrier, 4096);
  hopper::prefetch_box(&map, 0, 0, 0);
  hopper::load_box(tile, &map, &barrier, 0, 0, 0);
  hopper::wait(&barrier, 0);
  hopper::arrive(&barrier);
  hopper::arrive_if(&barrier, out != nullptr);
  hopper::fence_async_proxy();
  hopper::fence_async_proxy_of_all();
  hopper::store_box(&map, tile, 0, 0, 0);
  hopper::add_floats(out, tile, 4096);
  hopper::commit_stores();
  hopper::add_four(out, 1, 2, 3, 4);
  hopper::wait_stores_read<0>();
  hopper::wait_stores<0>();
  hopper::count_up(count);
  hopper::wait_count(count, 1);
  hopper::sync_threads(1, 128);
  hopper::arrive_threads(2, 128);
  uint32_t w[4];
  hopper::load_matrices(hopper::shared_address(tile), w);
  hopper::store_matrices(hopper::shared_address(tile), w[3], w[2], w[1], w[0]);
  hopper::store_transposed(hopper::shared_address(tile), w[0], w[1], w[2], w[3]);
  out[threadIdx.x] = hopper::any_thread(3, 128, w[0] != 0) ? 1.0f : 0.0f;
#endif
}

__global__ void __launch_bounds__(256, 1) of_a_warpgroup(float* out) {
#if PESTLE_HOPPER
  if (threadIdx.x < 128)
    hopper::give_registers<40>();
  else
    hopper::take_registers<232>();
  out[threadIdx.x] = 0;
#endif
}

#if PESTLE_HOPPER

template <class T, int kCount>
__device__ void store_sum(const T (&d)[kCount], float* out) {
  T all = 0;
  for (int i = 0; i < kCount; ++i) all += d[i];
  out[threadIdx.x] += static_cast<float>(all);
}

// Sums of one product: multiply(sums, b), b the right side.
template <class T, int kCount, bool kAlongK, class Multiply>
__device__ void add_product_of(const void* tile, float* out, Multiply&& multiply) {
  T d[kCount] = {};
  if constexpr (std::is_same_v<T, float>) hopper::hold(d);
  hopper::fence_wgmma();
  multiply(d, hopper::describe<kAlongK>(tile, 128));
  hopper::commit_wgmma();
  hopper::wait_wgmma<0>();
  store_sum(d, out);
}
// The left side in shared memory.
template <WgmmaType kType, int kN, bool kAlongKA, bool kAlongKB, class T>
__device__ void add_wgmma(const void* tile, float* out) {
  const uint64_t a = hopper::describe<kAlongKA>(tile, 128);
  add_product_of<T, kN / 2, kAlongKB>(tile, out, [&](T(&d)[kN / 2], uint64_t b) {
    hopper::multiply<kType, kN, kAlongKA, kAlongKB>(d, a, b, 1);
  });
}
template <WgmmaType kType, int kN>
__device__ void add_both_ways(const void* tile, float* out) {
  add_wgmma<kType, kN, true, true, float>(tile, out);
  add_wgmma<kType, kN, false, false, float>(tile, out);
}
template <WgmmaType kType, int kN>
__device__ void add_rows(const void* tile, float* out) {
  const uint64_t a = hopper::describe<true>(tile, 128);
  add_product_of<float, kN / 2, true>(tile, out, [&](float(&d)[kN / 2], uint64_t b) {
    hopper::multiply_rows<kType, kN>(d, a, b, 1);
  });
}
// The left side in registers.
template <WgmmaType kType, int kN>
__device__ void add_across(const void* tile, float* out) {
  uint32_t a[1][4] = {{1, 2, 3, 4}};
  hopper::hold(a);
  add_product_of<float, kN / 2, false>(tile, out, [&](float(&d)[kN / 2], uint64_t b) {
    hopper::multiply_across<kType, kN>(d, a[0], b, 1);
  });
}
template <WgmmaType kType, int kN>
__device__ void add_along(const void* tile, float* out) {
  uint32_t a[4] = {1, 2, 3, 4};
  hopper::hold(a);
  add_product_of<float, kN / 2, true>(tile, out, [&](float(&d)[kN / 2], uint64_t b) {
    hopper::multiply_registers<kType, kN, true>(d, a, b, 1);
  });
}
template <WgmmaType kType>
__device__ void add_registers(const void* tile, float* out) {
  const uint32_t a[4] = {1, 2, 3, 4};
  add_product_of<float, 32, true>(
      tile, out, [&](float(&d)[32], uint64_t b) { hopper::multiply_registers<kType>(d, a, b, 1); });
}
#endif  // PESTLE_HOPPER

__global__ void __launch_bounds__(128) of_16_bits(float* out) {
#if PESTLE_HOPPER
  extern __shared__ char tile[];
  add_both_ways<WgmmaType::kBf16, 16>(tile, out);
  add_both_ways<WgmmaType::kBf16, 64>(tile, out);
  add_both_ways<WgmmaType::kF16, 128>(tile, out);
  add_across<WgmmaType::kBf16, 64>(tile, out);
  add_across<WgmmaType::kF16, 128>(tile, out);
  add_along<WgmmaType::kBf16, 96>(tile, out);
#endif
}
__global__ void __launch_bounds__(128) of_16_bits_wide(float* out) {
#if PESTLE_HOPPER
  extern __shared__ char tile[];
  add_both_ways<WgmmaType::kBf16, 192>(tile, out);
  add_rows<WgmmaType::kBf16, 80>(tile, out);
  add_rows<WgmmaType::kBf16, 112>(tile, out);
  add_rows<WgmmaType::kBf16, 176>(tile, out);
  add_rows<WgmmaType::kF16, 176>(tile, out);
  add_along<WgmmaType::kF16, 192>(tile, out);
#endif
}
__global__ void __launch_bounds__(128) of_16_bits_widest(float* out) {
#if PESTLE_HOPPER
  extern __shared__ char tile[];
  add_both_ways<WgmmaType::kF16, 256>(tile, out);
  add_across<WgmmaType::kBf16, 256>(tile, out);
#endif
}

__global__ void __launch_bounds__(128) of_8_bits(float* out) {
#if PESTLE_HOPPER
  extern __shared__ char tile[];
  add_wgmma<WgmmaType::kE4m3, 128, true, true, float>(tile, out);
  add_wgmma<WgmmaType::kE5m2, 192, true, true, float>(tile, out);
  add_wgmma<WgmmaType::kE4m3E5m2, 256, true, true, float>(tile, out);
  add_wgmma<WgmmaType::kE5m2E4m3, 64, true, true, float>(tile, out);
  add_wgmma<WgmmaType::kInt8, 256, true, true, int>(tile, out);
  add_registers<WgmmaType::kE4m3>(tile, out);
  add_registers<WgmmaType::kE5m2>(tile, out);
  add_registers<WgmmaType::kE4m3E5m2>(tile, out);
  add_registers<WgmmaType::kE5m2E4m3>(tile, out);
#endif
}

}  // namespace pestle::instructions
