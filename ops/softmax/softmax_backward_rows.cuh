// Backward of softmax and log_softmax on CUDA, from the result: one sum along each row, then one
// multiplication an element. Rows as in softmax_rows.cuh: held in registers, or read twice.
#pragma once

#include <optional>

#include "backends/cuda/device/ptx/async_copy.cuh"
#include "backends/cuda/device/ptx/cluster_messages.cuh"
#include "ops/softmax/softmax_rows.cuh"

namespace pestle::ops {

struct SoftmaxBackwardJob {
  cuda::RowGroups groups;
  cuda::RowTensor d_out, out, d_x;
  float scale = 1;
};

#ifdef __CUDACC__
namespace softmax_device {

struct SumPart {
  float sum;
  __device__ static SumPart none() { return {0}; }
  __device__ static SumPart from(float4 v) { return {v.x}; }
  __device__ float4 packed() const { return make_float4(sum, 0, 0, 0); }
  __device__ SumPart over_lanes(int width) const { return {sum_over_lanes(sum, width)}; }
};

template <SoftmaxKind kKind, int kCount>
__device__ void add_terms(const float (&d_out)[kCount], const float (&out)[kCount],
                          float (&sums)[2]) {
  for (int i = 0; i < kCount; ++i) {
    if constexpr (kKind == SoftmaxKind::kSoftmax)
      sums[i % 2] = __fmaf_rn(d_out[i], out[i], sums[i % 2]);
    else
      sums[i % 2] += d_out[i];
  }
}

template <SoftmaxKind kKind, int kCount>
__device__ void to_gradient(float (&d_out)[kCount], const float (&out)[kCount], float sum,
                            float scale) {
  for (int i = 0; i < kCount; ++i) {
    if constexpr (kKind == SoftmaxKind::kSoftmax)
      d_out[i] = (out[i] * (d_out[i] - sum)) * scale;
    else
      d_out[i] = __fmaf_rn(-exp_of(out[i]), sum, d_out[i]) * scale;
  }
}

// ---- rows in registers ----

constexpr int kRegisterPairs = 4;  // of 16 bytes of both tensors, of a thread

struct RegisterSums {
  float parts[16 * kRegisterThreads / 32];  // of each warp of a row
  uint64_t arrived;
};

// Lanes of a warp, a block or a cluster a row, as register_kernel (softmax_registers.cuh).
template <class T, SoftmaxKind kKind>
__global__ void __launch_bounds__(kRegisterThreads, 2)
    register_backward_kernel(const __grid_constant__ SoftmaxBackwardJob job) {
  cuda::wait_previous_kernel();
  constexpr int kCount = Piece<T>::kCount;
  __shared__ RegisterSums shared;
  const RowPlace place = row_place(job.groups);
  if (place.cluster > 1) {
    if (threadIdx.x == 0) begin_barrier(&shared.arrived);
    __syncwarp();
    cluster_begin();
  }
  const int pieces = place.units * (kUnit / kCount) - place.lane;  // from this thread's first on
  const int64_t first = place.first * (kUnit * T::kBytes) + place.lane * 16;
  const auto start_of = [&](const RowTensor& t) {
    return t.any.data + (place.units > 0 ? place.row * t.distance : 0) + first;
  };
  const char* d_out = start_of(job.d_out);
  const char* out = start_of(job.out);
  uint4 raw[2][kRegisterPairs];
#pragma unroll
  for (int c = 0; c < kRegisterPairs; ++c) {
    const int at = c * place.lanes;
    raw[0][c] = raw[1][c] = make_uint4(0, 0, 0, 0);
    if (at >= pieces) continue;
    raw[0][c] = *reinterpret_cast<const uint4*>(d_out + at * 16);
    raw[1][c] = *reinterpret_cast<const uint4*>(out + at * 16);
  }
  float sums[2] = {};
#pragma unroll
  for (int c = 0; c < kRegisterPairs; ++c) {
    float v[2][kCount];
    Piece<T>::values(raw[0][c], v[0]);
    Piece<T>::values(raw[1][c], v[1]);
    add_terms<kKind>(v[0], v[1], sums);
  }
  float sum = sum_over_lanes(sums[0] + sums[1], min(place.lanes, 32));
  if (place.lanes > 32) {
    const int warps = place.lanes / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (place.cluster == 1) {
      if (lane == 0) shared.parts[warp] = sum;
      __syncthreads();
    } else {
      cluster_wait();
      if (threadIdx.x == 0) expect_bytes(&shared.arrived, place.cluster * warps * 4);
      if (lane < place.cluster) {
        tell_block(&shared.parts[place.rank * warps + warp], &shared.arrived,
                   static_cast<unsigned>(lane), sum);
      }
      wait_bytes_here(&shared.arrived, 0);
    }
    sum = 0;
    for (int i = lane; i < place.cluster * warps; i += 32) sum += shared.parts[i];
    sum = sum_over_lanes(sum, 32);
  }
  char* d_x = start_of(job.d_x);
#pragma unroll
  for (int c = 0; c < kRegisterPairs; ++c) {
    const int at = c * place.lanes;
    float v[2][kCount];
    Piece<T>::values(raw[0][c], v[0]);
    Piece<T>::values(raw[1][c], v[1]);
    to_gradient<kKind>(v[0], v[1], sum, job.scale);
    if (at < pieces) Piece<T>::store(d_x + at * 16, v[0]);
  }
}

// body(chunk, d_out, out) over `kStep` chunks from `first` on, loads first.
template <class Access, class Body>
__device__ void each_pair(const Access& d_out, const Access& out, int first, Body&& body) {
  constexpr int kStep = 2;
  typename Access::Raw raw[2][kStep];
#pragma unroll
  for (int c = 0; c < kStep; ++c) {
    raw[0][c] = d_out.load(first + c);
    raw[1][c] = out.load(first + c);
  }
#pragma unroll
  for (int c = 0; c < kStep; ++c) {
    float v[2][kUnit];
    Access::values(raw[0][c], v[0]);
    Access::values(raw[1][c], v[1]);
    body(first + c, v[0], v[1]);
  }
}

template <class Access, SoftmaxKind kKind>
__global__ void __launch_bounds__(kRowThreads, 2) long_backward_kernel(SoftmaxBackwardJob job) {
  cuda::wait_previous_kernel();
  constexpr int kStep = 2;
  __shared__ RowParts shared;
  RowPlace place = row_place(job.groups);
  Access::spread(place, job.d_x);
  begin_row(place);
  const Access d_out(job.d_out, place);
  const Access out(job.out, place);
  float sums[2] = {};
  for (int first = 0; first < place.chunks; first += kStep) {
    each_pair(d_out, out, first,
              [&](int, float(&g)[kUnit], float(&y)[kUnit]) { add_terms<kKind>(g, y, sums); });
  }
  const SumPart own = SumPart{sums[0] + sums[1]}.over_lanes(min(place.lanes, 32));
  const float sum = join_row(place, own, shared).sum;
  if (place.row >= job.groups.rows) return;
  const Access d_x(job.d_x, place);
  for (int first = (place.chunks - 1) / kStep * kStep; first >= 0; first -= kStep) {
    each_pair(d_out, out, first, [&](int c, float(&g)[kUnit], float(&y)[kUnit]) {
      to_gradient<kKind>(g, y, sum, job.scale);
      d_x.store(c, g);
    });
  }
}

// ---- rows in the shared memory of a cluster's blocks ----

template <class T>
constexpr int kRingUnits = 16 / T::kBytes;  // of a thread, of a row: 256 bytes of both tensors
constexpr int kRingBuffers = 4;             // rows whose sums may be on their way

struct RingJob {
  RowTensor d_out, out, d_x;
  int64_t rows;
  int units, block_units;  // of 8 elements: of a row, of a block's part of it
  int cluster, ring;       // ring: units of a thread in shared memory
  float scale;
};

struct RingParts {
  float of_warps[2][kRowThreads / 32];  // by number of the row
  float of_blocks[kRingBuffers][16];
  uint64_t arrived[kRingBuffers];
};

// 16 bytes to shared memory, past the L1 and without a register.
__device__ inline void copy_ahead(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// Until all but `pending` groups are there.
__device__ inline void wait_copies(int pending) {
  switch (pending) {
    case 1: wait_for_copies<1>(); break;
    case 2: wait_for_copies<2>(); break;
    case 3: wait_for_copies<3>(); break;
    case 4: wait_for_copies<4>(); break;
    case 5: wait_for_copies<5>(); break;
    case 6: wait_for_copies<6>(); break;
    case 7: wait_for_copies<7>(); break;
    case 8: wait_for_copies<8>(); break;
    default: wait_for_copies<0>(); break;
  }
}

// A thread's unit is of 16 bytes, or of two times 16 that are as far apart as units are: lanes side
// by side ask for whole sectors.
template <class T>
struct Ring {
  static constexpr int kWords = kUnit * T::kBytes / 16;
  static constexpr int kThreadBytes = 2 * kWords * 16;  // of a unit of both tensors

  const RingJob& p;
  uint32_t first, step, end;  // slots of this thread in shared memory, and bytes between them
  uint32_t load_slot, slot;
  int word0;         // this thread's first 16 bytes of the row
  int count;         // of 16 bytes, from there to the end of the block's part
  int64_t load_row;  // the next unit to load
  int load_unit = 0;

  __device__ Ring(const RingJob& job, uint4* memory, int rank, int64_t row) : p(job) {
    first = slot = load_slot = shared_at(memory + threadIdx.x);
    step = blockDim.x * kThreadBytes;
    end = first + p.ring * step;
    word0 = rank * p.block_units * kWords + threadIdx.x;
    const int units = min(p.block_units, p.units - rank * p.block_units);
    count = units * kWords - static_cast<int>(threadIdx.x);
    load_row = row;
  }
  __device__ int word(int i, int k) const {
    return (i * kWords + k) * static_cast<int>(blockDim.x);
  }
  __device__ bool has(int i, int k = 0) const { return word(i, k) < count; }
  __device__ int64_t offset(int i, int k) const { return int64_t{word0 + word(i, k)} * 16; }
  // The next unit of this thread's rows, which are `stride` apart.
  __device__ void load_next(int64_t stride) {
    if (load_row < p.rows) {
      const char* d_out = p.d_out.any.data + load_row * p.d_out.distance;
      const char* out = p.out.any.data + load_row * p.out.distance;
#pragma unroll
      for (int k = 0; k < kWords; ++k) {
        if (!has(load_unit, k)) continue;
        copy_ahead(load_slot + k * blockDim.x * 16, d_out + offset(load_unit, k));
        copy_ahead(load_slot + (kWords + k) * blockDim.x * 16, out + offset(load_unit, k));
      }
    }
    commit_copies();
    load_slot += step;
    if (load_slot == end) load_slot = first;
    if (++load_unit == kRingUnits<T>) {
      load_unit = 0;
      load_row += stride;
    }
  }
  // 0 past the row's end. Copies over it wait for what was read.
  __device__ void read(uint32_t from, int i, typename T::Raw& d_out, typename T::Raw& out) const {
    uint4 raw[2 * kWords];
#pragma unroll
    for (int k = 0; k < 2 * kWords; ++k) {
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(raw[k].x), "=r"(raw[k].y), "=r"(raw[k].z), "=r"(raw[k].w)
                   : "r"(from + k * blockDim.x * 16)
                   : "memory");
      if (!has(i, k % kWords)) raw[k] = make_uint4(0, 0, 0, 0);
    }
    if constexpr (kWords == 2) {
      d_out = {raw[0], raw[1]};
      out = {raw[2], raw[3]};
    } else {
      d_out = {raw[0]};
      out = {raw[1]};
    }
  }
  __device__ uint32_t after(uint32_t place) const {
    return place + step == end ? first : place + step;
  }
  __device__ void store(char* row, int i, const float (&v)[kUnit]) const {
    const auto raw = T::pack(v);
    if constexpr (kWords == 2) {
      if (has(i, 0)) store16(row + offset(i, 0), raw.low);
      if (has(i, 1)) store16(row + offset(i, 1), raw.high);
    } else {
      if (has(i)) store16(row + offset(i, 0), raw.v);
    }
  }
};

// The sums of rows, of all blocks of a cluster: sent as they are known, waited for a row later.
struct RingSums {
  RingParts& parts;
  int cluster, rank;
  uint32_t sent = 0, taken = 0;  // rows

  __device__ void send(float sum) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float* warps = parts.of_warps[sent % 2];
    sum = sum_over_lanes(sum, 32);
    if (lane == 0) warps[warp] = sum;
    __syncthreads();
    const uint32_t slot = sent++ % kRingBuffers;
    if (warp > 0) return;
    if (lane == 0) expect_bytes(&parts.arrived[slot], cluster * 4);
    sum = sum_over_lanes(lane < static_cast<int>(blockDim.x / 32) ? warps[lane] : 0, 32);
    if (lane < cluster) {
      tell_block(&parts.of_blocks[slot][rank], &parts.arrived[slot], static_cast<unsigned>(lane),
                 sum);
    }
  }
  __device__ float take() {
    const uint32_t slot = taken % kRingBuffers;
    wait_bytes(&parts.arrived[slot], taken / kRingBuffers & 1);
    ++taken;
    const int lane = threadIdx.x % 16;
    return sum_over_lanes(lane < cluster ? parts.of_blocks[slot][lane] : 0, 16);
  }
};

// Clusters stay and go through rows. A row is in registers while its sum is on its way between the
// blocks; the next one's sum is made meanwhile, from shared memory, and units of the rows after it
// load where it is read into registers.
template <class T, SoftmaxKind kKind>
__global__ void __launch_bounds__(kRowThreads, 1)
    ring_backward_kernel(const __grid_constant__ RingJob p) {
  constexpr int kUnits = kRingUnits<T>;
  extern __shared__ uint4 memory[];
  __shared__ RingParts parts;
  if (threadIdx.x < kRingBuffers) begin_barrier(&parts.arrived[threadIdx.x]);
  cluster_arrive();
  const int rank = blockIdx.x % p.cluster;
  const int64_t stride = gridDim.x / p.cluster;
  int64_t row = blockIdx.x / p.cluster;
  Ring<T> ring(p, memory, rank, row);
  for (int i = 0; i < p.ring; ++i) ring.load_next(stride);
  RingSums sums{parts, p.cluster, rank};
  cluster_wait();
  const auto send_sum = [&] {
    wait_copies(p.ring - kUnits);
    float own[2] = {};
    uint32_t from = ring.slot;
#pragma unroll
    for (int i = 0; i < kUnits; ++i, from = ring.after(from)) {
      typename T::Raw raw[2];
      float g[kUnit], y[kUnit];
      ring.read(from, i, raw[0], raw[1]);
      T::to_f32(raw[0], g);
      T::to_f32(raw[1], y);
      add_terms<kKind>(g, y, own);
    }
    sums.send(own[0] + own[1]);
  };
  send_sum();
  for (; row < p.rows; row += stride) {
    typename T::Raw raw[2][kUnits];
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      ring.read(ring.slot, i, raw[0][i], raw[1][i]);
      ring.slot = ring.after(ring.slot);
      ring.load_next(stride);  // over what this thread has read
    }
    if (row + stride < p.rows) send_sum();
    const float sum = sums.take();
    char* to = p.d_x.any.data + row * p.d_x.distance;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      float g[kUnit], y[kUnit];
      T::to_f32(raw[0][i], g);
      T::to_f32(raw[1][i], y);
      to_gradient<kKind>(g, y, sum, p.scale);
      ring.store(to, i, g);
    }
  }
}

}  // namespace softmax_device

// Clusters with rings, where they take the rows.
template <SoftmaxKind kKind, class T>
std::optional<Status> start_softmax_ring(const Call& call, const char* name,
                                         const SoftmaxBackwardJob& job, int most_blocks) {
  using namespace softmax_device;
  RingJob ring;
  const int64_t units = ceil_div(job.out.count, kUnit);
  ring.d_out = job.d_out;
  ring.out = job.out;
  ring.d_x = job.d_x;
  ring.rows = job.groups.rows;
  ring.units = static_cast<int>(units);
  ring.scale = job.scale;
  for (ring.cluster = 2; ring.cluster < most_blocks;) {
    if (units <= int64_t{kRingUnits<T>} * kRowThreads * ring.cluster) break;
    ring.cluster *= 2;
  }
  ring.block_units = static_cast<int>(ceil_div(units, ring.cluster));
  const int threads =
      static_cast<int>(ceil_div(ceil_div(ring.block_units, kRingUnits<T>), 32) * 32);
  if (ring.cluster > most_blocks || threads > kRowThreads) return std::nullopt;
  const int device = device_index(call);
  const int cc = machine_for({DeviceType::kCuda, device}).compute_capability;
  if (cc != 90 && cc != 100 && cc != 103) return std::nullopt;  // smaller shared memory
  constexpr int64_t kMemory = 227 * 1024 - static_cast<int64_t>(sizeof(RingParts));
  const int64_t slot = int64_t{threads} * Ring<T>::kThreadBytes;
  ring.ring = static_cast<int>(std::min<int64_t>(2 * kRingUnits<T>, kMemory / slot));
  // What an H200 runs at once: its multiprocessors come in groups of 14 to 18.
  const int clusters = ring.cluster == 2 ? 66 : ring.cluster == 4 ? 30 : ring.cluster == 8 ? 15 : 7;
  const int64_t blocks = std::min<int64_t>(ring.rows, clusters) * ring.cluster;
  return launch(call, name, {blocks, threads, static_cast<size_t>(ring.ring * slot), ring.cluster},
                ring_backward_kernel<T, kKind>, ring);
}

template <SoftmaxKind kKind, class T>
Status start_softmax_backward(const Call& call, const char* name, SoftmaxBackwardJob& job,
                              bool any) {
  using namespace softmax_device;
  const int64_t rows = job.groups.rows;
  const int64_t units = ceil_div(job.out.count, kUnit);
  const int most_blocks = units > kRowBlockUnits ? cluster_blocks(call) : 1;
  const auto start = [&](auto* kernel) {
    return launch_early(call, name,
                        {job.groups.blocks(), job.groups.threads(), 0, job.groups.cluster}, kernel,
                        job);
  };
  if (any) {
    const bool apart = job.out.step != job.out.any.bytes && rows >= 1024;
    const int64_t touched = units_at_most(job.d_x);
    if (apart)
      job.groups = RowGroups::one_thread(rows, touched);
    else if (touched <= kRowBlockUnits)
      job.groups = RowGroups::holding(rows, touched, 1, kRowThreads, kRowChunks);
    else
      job.groups = RowGroups::looping(rows, touched, cluster_blocks(call));
    return start(long_backward_kernel<Elements<T>, kKind>);
  }
  const RegisterRows in_registers = register_rows(call, rows, units, T::kBytes, kRegisterPairs);
  if (in_registers.pieces == kRegisterPairs) {
    job.groups = in_registers.groups;
    return start(register_backward_kernel<T, kKind>);
  }
  if (most_blocks > 1) {
    if (auto status = start_softmax_ring<kKind, T>(call, name, job, most_blocks)) return *status;
  }
  job.groups = RowGroups::looping(rows, units, most_blocks);
  return start(long_backward_kernel<Vectors<T>, kKind>);
}

template <SoftmaxKind kKind>
Status run_softmax_backward(const Call& call, const char* name, SoftmaxBackwardJob& job, bool any) {
  switch (job.out.any.dtype) {
    case DType::kBF16: return start_softmax_backward<kKind, cuda::Bf16>(call, name, job, any);
    case DType::kF16: return start_softmax_backward<kKind, cuda::F16>(call, name, job, any);
    default: return start_softmax_backward<kKind, cuda::F32>(call, name, job, any);
  }
}
#endif

inline SoftmaxBackwardJob softmax_backward_job(const TensorView& d_out, const TensorView& out,
                                               const TensorView& d_x, int64_t dim, float scale) {
  SoftmaxBackwardJob job;
  const auto rows = [&](const TensorView& t) {
    const TensorView moved = rows_along(t, dim);
    return cuda::RowTensor(moved, cuda::row_distance(moved));
  };
  job.d_out = rows(d_out);
  job.out = rows(out);
  job.d_x = rows(d_x);
  job.groups.rows = numel(out) == 0 ? 0 : numel(out) / job.out.count;
  job.scale = scale;
  return job;
}

}  // namespace pestle::ops
