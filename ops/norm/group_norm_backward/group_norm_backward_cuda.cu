// group_norm_backward on CUDA.
// Map      persistent: a group lies in the registers of a block's or of a cluster's threads, a
//          piece of one channel a warp; clusters stay, two groups are in shared memory, the next
//          one's statistics are made while this one's sums are exchanged.
//          shared: longer groups lie in shared memory, x and d_out; a warp takes several pieces.
//          Both: two exchanges between the blocks, mean and squares, then the sums behind d_x.
//          pieces: groups of any size, a residual and a gate, in three kernels over pieces of
//          channels (group_norm_backward_pieces.cuh). any: a block a group, element by element;
//          any strides and offsets. All leave sums of pieces of channels; a last kernel adds them
//          up over samples in a fixed order, to gradients of weight, bias and modulation.
// Traffic  persistent, shared: x, d_out and d_x once. pieces: x and residual three times, d_out
//          twice, what is written once. any: x five times, d_out twice, d_x once.
// Numerics f32; fixed trees of additions; squares around means of parts joined to the group's.
// Measured H200, bf16 8 x 320 x 128 x 128, silu: 109 us, 56 % of the copy; pieces with a
//          residual 91 %, groups of a million 81 %, counting each pass (any: 4,610 us).
#include <atomic>

#include "backends/cuda/device/tensor/any_tensor.cuh"
#include "backends/cuda/host/early_launch.h"
#include "backends/cuda/host/launch.h"
#include "core/machine.h"
#include "ops/norm/group_norm_backward/group_norm_backward_any.cuh"
#include "ops/norm/group_norm_backward/group_norm_backward_groups.h"
#include "ops/norm/group_norm_backward/group_norm_backward_persistent.cuh"
#include "ops/norm/group_norm_backward/group_norm_backward_pieces.cuh"
#include "ops/norm/group_norm_backward/group_norm_backward_shared.cuh"

namespace pestle::ops::group_norm_backward {
namespace {

using namespace pestle::cuda;

// Two floats for each piece of a channel of a sample.
constexpr const char* kPiecesWorkspace =
    "8*size(x,0)*size(x,1)*cdiv(M*K/max(1, size(x,0)*size(x,1)), 2048/bytes(x))";

// ---- host ----

int64_t shared_bytes(int compute_capability) {
  switch (compute_capability) {
    case 80:
    case 87: return int64_t{163} * 1024;
    case 90:
    case 100:
    case 103: return int64_t{227} * 1024;
    default: return int64_t{99} * 1024;
  }
}

// Of the persistent kernel, and what the device takes of each block.
constexpr int64_t kPersistentStatic = sizeof(PersistentParts) + 1024;

// How a group is cut; no cluster: it does not fit.
struct Cut {
  int piece_units = 0;
  int64_t channel_pieces = 1, pieces = 1, block_pieces = 1;
  int cluster = 0;
  int warps = 1;
  int64_t bytes = 0;  // of shared memory
  bool in_registers = false;
  int x_stages = kPersistentStages;  // persistent: groups of x in shared memory

  Cut(const Groups& g, const Machine& machine) {
    const int cc = machine.compute_capability;
    const int bytes_of_element = dtype_bytes(g.x.dtype);
    set_pieces(g, 32 * 8 / bytes_of_element);
    for (cluster = 1; cluster <= largest_cluster(cc); cluster *= 2) {
      block_pieces = ceil_div(pieces, cluster);
      if (block_pieces > kPersistentWarps) continue;
      in_registers = true;
      warps = static_cast<int>(block_pieces);
      const int64_t stage = int64_t{warps} * 32 * 64;  // of x or d_out
      bytes = 2 * kPersistentStages * stage;
      if (bytes > shared_bytes(cc) - kPersistentStatic) continue;
      if (bytes + stage <= shared_bytes(cc) - kPersistentStatic) {
        x_stages = kPersistentStages + 1;
        bytes += stage;
      }
      return;
    }
    in_registers = false;
    set_pieces(g, kPieceUnits);
    const int64_t most = shared_bytes(cc) - static_cast<int64_t>(sizeof(Parts)) - 64;
    const int64_t piece_bytes = int64_t{piece_units} * kUnit * 2 * bytes_of_element;
    for (cluster = 1; cluster <= largest_cluster(cc); cluster *= 2) {
      block_pieces = ceil_div(pieces, cluster);
      bytes = block_pieces * piece_bytes;
      if (bytes > most) continue;
      warps = static_cast<int>(ceil_div(block_pieces, ceil_div(block_pieces, kMostWarps)));
      return;
    }
    cluster = 0;
  }

 private:
  void set_pieces(const Groups& g, int most_units) {
    const int64_t channel_units = g.plane / kUnit;
    piece_units = static_cast<int>(std::min<int64_t>(most_units, channel_units));
    channel_pieces = ceil_div(channel_units, std::max(1, piece_units));
    pieces = channel_pieces * g.group_channels();
  }
};

// Shared memory beyond 48 KB must be asked for, once a kernel and device.
template <auto kernel>
Status allow_memory(int device, int64_t bytes) {
  static std::atomic<uint64_t> done{0};
  const uint64_t bit = uint64_t{1} << (device & 63);
  if ((done.load(std::memory_order_relaxed) & bit) != 0) return {};
  PESTLE_ON_DEVICE(device);
  PESTLE_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(bytes)));
  done.fetch_or(bit, std::memory_order_relaxed);
  return {};
}

template <class T>
Status start_groups(const Call& call, const PieceJob& job, const Cut& cut, int64_t count) {
  const int device = device_index(call);
  const int64_t most = shared_bytes(machine_for({DeviceType::kCuda, device}).compute_capability);
  Grid grid{count * cut.cluster, cut.warps * 32, static_cast<size_t>(cut.bytes), cut.cluster};
  if (!cut.in_registers) {
    PESTLE_TRY(
        allow_memory<shared_kernel<T>>(device, most - static_cast<int64_t>(sizeof(Parts)) - 64));
    return launch(call, "group_norm_backward", grid, shared_kernel<T>, job);
  }
  PESTLE_TRY(allow_memory<persistent_kernel<T>>(device, most - kPersistentStatic));
  // What an H200 runs at once, multiprocessors in groups of 14 to 18: a cluster more would begin
  // when the others end.
  const int64_t together = std::max<int64_t>(
      1, std::min<int64_t>(kPersistentWarps / cut.warps, most / (cut.bytes + kPersistentStatic)));
  const int64_t clusters = cut.cluster == 1   ? 132
                           : cut.cluster == 2 ? 66
                           : cut.cluster == 4 ? 30
                           : cut.cluster == 8 ? 15
                                              : 7;
  grid.blocks = std::min(count, together * clusters) * cut.cluster;
  PieceJob persistent = job;
  persistent.x_stages = static_cast<uint32_t>(cut.x_stages);
  persistent.delay = begin_apart(count, together * clusters, cut.bytes * cut.cluster);
  return launch(call, "group_norm_backward", grid, persistent_kernel<T>, persistent,
                static_cast<uint32_t>(count));
}

void set_strides(const TensorView& t, int64_t (&stride)[2]) {
  for (int d = 0; d < 2; ++d) stride[d] = t.strides[d] * dtype_bytes(t.dtype);
}

// Gradients of what channels share, out of sums of pieces.
Status start_sums(const Call& call, const Groups& g, const float2* sums, const float* gate_sums,
                  int64_t pieces) {
  if (!g.has_sums()) return {};
  const SumsJob job{sums,
                    gate_sums,
                    static_cast<int>(g.samples_each()),
                    static_cast<int>(g.modulations()),
                    static_cast<int>(g.channels),
                    static_cast<int>(pieces),
                    ChannelAffine(g),
                    AnyTensor(g.d_weight),
                    AnyTensor(g.d_bias),
                    AnyTensor(g.d_gate),
                    AnyTensor(g.d_scale),
                    AnyTensor(g.d_shift)};
  return launch_early(call, "group_norm_backward", {ceil_div(g.channels, kThreads / 32), kThreads},
                      sums_kernel, job);
}

Status run(const Call& call) {
  const Groups g(call);
  const Cut cut(g, machine_for({DeviceType::kCuda, device_index(call)}));
  PieceJob job{};
  job.x = g.x.as<char>();
  job.d_out = g.d_out.as<char>();
  job.d_x = g.d_x.as<char>();
  set_strides(g.x, job.x_stride);
  set_strides(g.d_out, job.d_out_stride);
  set_strides(g.d_x, job.d_x_stride);
  job.affine = ChannelAffine(g);
  job.sums = static_cast<float2*>(call.workspace);
  job.groups = static_cast<int>(g.groups);
  job.by_groups = FastDivisor(static_cast<uint32_t>(g.groups));
  job.group_channels = static_cast<int>(g.group_channels());
  job.channel_units = static_cast<int>(g.plane / kUnit);
  job.channel_pieces = static_cast<int>(cut.channel_pieces);
  job.piece_units = cut.piece_units;
  job.pieces = static_cast<int>(cut.pieces);
  job.block_pieces = static_cast<int>(cut.block_pieces);
  job.cluster = cut.cluster;
  for (job.join = 1; job.join < cut.warps * cut.cluster && job.join < 32;) job.join *= 2;
  job.eps = g.eps;
  job.count = static_cast<float>(g.size());
  job.share = 1.0f / job.count;
  job.silu = g.silu;
  switch (g.x.dtype) {
    case DType::kBF16: PESTLE_TRY(start_groups<Bf16>(call, job, cut, g.count())); break;
    case DType::kF16: PESTLE_TRY(start_groups<F16>(call, job, cut, g.count())); break;
    default: PESTLE_TRY(start_groups<F32>(call, job, cut, g.count())); break;
  }
  return start_sums(call, g, job.sums, nullptr, cut.channel_pieces);
}

// Why kernels of dense planes don't take the call; empty: they do.
std::string refuse_planes(const Groups& g) {
  if (numel(g.x) == 0) return "x is empty";
  if (g.plane % kUnit != 0) return "a channel's plane is no multiple of 8 elements";
  if (g.channels >= int64_t{1} << 24 || g.x.shape[0] >= int64_t{1} << 24) {
    return "2^24 channels or samples or more";
  }
  if (g.count() >= int64_t{1} << 31) return "2^31 groups or more";
  const struct {
    const char* name;
    const TensorView& tensor;
  } all[] = {{"x", g.x},         {"residual", g.residual},
             {"d_out", g.d_out}, {"d_residual_out", g.d_residual_out},
             {"d_x", g.d_x},     {"d_residual", g.d_residual}};
  for (const auto& [name, t] : all) {
    if (t.data == nullptr) continue;
    if (!is_contiguous_from(t, 2)) return std::string(name) + "'s planes have gaps";
    bool aligned = reinterpret_cast<uintptr_t>(t.data) % 16 == 0;
    for (int d = 0; d < 2; ++d) {
      aligned &= t.shape[d] == 1 || t.strides[d] * dtype_bytes(t.dtype) % 16 == 0;
    }
    if (!aligned) return std::string(name) + "'s planes do not start at multiples of 16 bytes";
  }
  return ChannelAffine::refuse(g);
}

std::string refuses(const Call& call, const Machine& machine) {
  const Groups g(call);
  if (std::string why = refuse_planes(g); !why.empty()) return why;
  if (g.sums()) return "takes no residual and no gate";
  if (Cut(g, machine).cluster == 0) return "a group is more than shared memory holds";
  return "";
}

// ---- pieces ----

// Sums of pieces, of gates, statistics of pieces and groups, means of groups.
constexpr const char* kAllPiecesWorkspace =
    "28*size(x,0)*size(x,1)*cdiv(M*K/max(1, size(x,0)*size(x,1)), 2048/bytes(x)) + "
    "16*size(x,0)*groups + 64";

int64_t channel_pieces(const Groups& g) { return ceil_div(g.plane, 2048 / dtype_bytes(g.x.dtype)); }

template <class T, bool kSum>
Status start_pieces(const Call& call, const PiecesJob& job, int64_t groups) {
  const char* name = "group_norm_backward_pieces";
  const Grid grid{ceil_div(job.pieces, kThreads / 32), kThreads}, joins{groups, kThreads};
  PESTLE_TRY(launch(call, name, grid, statistics_kernel<T, kSum>, job));
  PESTLE_TRY(launch_early(call, name, joins, join_statistics_kernel, job));
  PESTLE_TRY(launch_early(call, name, grid, gradients_kernel<T, kSum>, job));
  PESTLE_TRY(launch_early(call, name, joins, join_means_kernel, job));
  return launch_early(call, name, grid, finish_kernel<T, kSum>, job);
}
template <class T>
Status start_pieces(const Call& call, const PiecesJob& job, const Groups& g) {
  return g.sums() ? start_pieces<T, true>(call, job, g.count())
                  : start_pieces<T, false>(call, job, g.count());
}

Status run_pieces(const Call& call) {
  const Groups g(call);
  PiecesJob job{};
  const TensorView* operands[kOperands] = {&g.x,   &g.residual,  &g.d_out, &g.d_residual_out,
                                           &g.d_x, &g.d_residual};
  for (int i = 0; i < kOperands; ++i) {
    job.data[i] = operands[i]->as<char>();
    if (job.data[i] != nullptr) set_strides(*operands[i], job.strides[i]);
  }
  const int64_t of_channel = channel_pieces(g);
  const int64_t pieces = g.samples() * g.channels * of_channel;
  job.gate = ChannelParameter(g.gate, g.samples_each());
  job.affine = ChannelAffine(g);
  job.parts = reinterpret_cast<float4*>((reinterpret_cast<uintptr_t>(call.workspace) + 15) &
                                        ~uintptr_t{15});
  job.statistics = reinterpret_cast<float2*>(job.parts + pieces);
  job.means = job.statistics + g.count();
  job.sums = job.means + g.count();
  if (g.gate.data != nullptr) job.gate_sums = reinterpret_cast<float*>(job.sums + pieces);
  job.channel_pieces = FastDivisor(static_cast<uint32_t>(of_channel));
  job.channels = FastDivisor(static_cast<uint32_t>(g.channels));
  job.group_channels = FastDivisor(static_cast<uint32_t>(g.group_channels()));
  job.groups = static_cast<uint32_t>(g.groups);
  job.pieces = static_cast<uint32_t>(pieces);
  job.group_pieces = static_cast<uint32_t>(of_channel * g.group_channels());
  job.channel_units = static_cast<int>(g.plane / kUnit);
  job.piece_units = 32 * 8 / dtype_bytes(g.x.dtype);
  job.eps = g.eps;
  job.count = static_cast<float>(g.size());
  job.silu = g.silu;
  switch (g.x.dtype) {
    case DType::kBF16: PESTLE_TRY(start_pieces<Bf16>(call, job, g)); break;
    case DType::kF16: PESTLE_TRY(start_pieces<F16>(call, job, g)); break;
    default: PESTLE_TRY(start_pieces<F32>(call, job, g)); break;
  }
  return start_sums(call, g, job.sums, job.gate_sums, of_channel);
}

std::string refuses_pieces(const Call& call, const Machine&) {
  const Groups g(call);
  if (std::string why = refuse_planes(g); !why.empty()) return why;
  if (g.samples() * g.channels * channel_pieces(g) >= int64_t{1} << 31)
    return "2^31 pieces or more";
  if (g.plane / kUnit >= int64_t{1} << 31) return "planes of 2^34 elements or more";
  return "";
}

Status run_any(const Call& call) {
  const Groups g(call);
  auto* sums = static_cast<float2*>(call.workspace);
  float* gate_sums =
      g.gate.data == nullptr ? nullptr : reinterpret_cast<float*>(sums + g.samples() * g.channels);
  const AnyJob job{AnyTensor::merged(g.x),
                   AnyTensor::merged(g.residual),
                   AnyTensor::merged(g.d_out),
                   AnyTensor::merged(g.d_residual_out),
                   AnyTensor::merged(g.d_x),
                   AnyTensor::merged(g.d_residual),
                   ChannelParameter(g.gate, g.samples_each()),
                   ChannelAffine(g),
                   sums,
                   gate_sums,
                   g.groups,
                   g.group_channels(),
                   g.plane,
                   g.eps,
                   g.silu};
  PESTLE_TRY(launch(call, "group_norm_backward_any", {g.count(), kThreads}, any_kernel, job));
  return start_sums(call, g, sums, gate_sums, 1);
}

constexpr Impl kImpls[] = {
    {.id = "cuda/group_norm_backward",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run,
     .workspace = kPiecesWorkspace},
    {.id = "cuda/group_norm_backward_pieces",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_pieces,
     .run = run_pieces,
     .workspace = kAllPiecesWorkspace},
    {.id = "cuda/group_norm_backward_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any,
     .workspace = kWorkspace},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::group_norm_backward
