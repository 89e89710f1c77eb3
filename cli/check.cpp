// pestle check: every implementation on every case against the reference.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/case_file.h"
#include "cli/commands.h"
#include "core/json_text.h"
#include "harness/check.h"
#include "harness/cuda_memory.h"
#include "harness/data.h"
#include "harness/mutants.h"
#include "harness/results.h"

namespace pestle::cli {
namespace {

struct CheckArguments {
  std::vector<std::string> ops;
  std::string tags = "smoke,edge";
  std::string case_text;
  std::string cases_file;
  std::string dist = "normal";
  std::string device = "cpu";
  Device place;
  std::unique_ptr<harness::Memory> memory, second;
  harness::CheckOptions check;
  std::string out;
  harness::ResultFile file;
  bool mutants = false;
  bool verbose = false;
  bool json = false;
};

// The memory that --device names; the host needs none.
Status open_device(CheckArguments& options) {
  if (!harness::device_from_text(options.device, options.place)) {
    return invalid_argument("--device is '" + options.device + "', expected cpu, cuda or cuda:N");
  }
  if (options.place.type == DeviceType::kCpu) return {};
  auto memory = harness::cuda_memory(options.place.index);
  PESTLE_TRY(memory.status());
  options.memory = std::move(memory.value());
  options.check.memory = options.memory.get();
  // Any other one will do; without one, the report says what was not run.
  auto second = harness::cuda_memory(options.place.index == 0 ? 1 : 0);
  if (second.ok()) options.second = std::move(second.value());
  options.check.second = options.second.get();
  return {};
}

Status read_options(CheckArguments& options, std::vector<const Op*>& ops, Dist& dist) {
  if (!harness::tags_from_text(options.tags, options.check.tags)) {
    return invalid_argument("--tags is '" + options.tags +
                            "', expected some of smoke, edge, bar, huge, or all");
  }
  if (!harness::dist_from_name(options.dist, dist)) {
    return invalid_argument("--dist is '" + options.dist +
                            "', expected normal, outliers, zeros, subnormal, special or bytes");
  }
  if (!options.check.isa.empty()) {
    PESTLE_TRY(set_isa(options.check.isa));
    PESTLE_TRY(set_isa("best"));
  }
  for (const std::string& name : options.ops) {
    auto op = require_op(name);
    PESTLE_TRY(op.status());
    ops.push_back(op.value());
  }
  if (!options.case_text.empty() && ops.size() != 1) {
    return invalid_argument("--case needs one op");
  }
  if (ops.empty()) {
    for (const Op& op : all_ops()) ops.push_back(&op);
  }
  PESTLE_TRY(cases_of_file(options.cases_file, ops).status());
  options.check.host_bytes <<= 30;
  PESTLE_TRY(open_device(options));
  return options.file.open(options.out);
}

void write_line(CheckArguments& options, const Op& op, const nlohmann::ordered_json& result) {
  nlohmann::ordered_json line = {
      {"op", op.spec->name}, {"tags", options.tags}, {"device", options.device}};
  line.update(result);
  line["machine"] = harness::machine_json();
  if (options.check.memory != nullptr) line["gpu"] = harness::gpu_json(options.place.index);
  options.file.write(line);
}

// As the contract's own huge cases.
void check_file_cases(const CheckArguments& options, const Op& op, harness::CheckReport& report) {
  const auto cases = cases_of_file(options.cases_file, {&op});
  for (const FileCase& entry : cases.value()) {
    check_case(op, {entry.text.c_str(), kHuge}, options.check, report);
  }
}

void run_checks(CheckArguments& options, const std::vector<const Op*>& ops, Dist dist,
                harness::CheckReport& total) {
  const bool on_host = options.check.memory == nullptr;
  for (const Op* op : ops) {
    harness::CheckReport report;
    if (!options.case_text.empty()) {
      check_case(*op, {options.case_text.c_str(), kSmoke, dist}, options.check, report);
    } else {
      check_op(*op, options.check, report);
      if (options.check.tags & kHuge) check_file_cases(options, *op, report);
      if (on_host && options.check.impl.empty() && options.check.variant.empty()) {
        check_contract(*op, report);
      }
    }
    if (!report.by_tag.empty()) write_line(options, *op, harness::check_json(report));
    total.add(report);
  }
}

int run_mutants(CheckArguments& options, const std::vector<const Op*>& ops) {
  int64_t caught = 0;
  int64_t survived = 0;
  for (const Op* op : ops) {
    const auto verdicts = harness::check_mutants(*op, options.check);
    nlohmann::ordered_json json = {{"mutants", nlohmann::ordered_json::object()}};
    for (const harness::MutantVerdict& v : verdicts) {
      const char* word = v.survived() ? "SURVIVED" : v.caught ? "caught" : "does not apply";
      json["mutants"][v.mutant] = word;
      caught += v.caught;
      survived += v.survived();
      if (v.survived() || options.verbose) {
        std::printf("%-14s %s %s: %s %s\n", word, v.op.c_str(), v.impl.c_str(), v.mutant.c_str(),
                    v.by.c_str());
      }
    }
    if (!verdicts.empty()) write_line(options, *op, json);
  }
  std::printf("mutants: %lld caught, %lld survived\n", static_cast<long long>(caught),
              static_cast<long long>(survived));
  return caught > 0 && survived == 0 ? 0 : kExitFailed;
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
  for (const auto& [how, times] : report.truths) {
    std::printf("%lld big case(s): %s\n", static_cast<long long>(times), how.c_str());
  }
  std::printf("%-44s %8s %8s %8s %8s\n", "", "run", "refused", "skipped", "failed");
  for (const auto& [impl, counts] : report.by_impl) line(impl, counts);
  for (const auto& [tag, counts] : report.by_tag) line("all " + tag, counts);
  for (const auto& [reason, times] : report.not_run) {
    std::printf("not run: %s (%lld times)\n", reason.c_str(), static_cast<long long>(times));
  }
  std::printf("nearest to its bound: %.0f %%\n", report.worst_bound * 100);
}

int run(CheckArguments& options) {
  std::vector<const Op*> ops;
  Dist dist = Dist::kNormal;
  if (Status status = read_options(options, ops, dist); !status.ok()) return fail(status);
  if (options.mutants) return run_mutants(options, ops);
  harness::CheckReport report;
  run_checks(options, ops, dist, report);
  if (options.json)
    std::printf("%s\n", print_json(harness::check_json(report), 2).c_str());
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

void add_check(Program& program) {
  Command command = program.add_command(
      "check", "Run implementations on the contracts' cases and compare with the reference");
  auto options = std::make_shared<CheckArguments>();
  command.add_option("op", options->ops, "ops; all when none is named");
  command.add_option("--tags", options->tags, "smoke, edge, bar, huge or all (smoke,edge)");
  command.add_option("--impl", options->check.impl, "only this implementation");
  command.add_option("--case", options->case_text, "a call in a case's words, for one op");
  command.add_option("--cases", options->cases_file,
                     "a JSON file with more huge cases, such as bench/huge_cuda.json");
  command.add_option("--host-gib", options->check.host_bytes,
                     "the host's memory, where the system says less than there is");
  command.add_option("--dist", options->dist, "data for --case (normal)");
  command.add_option("--variant", options->check.variant,
                     "only contiguous, offset, unaligned, padded, strided, transposed, reversed "
                     "or in_place");
  command.add_option("--isa", options->check.isa, "only scalar, avx2 or avx512");
  command.add_option("--threads", options->check.threads, "only 1, 2 or 3 threads").not_negative();
  command.add_option("--device", options->device,
                     "where implementations run: cpu, cuda or cuda:N (cpu)");
  command.add_option("--launch", options->check.launch,
                     "on a CUDA device, only default (stream), stream (of its own) or graph");
  command
      .add_option("--repeats", options->check.repeats,
                  "on a CUDA device, runs that must give the same bits (20)")
      .not_negative();
  command.add_flag("--mutants", options->mutants,
                   "break each op's first implementation on purpose; fail unless all is noticed");
  command.add_option("--out", options->out, "append a JSON line for each op to this file");
  command.add_option("--seed", options->check.seed, "of the data (1)");
  command.add_flag("--verbose", options->verbose, "every failure and refusal with its reason");
  command.add_flag("--json", options->json, "for machines");
  command.run([=] { return run(*options); });
}

}  // namespace pestle::cli
