// What a call through the C ABI costs the host.
#include <algorithm>
#include <array>
#include <chrono>

#include "backends/cuda/host/runtime.h"
#include "harness/c_tensor.h"
#include "harness/cuda_bench.h"
#include "pestle/pestle.h"

namespace pestle::harness {
namespace {

constexpr int kCalls = 100;  // a batch: all fit in the stream's queue
constexpr int kBatches = 200;

// A call's arguments as the C ABI takes them.
struct CArguments {
  std::vector<pestle_tensor> tensors;
  std::vector<pestle_arg> args;

  CArguments(const Op& op, const std::vector<Value>& values)
      : tensors(values.size()), args(values.size()) {
    for (size_t i = 0; i < values.size(); ++i) {
      const Arg& arg = op.spec->args[i];
      const Value& value = values[i];
      args[i].kind = PESTLE_ABSENT;
      if (arg.role != Role::kAttribute && value.present) {
        tensors[i] = c_tensor(value.tensor);
        args[i].kind = PESTLE_TENSOR;
        args[i].value.tensor = &tensors[i];
      } else if (arg.kind == Kind::kFloat) {
        args[i].kind = PESTLE_FLOAT;
        args[i].value.f = value.f;
      }
      // Other attributes keep their defaults: a case's cost does not depend on them.
    }
  }
};

// Nanoseconds a call of each, batches in turn: what the machine does besides meets both.
using Pair = std::array<double, 2>;
Pair median_ns(Memory& memory, const std::array<std::function<bool()>, 2>& calls) {
  std::array<std::vector<double>, 2> samples;
  for (int batch = 0; batch < kBatches; ++batch) {
    for (size_t which : {0, 1}) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < kCalls; ++i) {
        if (!calls[which]()) return {};
      }
      const auto end = std::chrono::steady_clock::now();
      memory.synchronize();
      const std::chrono::duration<double, std::nano> time = end - start;
      samples[which].push_back(time.count() / kCalls);
    }
  }
  return {summarize(std::move(samples[0])).median, summarize(std::move(samples[1])).median};
}

// The first case whose attributes are all at their defaults and that the device takes.
bool measure(const Op& op, const Case& row, Memory& memory, HostCost& cost) {
  auto text = call_from_text(op, row.text, memory.device().type);
  if (!text.ok()) return false;
  std::vector<Value> defaults(op.spec->args.size());
  set_default_attributes(*op.spec, defaults);
  std::vector<TestTensor> tensors;
  std::vector<Value> values = text.value().values;
  for (size_t i = 0; i < values.size(); ++i) {
    const Arg& arg = op.spec->args[i];
    if (arg.role == Role::kAttribute) {
      if (values[i].i != defaults[i].i) return false;
    } else if (values[i].present) {
      if (arg.kind != Kind::kTensor) return false;
      auto tensor = TestTensor::make(memory, values[i].tensor, Layout::kContiguous);
      if (!tensor.ok()) return false;
      values[i].tensor = tensor.value().view();
      tensors.push_back(std::move(tensor.value()));
      memory.fill(tensors.back().region().memory, 0x3C, tensors.back().region().bytes);
    }
  }
  const CArguments c(op, values);
  const pestle_op* handle = pestle_find_op(op.spec->name);
  pestle_call_options options{};
  options.size = sizeof(options);
  const char* impl = nullptr;
  if (pestle_choose(handle, c.args.data(), c.args.size(), &options, &impl,
                    &options.workspace_bytes) != PESTLE_OK) {
    return false;
  }
  options.workspace = memory.allocate(options.workspace_bytes);
  const auto call = [&] {
    return pestle_call(handle, c.args.data(), c.args.size(), &options) == PESTLE_OK;
  };
  const int device = memory.device().index;
  const auto launch = [&] { return cuda::launch_nothing(device, nullptr).ok(); };
  const auto [call_ns, launch_ns] = median_ns(memory, {call, launch});
  cost = {op.spec->name, impl, row.text, call_ns, launch_ns};
  memory.release(options.workspace, options.workspace_bytes);
  return cost.call_ns > 0;
}

}  // namespace

std::vector<HostCost> bench_host_cost(Memory& memory, const std::vector<std::string>& ops) {
  std::vector<HostCost> costs;
  for (const Op& op : all_ops()) {
    const bool named = std::find(ops.begin(), ops.end(), op.spec->name) != ops.end();
    if (!ops.empty() && !named) continue;
    HostCost cost;
    for (const Case& row : op.spec->cases) {
      if (!(row.tags & kSmoke) || !measure(op, row, memory, cost)) continue;
      costs.push_back(cost);
      break;
    }
  }
  return costs;
}

}  // namespace pestle::harness
