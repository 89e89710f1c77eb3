#include "harness/check.h"

#include <algorithm>
#include <optional>

#include "backends/cpu/parallel.h"
#include "core/call_text.h"
#include "core/text.h"
#include "harness/data.h"
#include "harness/trial.h"

namespace pestle::harness {
namespace {

struct TagName {
  Tag tag;
  const char* name;
};
constexpr TagName kTagNames[] = {
    {kSmoke, "smoke"}, {kEdge, "edge"}, {kBar, "bar"}, {kHuge, "huge"}};

// Of hundreds of megabytes: each run costs as much as a check of its own.
constexpr int kRepeatsOfBigCases = 5;
constexpr int kThreadCounts[] = {1, 2, 3};
constexpr int kLayoutThreads = 2;

std::vector<Isa> wanted_isas(const CheckOptions& options, bool is_reference) {
  std::vector<Isa> isas;
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (isa <= best_isa() && (options.isa.empty() || options.isa == isa_name(isa))) {
      isas.push_back(isa);
    }
  }
  // A reference has no SIMD code, and sanitizers look at what users run.
  const bool one = is_reference || options.few_variants || options.for_sanitizer;
  if (one && options.isa.empty()) return {best_isa()};
  return isas;
}

// On a device: no threads and no instruction sets, but several ways to get there.
std::vector<Variant> device_variants(const Trial& trial, const Case& row,
                                     const CheckOptions& options, const Memory& memory) {
  std::vector<Variant> variants;
  const bool big = (row.tags & (kBar | kHuge)) != 0;
  const auto add = [&](Variant variant) {
    if (!options.variant.empty() && options.variant != variant_name(variant)) return;
    for (int launch = 0; launch < kLaunches; ++launch) {
      variant.launch = static_cast<Launch>(launch);
      const bool wanted = options.launch.empty() || options.launch == launch_name(variant.launch);
      // The default one is first, so that a kernel is loaded before a stream is held back.
      if (wanted && memory.has(variant.launch) && !(big && launch > 0)) variants.push_back(variant);
    }
  };
  for (int layout = 0; layout < (big ? 1 : kLayouts); ++layout) {
    add({.layout = static_cast<Layout>(layout), .threads = 0, .isa = best_isa()});
  }
  if (!big && trial.can_run_in_place()) add({.in_place = true, .threads = 0, .isa = best_isa()});
  return variants;
}

std::vector<Variant> wanted_variants(const Trial& trial, const Case& row,
                                     const CheckOptions& options, bool is_reference) {
  std::vector<Variant> variants;
  // Beyond a gigabyte, layouts and thread counts repeat what small cases show.
  const bool big = (row.tags & (kBar | kHuge)) != 0;
  const auto add = [&](const Variant& variant) {
    if (!options.variant.empty() && options.variant != variant_name(variant)) return;
    if (options.threads > 0 && options.threads != variant.threads) return;
    variants.push_back(variant);
  };
  for (Isa isa : wanted_isas(options, is_reference)) {
    for (int threads : kThreadCounts) {
      const bool needed = threads == kLayoutThreads || !(big || is_reference);
      const bool repeats = (threads == 1 && options.few_variants) ||
                           (threads != kLayoutThreads && options.for_sanitizer);
      if (needed && !repeats) add({.threads = threads, .isa = isa});
    }
    if (big) continue;
    for (int layout = 1; layout < kLayouts; ++layout) {
      add({.layout = static_cast<Layout>(layout), .threads = kLayoutThreads, .isa = isa});
    }
    if (trial.can_run_in_place()) add({.in_place = true, .threads = kLayoutThreads, .isa = isa});
  }
  return variants;
}

// More than a sanitizer's build does in some tenths of a second.
bool is_much_work(const Op& op, const Case& row) {
  constexpr int64_t kMost = int64_t{1} << 22;
  const auto call = call_from_text(op, row.text, DeviceType::kCpu);
  if (!call.ok()) return false;  // the check says what is wrong with it
  const auto flops = op.contract.evaluate(op.spec->flops, call.value().scope);
  const auto bytes = op.contract.bytes(call.value().scope);
  return (flops.ok() && flops.value() > kMost) || (bytes.ok() && bytes.value() > kMost);
}

bool is_plain(const Variant& variant) {
  return variant.layout == Layout::kContiguous && !variant.in_place;
}

class CaseCheck {
 public:
  CaseCheck(const Op& op, const Case& row, const CheckOptions& options, CheckReport& report)
      : op_(op),
        row_(row),
        options_(options),
        report_(report),
        memory_(options.memory != nullptr ? *options.memory : host_memory()),
        on_device_(&memory_ != &host_memory()) {}

  // `again`: on other data, the plain variant only, so that remembered results are noticed.
  void run(uint64_t seed, bool again = false) {
    seed_ = seed;
    again_ = again;
    if (done() || !any_impl()) return;
    auto trial = make_trial(memory_);
    if (!trial) return;
    nan_args_ = trial->nan_args();
    for (const Impl& impl : op_.impls) {
      if (done()) return;
      if (!wanted(impl)) continue;
      run_impl(*trial, impl);
      if (on_device_ && !again) repeat(*trial, impl);
      if (on_device_ && !again) on_second_device(impl);
    }
  }

  // How many arguments kNanFlavour's NaN can be in, in the case that ran last.
  uint64_t nan_args() const { return nan_args_; }

 private:
  bool big() const { return (row_.tags & (kBar | kHuge)) != 0; }
  bool done() const { return options_.until_failure && !report_.ok(); }
  bool wanted(const Impl& impl) const {
    return impl.device == memory_.device().type &&
           (options_.impl.empty() || options_.impl == impl.id);
  }
  bool any_impl() const {
    return std::any_of(op_.impls.begin(), op_.impls.end(),
                       [&](const Impl& i) { return wanted(i); });
  }

  // With its expected results; nothing after a failure or a skip has been noted.
  std::optional<Trial> make_trial(Memory& memory) {
    auto trial = Trial::make(op_, row_, seed_, memory);
    if (!trial.ok()) {
      if (trial.status().code() == Code::kUnsupported)
        skip(trial.status().message());
      else
        fail("reference", {}, "the case is not a call: " + trial.status().message());
      return std::nullopt;
    }
    const bool sampled = on_device_ && big();
    if (!fits("", trial.value().memory_needed(sampled), host_memory()) ||
        (on_device_ && !fits("on the device ", trial.value().device_memory_needed(), memory))) {
      return std::nullopt;
    }
    std::string how;
    const auto whole_fits = [&] {
      return fits("", trial.value().memory_needed(false), host_memory());
    };
    const Status status = sampled ? trial.value().compute_truth_of_big_case(how, whole_fits)
                                  : trial.value().compute_truth();
    if (status.code() == Code::kOutOfMemory) return std::nullopt;  // noted as skipped
    if (!status.ok()) {
      fail("reference", {}, "the reference fails: " + status.message());
      return std::nullopt;
    }
    if (!how.empty()) ++report_.truths[how];
    return std::move(trial.value());
  }

  bool fits(const std::string& where, int64_t needed, const Memory& memory) {
    const bool told = &memory == &host_memory() && options_.host_bytes > 0;
    const int64_t free = told ? options_.host_bytes : memory.free_bytes();
    if (needed <= free) return true;
    skip("needs " + std::to_string(needed >> 20) + " MiB " + where + "and " +
         std::to_string(free >> 20) + " MiB are free");
    return false;
  }

  void run_impl(Trial& trial, const Impl& impl) {
    const bool is_reference = &impl == &op_.reference();
    const auto variants = on_device_ ? device_variants(trial, row_, options_, memory_)
                                     : wanted_variants(trial, row_, options_, is_reference);
    // Contiguous results by instruction set: they may not depend on the number of threads.
    std::map<Isa, uint64_t> hashes;
    for (const Variant& variant : variants) {
      if ((again_ && !is_plain(variant)) || done()) continue;
      if (!set_isa(isa_name(variant.isa)).ok()) continue;
      cpu::set_threads(variant.threads);
      if (on_device_)
        memory_.set_context(impl.id + (" " + where(variant)) +
                            "\n  again: " + repeat_command(impl.id, variant));
      const Trial::Outcome outcome = trial.run(impl, variant);
      note(impl, variant, outcome, is_reference);
      if (outcome.refused || !is_plain(variant) || !outcome.faults.empty()) continue;
      const auto [found, fresh] = hashes.emplace(variant.isa, outcome.hash);
      if (!fresh && found->second != outcome.hash) {
        fail(impl.id, variant,
             std::string("gives other bits than with another ") +
                 (on_device_ ? "way of launching it" : "number of threads"));
      }
    }
    (void)set_isa("best").ok();
    cpu::set_threads(0);
  }

  void note(const Impl& impl, const Variant& variant, const Trial::Outcome& outcome,
            bool is_reference) {
    if (outcome.refused) {
      if (is_reference)
        fail(impl.id, variant, "the reference refuses: " + outcome.reason);
      else
        refuse(impl.id, variant, outcome.reason);
      return;
    }
    count(impl.id, [](CheckReport::Counts& c) { ++c.run; });
    report_.worst_bound = std::max(report_.worst_bound, outcome.worst_bound);
    for (const std::string& fault : outcome.faults) fail(impl.id, variant, fault);
  }

  void repeat(Trial& trial, const Impl& impl) {
    const int runs = big() ? std::min(options_.repeats, kRepeatsOfBigCases) : options_.repeats;
    const Variant plain{.threads = 0, .isa = best_isa()};
    const bool wanted_launch = options_.launch.empty() || options_.launch == launch_name({});
    if (runs < 2 || done() || !options_.variant.empty() || !wanted_launch) return;
    const Trial::Outcome outcome = trial.repeat(impl, runs);
    if (!outcome.refused) note(impl, plain, outcome, false);
  }

  // The plain variant on the other device, with everything else as it was.
  void on_second_device(const Impl& impl) {
    if (big() || !options_.variant.empty() || !options_.launch.empty()) return;
    if (options_.second == nullptr) {
      count(impl.id, [](CheckReport::Counts& c) { ++c.not_run; });
      ++report_.not_run["needs a second device"];
      return;
    }
    const Variant plain{.threads = 0, .isa = best_isa()};
    if (auto trial = make_trial(*options_.second))
      note(impl, plain, trial->run(impl, plain), false);
  }

  std::string where(const Variant& variant) const {
    const std::string start =
        std::string("'") + row_.text + "' " + std::string(dist_name(row_.dist)) + " ";
    if (on_device_) {
      return start + variant_name(variant) + " launch=" + std::string(launch_name(variant.launch)) +
             " seed=" + std::to_string(seed_);
    }
    return start + variant_name(variant) + " threads=" + std::to_string(variant.threads) +
           " isa=" + std::string(isa_name(variant.isa)) + " seed=" + std::to_string(seed_);
  }

  std::string repeat_command(const std::string& impl, const Variant& variant) const {
    std::string repeat = std::string("pestle check ") + op_.spec->name + " --impl " + impl +
                         " --case \"" + row_.text + "\" --dist " +
                         std::string(dist_name(row_.dist)) + " --variant " + variant_name(variant);
    if (on_device_) {
      repeat += " --device cuda:" + std::to_string(memory_.device().index) + " --launch " +
                std::string(launch_name(variant.launch));
    } else {
      repeat += " --threads " + std::to_string(variant.threads) + " --isa " +
                std::string(isa_name(variant.isa));
    }
    repeat += " --seed " + std::to_string(seed_);
    return repeat;
  }

  void fail(const std::string& impl, const Variant& variant, const std::string& what) {
    count(impl, [](CheckReport::Counts& c) { ++c.failed; });
    report_.failures.push_back(
        {op_.spec->name, impl, where(variant), what, repeat_command(impl, variant)});
  }
  void refuse(const std::string& impl, const Variant& variant, const std::string& reason) {
    count(impl, [](CheckReport::Counts& c) { ++c.refused; });
    report_.refusals.push_back({op_.spec->name, impl, where(variant), reason});
  }
  void skip(const std::string& reason) {
    count("reference", [](CheckReport::Counts& c) { ++c.skipped; });
    report_.skips.push_back({op_.spec->name, "", std::string("'") + row_.text + "'", reason});
  }
  template <class Change>
  void count(const std::string& impl, Change&& change) {
    for (const TagName& entry : kTagNames) {
      if (row_.tags & entry.tag) change(report_.by_tag[entry.name]);
    }
    change(report_.by_impl[std::string(op_.spec->name) + " " + impl]);
  }

  const Op& op_;
  const Case& row_;
  const CheckOptions& options_;
  CheckReport& report_;
  Memory& memory_;
  const bool on_device_;
  uint64_t seed_ = 0;
  bool again_ = false;
  uint64_t nan_args_ = 0;
};

}  // namespace

std::string variant_name(const Variant& variant) {
  return variant.in_place ? "in_place" : std::string(layout_name(variant.layout));
}

std::string tags_text(unsigned tags) {
  std::string text;
  for (const TagName& entry : kTagNames) {
    if (tags & entry.tag) text += (text.empty() ? "" : ",") + std::string(entry.name);
  }
  return text;
}

bool tags_from_text(std::string_view text, unsigned& tags) {
  tags = 0;
  for (std::string_view word : split(text, ',')) {
    const unsigned before = tags;
    for (const TagName& entry : kTagNames) {
      if (word == entry.name || word == "all") tags |= entry.tag;
    }
    if (tags == before) return false;
  }
  return tags != 0;
}

void CheckReport::add(const CheckReport& other) {
  const auto sum = [](std::map<std::string, Counts>& to, const auto& from) {
    for (const auto& [name, counts] : from) {
      Counts& own = to[name];
      own.run += counts.run;
      own.refused += counts.refused;
      own.skipped += counts.skipped;
      own.failed += counts.failed;
      own.not_run += counts.not_run;
    }
  };
  sum(by_tag, other.by_tag);
  sum(by_impl, other.by_impl);
  failures.insert(failures.end(), other.failures.begin(), other.failures.end());
  refusals.insert(refusals.end(), other.refusals.begin(), other.refusals.end());
  skips.insert(skips.end(), other.skips.begin(), other.skips.end());
  for (const auto& [reason, times] : other.not_run) not_run[reason] += times;
  for (const auto& [how, times] : other.truths) truths[how] += times;
  worst_bound = std::max(worst_bound, other.worst_bound);
}

void check_case(const Op& op, const Case& row, const CheckOptions& options, CheckReport& report) {
  if (options.for_sanitizer && is_much_work(op, row)) {
    ++report.not_run["much work for a sanitizer"];
    return;
  }
  CaseCheck check(op, row, options, report);
  check.run(options.seed);
  if (row.tags & (kBar | kHuge)) return;
  // Special values come in flavours, chosen by the seed: small cases see all of them.
  for (uint64_t i = 1; i < kSpecialFlavours; ++i) {
    if (row.dist == Dist::kSpecial) check.run(options.seed + i, options.for_sanitizer);
  }
  if (options.for_sanitizer) return;
  // Its NaN is in one argument only: the others have theirs in turn.
  const uint64_t flavour = options.seed % kSpecialFlavours;
  const uint64_t nan_seed =
      options.seed + (kSpecialFlavours + kNanFlavour - flavour) % kSpecialFlavours;
  for (uint64_t i = 1; row.dist == Dist::kSpecial && i < check.nan_args(); ++i) {
    check.run(nan_seed + i * kSpecialFlavours, true);
  }
  if (row.dist != Dist::kSpecial) check.run(options.seed + kSpecialFlavours, true);
}

void check_op(const Op& op, const CheckOptions& options, CheckReport& report) {
  for (const Case& row : op.spec->cases) {
    if (row.tags & options.tags) check_case(op, row, options, report);
  }
}

}  // namespace pestle::harness
