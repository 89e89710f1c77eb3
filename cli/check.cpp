// pestle check: every implementation on every case against the reference.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "harness/check.h"
#include "harness/data.h"

namespace pestle::cli {
namespace {

struct Options {
  std::vector<std::string> ops;
  std::string tags = "smoke,edge";
  std::string case_text;
  std::string dist = "normal";
  harness::CheckOptions check;
  bool verbose = false;
  bool json = false;
};

Status run_checks(Options& options, harness::CheckReport& report) {
  if (!harness::tags_from_text(options.tags, options.check.tags)) {
    return invalid_argument("--tags is '" + options.tags +
                            "', expected some of smoke, edge, bar, huge, or all");
  }
  Dist dist;
  if (!harness::dist_from_name(options.dist, dist)) {
    return invalid_argument("--dist is '" + options.dist +
                            "', expected normal, outliers, zeros, subnormal, special or bytes");
  }
  if (!options.check.isa.empty()) {
    PESTLE_TRY(set_isa(options.check.isa));
    PESTLE_TRY(set_isa("best"));
  }
  std::vector<const Op*> ops;
  for (const std::string& name : options.ops) {
    auto op = require_op(name);
    PESTLE_TRY(op.status());
    ops.push_back(op.value());
  }
  if (!options.case_text.empty()) {
    if (ops.size() != 1) return invalid_argument("--case needs one op");
    check_case(*ops[0], {options.case_text.c_str(), kSmoke, dist}, options.check, report);
    return {};
  }
  if (ops.empty()) {
    for (const Op& op : all_ops()) ops.push_back(&op);
  }
  for (const Op* op : ops) {
    check_op(*op, options.check, report);
    if (options.check.impl.empty() && options.check.variant.empty()) check_contract(*op, report);
  }
  return {};
}

nlohmann::ordered_json to_json(const harness::CheckReport::Counts& counts) {
  return {{"run", counts.run},
          {"refused", counts.refused},
          {"skipped", counts.skipped},
          {"failed", counts.failed}};
}

void print_json(const harness::CheckReport& report) {
  nlohmann::ordered_json json = {{"ok", report.ok()}, {"worst_bound", report.worst_bound}};
  json["tags"] = nlohmann::ordered_json::object();
  json["implementations"] = nlohmann::ordered_json::object();
  for (const auto& [tag, counts] : report.by_tag) json["tags"][tag] = to_json(counts);
  for (const auto& [impl, counts] : report.by_impl) json["implementations"][impl] = to_json(counts);
  json["failures"] = nlohmann::ordered_json::array();
  json["refusals"] = nlohmann::ordered_json::array();
  json["skips"] = nlohmann::ordered_json::array();
  for (const auto& f : report.failures) {
    json["failures"].push_back({{"op", f.op},
                                {"impl", f.impl},
                                {"where", f.where},
                                {"what", f.what},
                                {"repeat", f.repeat}});
  }
  for (const auto& r : report.refusals) {
    json["refusals"].push_back(
        {{"op", r.op}, {"impl", r.impl}, {"where", r.where}, {"reason", r.reason}});
  }
  for (const auto& s : report.skips) {
    json["skips"].push_back({{"op", s.op}, {"where", s.where}, {"reason", s.reason}});
  }
  std::printf("%s\n", json.dump(2).c_str());
}

void print_text(const harness::CheckReport& report, bool verbose) {
  constexpr size_t kShown = 20;
  for (size_t i = 0; i < report.failures.size() && (verbose || i < kShown); ++i) {
    const harness::Failure& f = report.failures[i];
    std::printf("FAILED %s %s %s\n  %s\n  again: %s\n", f.op.c_str(), f.impl.c_str(),
                f.where.c_str(), f.what.c_str(), f.repeat.c_str());
  }
  if (!verbose && report.failures.size() > kShown) {
    std::printf("... and %zu more (--verbose shows them)\n", report.failures.size() - kShown);
  }
  if (verbose) {
    for (const auto& r : report.refusals) {
      std::printf("refused %s %s %s\n  %s\n", r.op.c_str(), r.impl.c_str(), r.where.c_str(),
                  r.reason.c_str());
    }
  }
  for (const auto& s : report.skips) {
    std::printf("SKIPPED %s %s: %s\n", s.op.c_str(), s.where.c_str(), s.reason.c_str());
  }
  const auto line = [](const std::string& name, const harness::CheckReport::Counts& c) {
    std::printf("%-44s %8lld %8lld %8lld %8lld\n", name.c_str(), static_cast<long long>(c.run),
                static_cast<long long>(c.refused), static_cast<long long>(c.skipped),
                static_cast<long long>(c.failed));
  };
  std::printf("%-44s %8s %8s %8s %8s\n", "", "run", "refused", "skipped", "failed");
  for (const auto& [impl, counts] : report.by_impl) line(impl, counts);
  for (const auto& [tag, counts] : report.by_tag) line("all " + tag, counts);
  std::printf("nearest to its bound: %.0f %%\n", report.worst_bound * 100);
}

int run(Options& options) {
  harness::CheckReport report;
  if (Status status = run_checks(options, report); !status.ok()) return fail(status);
  if (options.json)
    print_json(report);
  else
    print_text(report, options.verbose);
  int64_t ran = 0;
  for (const auto& [tag, counts] : report.by_tag) ran += counts.run;
  if (ran == 0 && report.ok()) {
    std::fprintf(stderr, "pestle: nothing was run: no case, implementation or variant matches\n");
    return kExitFailed;
  }
  return report.ok() ? 0 : kExitFailed;
}

}  // namespace

void add_check(CLI::App& app, int* exit_code) {
  auto* command = app.add_subcommand(
      "check", "Run implementations on the contracts' cases and compare with the reference");
  auto options = std::make_shared<Options>();
  command->add_option("op", options->ops, "ops; all when none is named");
  command->add_option("--tags", options->tags, "smoke, edge, bar, huge or all (smoke,edge)");
  command->add_option("--impl", options->check.impl, "only this implementation");
  command->add_option("--case", options->case_text, "a call in a case's words, for one op");
  command->add_option("--dist", options->dist, "data for --case (normal)");
  command->add_option("--variant", options->check.variant,
                      "only contiguous, offset, unaligned, padded, strided, transposed, reversed "
                      "or in_place");
  command->add_option("--isa", options->check.isa, "only scalar, avx2 or avx512");
  command->add_option("--threads", options->check.threads, "only 1, 2 or 3 threads");
  command->add_option("--seed", options->check.seed, "of the data (1)");
  command->add_flag("--verbose", options->verbose, "every failure and refusal with its reason");
  command->add_flag("--json", options->json, "for machines");
  command->callback([=] { *exit_code = run(*options); });
}

}  // namespace pestle::cli
