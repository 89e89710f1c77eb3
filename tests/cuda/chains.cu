// Calls that follow one another closely give what the same calls give one by one: kernels that
// begin early must wait for what the one before writes, and must not write what it still reads.
// Each round copies a source over x, takes an op of it and copies the result away; rounds share x
// and out. Once with a synchronisation after every call, once without, once captured as a graph.
// usage: pestle_cuda_chains; exit 0 when all agree.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "pestle/ops.h"

namespace {

constexpr int kRounds = 12, kRepeats = 20;

bool ok(cudaError_t error, const char* what) {
  if (error != cudaSuccess) std::printf("%s: %s\n", what, cudaGetErrorString(error));
  return error == cudaSuccess;
}

struct Chain {
  std::string op;
  int64_t rows, columns;
  bool is_tall = false;  // sources are copied by the transposing kernel

  int64_t count() const { return rows * columns; }
  std::string title() const {
    return op + " " + std::to_string(rows) + "x" + std::to_string(columns) +
           (is_tall ? " of transposed sources" : "");
  }
};

__global__ void fill(float* to, int64_t count) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const uint32_t mixed = static_cast<uint32_t>(i * 2654435761u) >> 8;
    to[i] = static_cast<float>(mixed) * 0x1p-22f - 2.0f;
  }
}

class Runner {
 public:
  explicit Runner(const Chain& chain) : chain_(chain) {}
  ~Runner() {
    for (void* p : {sources_, x_, other_, out_, results_, workspace_}) cudaFree(p);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  bool start() {
    const size_t bytes = static_cast<size_t>(chain_.count()) * 4;
    bool good = ok(cudaStreamCreate(&stream_), "stream");
    good = good && ok(cudaMalloc(&sources_, kRounds * bytes), "memory");
    good = good && ok(cudaMalloc(&results_, kRounds * bytes), "memory");
    for (void** p : {&x_, &other_, &out_}) good = good && ok(cudaMalloc(p, bytes), "memory");
    good = good && ok(cudaMalloc(&workspace_, kWorkspace), "memory");
    if (!good) return false;
    fill<<<1024, 256>>>(static_cast<float*>(sources_), kRounds * chain_.count());
    fill<<<1024, 256>>>(static_cast<float*>(other_), chain_.count());
    return ok(cudaDeviceSynchronize(), "fill");
  }
  // All rounds on the stream; `one_by_one`: each call has ended before the next begins.
  bool queue(bool one_by_one) {
    const size_t bytes = static_cast<size_t>(chain_.count()) * 4;
    for (int round = 0; round < kRounds; ++round) {
      char* source = static_cast<char*>(sources_) + round * bytes;
      char* result = static_cast<char*>(results_) + round * bytes;
      if (!copy(source, x_, chain_.is_tall) || !settle(one_by_one)) return false;
      if (!call() || !settle(one_by_one)) return false;
      if (!copy(out_, result, false) || !settle(one_by_one)) return false;
    }
    return true;
  }
  bool settle(bool wait) { return !wait || ok(cudaStreamSynchronize(stream_), "synchronise"); }
  bool results(std::vector<uint32_t>& to) {
    to.resize(static_cast<size_t>(kRounds * chain_.count()));
    return settle(true) &&
           ok(cudaMemcpy(to.data(), results_, to.size() * 4, cudaMemcpyDeviceToHost), "results");
  }
  bool clear() { return ok(cudaMemset(results_, 0xA5, kRounds * chain_.count() * 4), "clear"); }
  bool capture(cudaGraphExec_t& graph) {
    cudaGraph_t captured;
    if (!ok(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed), "capture")) return false;
    const bool queued = queue(false);
    return ok(cudaStreamEndCapture(stream_, &captured), "capture") && queued &&
           ok(cudaGraphInstantiate(&graph, captured, 0), "graph") &&
           ok(cudaGraphDestroy(captured), "graph");
  }
  bool launch(cudaGraphExec_t graph) { return ok(cudaGraphLaunch(graph, stream_), "graph"); }

 private:
  static constexpr int64_t kWorkspace = 64 << 20;

  pestle_tensor view(void* data, const int64_t* shape, const int64_t* strides = nullptr) const {
    pestle_tensor t{};
    t.data = data;
    t.dtype = PESTLE_F32;
    t.device_type = PESTLE_CUDA;
    t.rank = 2;
    t.shape = shape;
    t.strides = strides;
    return t;
  }
  pestle_call_options options() const {
    pestle_call_options o{};
    o.size = sizeof(o);
    o.stream = stream_;
    o.workspace = workspace_;
    o.workspace_bytes = kWorkspace;
    return o;
  }
  bool passed(pestle_status status) const {
    if (status != PESTLE_OK) std::printf("%s\n", pestle_last_error());
    return status == PESTLE_OK;
  }
  bool copy(void* from, void* to, bool is_tall) const {
    const int64_t shape[2] = {chain_.rows, chain_.columns}, tall[2] = {1, chain_.rows};
    const pestle_tensor x = view(from, shape, is_tall ? tall : nullptr), out = view(to, shape);
    const pestle_call_options o = options();
    return passed(pestle_copy(&x, &out, &o));
  }
  bool call() const {
    const int64_t shape[2] = {chain_.rows, chain_.columns};
    const pestle_tensor x = view(x_, shape), other = view(other_, shape), out = view(out_, shape);
    const pestle_call_options o = options();
    const pestle_op* op = pestle_find_op(chain_.op.c_str());
    const bool is_backward = chain_.op.find("backward") != std::string::npos;
    const pestle_arg args[] = {pestle_tensor_arg(&x),
                               pestle_tensor_arg(is_backward ? &other : nullptr),
                               pestle_tensor_arg(&out), pestle_int_arg(-1), pestle_float_arg(1)};
    return passed(pestle_call(op, args, 5, &o));
  }

  Chain chain_;
  cudaStream_t stream_ = nullptr;
  void *sources_ = nullptr, *x_ = nullptr, *other_ = nullptr, *out_ = nullptr, *results_ = nullptr,
       *workspace_ = nullptr;
};

// Times that something differed; -1: a call failed.
int differences(const Chain& chain) {
  Runner runner(chain);
  std::vector<uint32_t> right, got;
  cudaGraphExec_t graph;
  if (!runner.start() || !runner.queue(true) || !runner.results(right)) return -1;
  if (!runner.capture(graph)) return -1;
  int count = 0;
  for (int i = 0; i < 2 * kRepeats; ++i) {
    if (!runner.clear() || !(i % 2 ? runner.launch(graph) : runner.queue(false))) return -1;
    if (!runner.results(got)) return -1;
    count += got != right;
  }
  cudaGraphExecDestroy(graph);
  return count;
}

}  // namespace

int main() {
  int failed = 0;
  for (const char* op : {"softmax", "log_softmax", "softmax_backward", "log_softmax_backward"}) {
    for (const Chain& chain : {Chain{op, 3, 64},
                               {op, 700, 96, true},
                               {op, 256, 1024},
                               {op, 33, 8192},
                               {op, 9, 40000, true},
                               {op, 3, 65536},
                               {op, 2, 600000}}) {
      const int count = differences(chain);
      std::printf("%s %s\n", count == 0 ? "ok  " : "FAIL", chain.title().c_str());
      failed += count != 0;
    }
  }
  std::printf("%d failed\n", failed);
  return failed == 0 ? 0 : 1;
}
