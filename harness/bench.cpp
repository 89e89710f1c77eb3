#include "harness/bench.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "backends/cpu/parallel.h"
#include "core/dispatch.h"
#include "harness/data.h"
#include "harness/other_library.h"

namespace pestle::harness {
namespace {

constexpr int64_t kMostSets = 1024;
constexpr double kShortestSampleUs = 200;
constexpr uint64_t kSeed = 1;

const Impl* find_impl(const Op& op, const std::string& id) {
  for (const Impl& impl : op.impls) {
    if (id == impl.id) return &impl;
  }
  return nullptr;
}

Status no_impl(const Op& op, const std::string& id) {
  return invalid_argument(std::string(op.spec->name) + ": no implementation '" + id +
                          "'; `pestle ops " + op.spec->name + "` lists them");
}

}  // namespace

Result<BenchCase> BenchCase::make(const Op& op, const Case& row, int64_t footprint_bytes,
                                  Memory& memory) {
  BenchCase bench;
  bench.op_ = &op;
  bench.memory_ = &memory;
  auto call = call_from_text(op, row.text, memory.device().type);
  PESTLE_TRY(call.status());
  bench.call_ = std::move(call.value());
  auto bytes = op.contract.bytes(bench.call_.scope);
  PESTLE_TRY(bytes.status());
  bench.bytes_ = bytes.value();
  auto flops = op.contract.evaluate(op.spec->flops, bench.call_.scope);
  PESTLE_TRY(flops.status());
  bench.flops_ = flops.value();
  const int64_t sets = std::clamp<int64_t>(
      (footprint_bytes + bench.bytes_ - 1) / std::max<int64_t>(bench.bytes_, 1), 1, kMostSets);
  bench.slots_ = slots_of(*op.spec, bench.call_.values);
  for (const Slot& slot : bench.slots_) {
    if (op.spec->args[slot.arg].role != Role::kOutput) continue;
    bench.write_bytes_ += size_bytes(tensor_at(bench.call_.values, slot));
  }
  for (int64_t i = 0; i < sets; ++i) PESTLE_TRY(bench.add_set());
  bench.ran_.assign(bench.sets_.size(), false);
  return bench;
}

// The first set's inputs are generated, the others are copies of them: values do not matter twice.
Status BenchCase::add_set() {
  auto set = std::make_unique<Set>();
  set->values = OwnValues(call_.values);
  for (const Slot& slot : slots_) {
    const Arg& arg = op_->spec->args[slot.arg];
    TensorView& view = set->values.at(slot);
    auto tensor = TestTensor::make(*memory_, view, Layout::kContiguous);
    PESTLE_TRY(tensor.status());
    TestTensor& made = set->tensors.emplace_back(std::move(tensor.value()));
    const TensorView& host = made.host_view();
    if (arg.role == Role::kOutput) {
      memory_->fill(made.region().memory, 0, made.region().bytes);
    } else if (sets_.empty()) {
      fill(host.data, host.dtype, numel(host), meaning_of(arg, host.dtype), Dist::kNormal,
           kSeed + slot.arg * 1000 + slot.position * 1000000);
      made.upload();
    } else {
      const Region first = sets_[0]->tensors[set->tensors.size() - 1].region();
      memory_->copy(made.region().memory, first.memory, first.bytes);
    }
    view = made.view();
  }
  set->call = call_.call;
  set->call.args = set->values.span();
  sets_.push_back(std::move(set));
  return {};
}

Status BenchCase::queue(const Impl& impl, void* stream) {
  Set& set = *sets_[next_];
  ran_[next_] = true;
  next_ = next_ + 1 == sets_.size() ? 0 : next_ + 1;
  set.call.stream = stream;
  return impl.run(set.call);
}

void BenchCase::poison_outputs() {
  for (auto& set : sets_) {
    for (size_t s = 0; s < slots_.size(); ++s) {
      const Region region = set->tensors[s].region();
      if (op_->spec->args[slots_[s].arg].role == Role::kOutput)
        memory_->fill(region.memory, 0x5A, region.bytes);
    }
  }
  memory_->synchronize();
  ran_.assign(sets_.size(), false);
}

bool BenchCase::results_agree() const {
  uint64_t first = 0;
  bool any = false;
  for (size_t s = 0; s < sets_.size(); ++s) {
    if (!ran_[s]) continue;
    uint64_t hash = 0;
    for (const TestTensor& tensor : sets_[s]->tensors) {
      hash = hash * 31 + memory_->hash(tensor.region().memory, tensor.region().bytes);
    }
    if (any && hash != first) return false;
    first = hash;
    any = true;
  }
  return any;
}

std::vector<Region> BenchCase::inputs(int64_t set) const {
  std::vector<Region> regions;
  const Set& chosen = *sets_[static_cast<size_t>(set)];
  for (size_t s = 0; s < slots_.size(); ++s) {
    const TensorView& view = chosen.tensors[s].view();
    if (op_->spec->args[slots_[s].arg].role == Role::kInput)
      regions.push_back({view.data, size_bytes(view)});
  }
  return regions;
}

Status BenchCase::prepare(const Impl& impl) {
  auto choice = choose(*op_, sets_[0]->call, impl.id);
  PESTLE_TRY(choice.status());
  const int64_t workspace_bytes = choice.value().workspace_bytes;
  if (!workspace_ || size_bytes(workspace_->view()) < workspace_bytes) {
    const TensorView shape = make_view(nullptr, DType::kU8, 1, &workspace_bytes);
    auto workspace = TestTensor::make(*memory_, shape, Layout::kContiguous);
    PESTLE_TRY(workspace.status());
    workspace_ = std::make_unique<TestTensor>(std::move(workspace.value()));
    for (auto& set : sets_) {
      set->call.workspace = workspace_->view().data;
      set->call.workspace_bytes = workspace_bytes;
    }
  }
  PESTLE_TRY(warm_up(impl));
  batch_ = 1;
  const double once = run(impl);
  batch_ = std::max(batch_, static_cast<int>(std::ceil(kShortestSampleUs / std::max(once, 0.1))));
  return {};
}

Status BenchCase::warm_up(const Impl& impl) {
  PESTLE_TRY(impl.run(sets_[0]->call));
  memory_->synchronize();
  return {};
}

double BenchCase::run(const Impl& impl) {
  const double us = memory_->time_us([&] {
    for (int i = 0; i < batch_; ++i) {
      (void)impl.run(sets_[next_]->call).ok();  // prepare() has seen it succeed
      next_ = next_ + 1 == sets_.size() ? 0 : next_ + 1;
    }
  });
  return us / batch_;
}

std::string versus_verdict(const BenchResult& result) {
  const Timing& ratio = result.ratio;
  if (ratio.low <= 1 && ratio.high >= 1) return "no difference shown";
  char text[160];
  const bool faster = ratio.median < 1;
  if (ratio.median < 0.5 || ratio.median > 2) {
    std::snprintf(text, sizeof(text), "%.2f times as %s as %s (95 %%: %.2f to %.2f)",
                  faster ? 1 / ratio.median : ratio.median, faster ? "fast" : "slow",
                  result.versus.c_str(), faster ? 1 / ratio.high : ratio.low,
                  faster ? 1 / ratio.low : ratio.high);
    return text;
  }
  const auto gain = [&](double r) { return (faster ? 1 / r : r) * 100 - 100; };
  std::snprintf(text, sizeof(text), "%s than %s by %.1f %% (95 %%: %.1f to %.1f %%)",
                faster ? "faster" : "slower", result.versus.c_str(), gain(ratio.median),
                std::min(gain(ratio.low), gain(ratio.high)),
                std::max(gain(ratio.low), gain(ratio.high)));
  return text;
}

namespace {

// Leaves threads and instruction set as the rest of the process expects them.
struct Settings {
  ~Settings() {
    cpu::set_threads(0);
    (void)set_isa("best").ok();
  }
};

void rate(BenchResult& r) {
  r.copy_gb_per_s = static_cast<double>(CopyCeiling::bytes_per_sample()) / r.copy.median * 1e-3;
  const double memory_us = static_cast<double>(r.bytes) / r.copy_gb_per_s * 1e-3;
  const double compute_us = static_cast<double>(r.flops) / r.compute_gflops * 1e-3;
  r.bound = compute_us > memory_us ? "compute" : "memory";
  r.percent_of_ceiling = std::max(compute_us, memory_us) / r.time.median * 100;
}

}  // namespace

std::string main_dtype(const Op& op, const TextCall& call) {
  const std::vector<Slot> slots = slots_of(*op.spec, call.values);
  if (slots.empty()) return "none";
  return std::string(dtype_name(tensor_at(call.values, slots[0]).dtype));
}

Status pick_impls(const Op& op, const BenchOptions& options, BenchCase& bench, const Impl*& impl,
                  const Impl*& versus) {
  impl = find_impl(op, options.impl);
  if (options.impl.empty()) {
    auto choice = choose(op, bench.first_call());
    PESTLE_TRY(choice.status());
    impl = choice.value().impl;
  }
  if (impl == nullptr) return no_impl(op, options.impl);
  if (names_library(options.versus)) {
    auto other = impl_of_library(op, options.versus, bench.memory());
    PESTLE_TRY(other.status());
    versus = other.value();
    PESTLE_TRY(bench.prepare(*impl));
    return bench.warm_up(*versus);
  }
  versus = options.versus.empty() ? nullptr : find_impl(op, options.versus);
  if (!options.versus.empty() && versus == nullptr) return no_impl(op, options.versus);
  if (versus != nullptr) PESTLE_TRY(bench.prepare(*versus));
  return bench.prepare(*impl);
}

Result<BenchResult> bench_case(const Op& op, const Case& row, const BenchOptions& options,
                               CopyCeiling& ceiling, double compute_gflops) {
  const Settings restore;
  PESTLE_TRY(set_isa(options.isa));
  cpu::set_threads(options.threads);
  auto made = BenchCase::make(op, row, options.footprint_bytes, host_memory());
  PESTLE_TRY(made.status());
  BenchCase& bench = made.value();

  const Impl* impl = nullptr;
  const Impl* versus = nullptr;
  PESTLE_TRY(pick_impls(op, options, bench, impl, versus));

  std::vector<std::function<double()>> contenders = {[&] { return bench.run(*impl); },
                                                     [&] { return ceiling.sample(); }};
  if (versus != nullptr) contenders.push_back([&] { return bench.run(*versus); });
  std::vector<Timing> timings = time_interleaved(contenders, options.timing);

  BenchResult result;
  result.op = op.spec->name;
  result.impl = impl->id;
  result.case_text = row.text;
  result.dtype = main_dtype(op, bench.text_call());
  result.isa = isa_name(this_machine().isa);
  result.threads = cpu::threads();
  result.sets = bench.sets();
  result.bytes = bench.bytes();
  result.flops = bench.flops();
  result.time = std::move(timings[0]);
  result.copy = std::move(timings[1]);
  result.compute_gflops = compute_gflops;
  rate(result);
  if (versus != nullptr) {
    result.versus = versus->id;
    result.versus_time = std::move(timings[2]);
    result.ratio = paired_ratio(result.time, result.versus_time);
  }
  return result;
}

}  // namespace pestle::harness
