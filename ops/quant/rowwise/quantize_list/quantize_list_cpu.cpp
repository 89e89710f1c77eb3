// quantize_list on the CPU.
// Map      many tensors of about one size: whole ones over the threads; else one after the other,
//          each over all threads
// Traffic  as quantize_fp8 and quantize_int8, whose code it is
// Numerics theirs
// Needs    nothing: they take any strides
#include <mutex>

#include "backends/cpu/parallel.h"
#include "ops/quant/rowwise/quantize_list/quantize_list_position.h"

namespace pestle::ops::quantize_list {
namespace {

Status run_one(const Call& call, size_t position) {
  PositionCall one = position_call(call, position);
  return run(one.op, one.call);
}

// Is no tensor more than a thread's share?
bool goes_by_tensors(const Call& call) {
  int64_t total = 0, largest = 0;
  for (const TensorView& x : call.args[arg_index(spec, "x")].list) {
    total += numel(x);
    largest = std::max(largest, numel(x));
  }
  return largest * cpu::threads() <= total;
}

Status run_list(const Call& call) {
  const size_t count = positions(call);
  if (!goes_by_tensors(call)) {
    for (size_t i = 0; i < count; ++i) PESTLE_TRY(run_one(call, i));
    return {};
  }
  std::mutex mutex;
  Status first;
  cpu::parallel_for(static_cast<int64_t>(count), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Status status = run_one(call, static_cast<size_t>(i));
      if (status.ok()) continue;
      const std::lock_guard lock(mutex);
      first = std::move(status);
    }
  });
  return first;
}

constexpr Impl kImpls[] = {
    {.id = "cpu/quantize_list_each", .run = run_list},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::quantize_list
