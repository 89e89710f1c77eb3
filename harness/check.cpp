#include "harness/check.h"

#include <unistd.h>

#include <algorithm>
#include <optional>

#include "backends/cpu/parallel.h"
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

constexpr int kThreadCounts[] = {1, 2, 3};
constexpr int kLayoutThreads = 2;

int64_t available_memory() {
  return static_cast<int64_t>(sysconf(_SC_AVPHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

std::vector<Isa> wanted_isas(const CheckOptions& options, bool is_reference) {
  std::vector<Isa> isas;
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (isa <= best_isa() && (options.isa.empty() || options.isa == isa_name(isa))) {
      isas.push_back(isa);
    }
  }
  // A reference has no SIMD code, and sanitizers look at what users run.
  if ((is_reference || options.few_variants) && options.isa.empty()) return {best_isa()};
  return isas;
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
      if (needed && !(options.few_variants && threads == 1)) {
        add({Layout::kContiguous, false, threads, isa});
      }
    }
    if (big) continue;
    for (int layout = 1; layout < kLayouts; ++layout) {
      add({static_cast<Layout>(layout), false, kLayoutThreads, isa});
    }
    if (trial.can_run_in_place()) add({Layout::kContiguous, true, kLayoutThreads, isa});
  }
  return variants;
}

class CaseCheck {
 public:
  CaseCheck(const Op& op, const Case& row, const CheckOptions& options, CheckReport& report)
      : op_(op), row_(row), options_(options), report_(report) {}

  // `again`: on other data, the plain variant only, so that remembered results are noticed.
  void run(uint64_t seed, bool again = false) {
    seed_ = seed;
    again_ = again;
    auto trial = Trial::make(op_, row_, seed, host_memory());
    if (!trial.ok()) {
      if (trial.status().code() == Code::kUnsupported) return skip(trial.status().message());
      return fail("reference", {}, "the case is not a call: " + trial.status().message());
    }
    const int64_t needed = trial.value().memory_needed();
    if (needed > available_memory()) {
      return skip("needs " + std::to_string(needed >> 20) + " MiB, " +
                  std::to_string(available_memory() >> 20) + " MiB are free");
    }
    if (Status status = trial.value().compute_truth(); !status.ok()) {
      return fail("reference", {}, "the reference fails: " + status.message());
    }
    for (const Impl& impl : op_.impls) {
      if (impl.device != DeviceType::kCpu) continue;
      if (options_.impl.empty() || options_.impl == impl.id) run_impl(trial.value(), impl);
    }
  }

 private:
  void run_impl(Trial& trial, const Impl& impl) {
    const bool is_reference = &impl == &op_.reference();
    // Contiguous results by instruction set: they may not depend on the number of threads.
    std::map<Isa, uint64_t> hashes;
    for (const Variant& variant : wanted_variants(trial, row_, options_, is_reference)) {
      if (again_ && (variant.layout != Layout::kContiguous || variant.in_place)) continue;
      if (!set_isa(isa_name(variant.isa)).ok()) continue;
      cpu::set_threads(variant.threads);
      const Trial::Outcome outcome = trial.run(impl, variant);
      if (outcome.refused) {
        if (is_reference)
          fail(impl.id, variant, "the reference refuses: " + outcome.reason);
        else
          refuse(impl.id, variant, outcome.reason);
        continue;
      }
      count(impl.id, [](CheckReport::Counts& c) { ++c.run; });
      report_.worst_bound = std::max(report_.worst_bound, outcome.worst_bound);
      for (const std::string& fault : outcome.faults) fail(impl.id, variant, fault);
      if (variant.layout != Layout::kContiguous || variant.in_place || !outcome.faults.empty()) {
        continue;
      }
      const auto [found, fresh] = hashes.emplace(variant.isa, outcome.hash);
      if (!fresh && found->second != outcome.hash) {
        fail(impl.id, variant, "gives other bits than with another number of threads");
      }
    }
    (void)set_isa("best").ok();
    cpu::set_threads(0);
  }

  std::string where(const Variant& variant) const {
    return std::string("'") + row_.text + "' " + std::string(dist_name(row_.dist)) + " " +
           variant_name(variant) + " threads=" + std::to_string(variant.threads) +
           " isa=" + std::string(isa_name(variant.isa)) + " seed=" + std::to_string(seed_);
  }

  void fail(const std::string& impl, const Variant& variant, const std::string& what) {
    count(impl, [](CheckReport::Counts& c) { ++c.failed; });
    const std::string repeat =
        std::string("pestle check ") + op_.spec->name + " --impl " + impl + " --case \"" +
        row_.text + "\" --dist " + std::string(dist_name(row_.dist)) + " --variant " +
        variant_name(variant) + " --threads " + std::to_string(variant.threads) + " --isa " +
        std::string(isa_name(variant.isa)) + " --seed " + std::to_string(seed_);
    report_.failures.push_back({op_.spec->name, impl, where(variant), what, repeat});
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
  uint64_t seed_ = 0;
  bool again_ = false;
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

void check_case(const Op& op, const Case& row, const CheckOptions& options, CheckReport& report) {
  CaseCheck check(op, row, options, report);
  check.run(options.seed);
  if (row.tags & (kBar | kHuge)) return;
  // Special values come in flavours, chosen by the seed: small cases see all of them.
  for (uint64_t i = 1; i < kSpecialFlavours; ++i) {
    if (row.dist == Dist::kSpecial) check.run(options.seed + i);
  }
  if (row.dist != Dist::kSpecial) check.run(options.seed + kSpecialFlavours, true);
}

void check_op(const Op& op, const CheckOptions& options, CheckReport& report) {
  for (const Case& row : op.spec->cases) {
    if (row.tags & options.tags) check_case(op, row, options, report);
  }
}

}  // namespace pestle::harness
