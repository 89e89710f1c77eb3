// pestle bench: time, bytes per second and share of what the machine can do.
#include <algorithm>
#include <cstdio>
#include <deque>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/bench_sweep.h"
#include "cli/case_file.h"
#include "cli/commands.h"
#include "core/json_text.h"
#include "harness/bars.h"
#include "harness/bench.h"
#include "harness/check.h"
#include "harness/cuda_bench.h"
#include "harness/cuda_memory.h"
#include "harness/peers.h"
#include "harness/results.h"

namespace pestle::cli {
namespace {

struct BenchArguments {
  std::vector<std::string> ops;
  std::string tags = "bar";
  std::string case_text;
  std::string cases_file;
  mutable std::deque<std::string> case_texts;  // of the file's cases, whose text they point to
  int64_t footprint_mib = 1024;
  harness::BenchOptions bench;
  std::string out;
  bool json = false;
  bool list_cases = false;
  bool dispatch = false;
  bool host_cost = false;
  bool with_peers = false;
  std::string peers_script = "bench/peers/run_peers.py";
  std::string device = "cpu";
  std::unique_ptr<harness::Memory> memory;  // of --device, null for the CPU
  bool sweep = false;
  SweepArguments sweep_arguments;
  std::optional<double> seconds;
  int64_t largest_mib = 0;
  bool bars = false;
  harness::BarsOptions bar_options;
};

struct Job {
  const Op* op;
  Case row;
  std::string impl;  // that the case's file forces
};

// The file's cases that are not among `jobs`.
Status add_cases_of_file(const BenchArguments& options, const std::vector<const Op*>& ops,
                         std::vector<Job>& jobs) {
  auto more = cases_of_file(options.cases_file, ops);
  PESTLE_TRY(more.status());
  for (const FileCase& entry : more.value()) {
    const bool known = std::any_of(jobs.begin(), jobs.end(), [&](const Job& job) {
      return job.op == entry.op && job.row.text == entry.text && job.impl == entry.impl;
    });
    if (known) continue;
    options.case_texts.push_back(entry.text);
    jobs.push_back({entry.op, {options.case_texts.back().c_str(), kBar}, entry.impl});
  }
  return {};
}

Result<std::vector<Job>> select_jobs(const BenchArguments& options) {
  unsigned tags = 0;
  if (!harness::tags_from_text(options.tags, tags)) {
    return invalid_argument("--tags is '" + options.tags +
                            "', expected some of smoke, edge, bar, huge, or all");
  }
  std::vector<const Op*> ops;
  for (const std::string& name : options.ops) {
    auto op = require_op(name);
    PESTLE_TRY(op.status());
    ops.push_back(op.value());
  }
  if (!options.case_text.empty()) {
    if (ops.size() != 1) return invalid_argument("--case needs one op");
    return std::vector<Job>{{ops[0], {options.case_text.c_str(), kBar}, ""}};
  }
  if (ops.empty()) {
    for (const Op& op : all_ops()) ops.push_back(&op);
  }
  std::vector<Job> jobs;
  for (const Op* op : ops) {
    for (const Case& row : op->spec->cases) {
      if (row.tags & tags) jobs.push_back({op, row, ""});
    }
  }
  PESTLE_TRY(add_cases_of_file(options, ops, jobs));
  return jobs;
}

void print_result(const harness::BenchResult& r) {
  std::printf("%-22s %-30s %11.1f us %5.1f%% %8.2f GB/s %9.1f GFLOP/s %6.1f%% of %s\n  %s\n",
              r.op.c_str(), r.impl.c_str(), r.time.median, r.time.spread() * 100, r.gb_per_s(),
              r.gflops(), r.percent_of_ceiling, r.bound.c_str(), r.case_text.c_str());
  if (!r.launches.empty()) {
    std::printf("  %zu launched:", r.launches.size());
    for (const std::string& name : r.launches) std::printf(" %s", name.c_str());
    std::printf("\n");
  }
  if (!r.versus.empty()) std::printf("  %s\n", harness::versus_verdict(r).c_str());
  for (const auto& [name, us] : r.peers) {
    std::printf("  %.2f times as fast as %s (%.1f us)\n", us / r.time.median, name.c_str(), us);
  }
  std::fflush(stdout);
}

using BenchFunction = std::function<Result<harness::BenchResult>(const Job&)>;

// With the peers, if wanted, before and after ours: in turn, as far as two processes can be.
Result<BenchFunction> cuda_bench_function(const BenchArguments& options) {
  std::shared_ptr<harness::Peers> peers;
  if (options.with_peers) {
    peers = std::make_shared<harness::Peers>();
    PESTLE_TRY(peers->start(options.bar_options.python, options.peers_script, true));
  }
  return BenchFunction([=, &options](const Job& job) -> Result<harness::BenchResult> {
    std::map<std::string, harness::PeerTime> times;
    auto row = harness::case_json(*job.op, job.row);
    PESTLE_TRY(row.status());
    const auto ask = [&] {
      if (!peers || !job.op->has_cuda) return;
      (void)fail(peers->measure_all(row.value(), options.bench.timing.seconds, times));
    };
    ask();
    harness::BenchOptions bench = options.bench;
    if (bench.impl.empty()) bench.impl = job.impl;
    auto result = harness::bench_case_on_cuda(*job.op, job.row, bench, *options.memory);
    PESTLE_TRY(result.status());
    ask();
    for (const auto& [name, time] : times) result.value().peers[name] = time.time.median;
    return result;
  });
}

Result<BenchFunction> bench_function(const BenchArguments& options) {
  if (options.memory != nullptr) return cuda_bench_function(options);
  auto made = harness::CopyCeiling::make();
  PESTLE_TRY(made.status());
  const std::shared_ptr<harness::CopyCeiling> ceiling = std::move(made.value());
  const double gflops = harness::compute_ceiling_gflops();
  return BenchFunction([=, &options](const Job& job) {
    harness::BenchOptions bench = options.bench;
    if (bench.impl.empty()) bench.impl = job.impl;
    return harness::bench_case(*job.op, job.row, bench, *ceiling, gflops);
  });
}

int bench_all(const BenchArguments& options) {
  auto jobs = select_jobs(options);
  if (!jobs.ok()) return fail(jobs.status());
  if (jobs.value().empty()) {
    std::fprintf(stderr, "pestle: no case has a tag of '%s'\n", options.tags.c_str());
    return kExitFailed;
  }
  if (options.list_cases) {
    for (const Job& job : jobs.value()) {
      auto json = harness::case_json(*job.op, job.row);
      if (!json.ok()) return fail(json.status());
      std::printf("%s\n", print_json(json.value()).c_str());
    }
    return 0;
  }
  harness::ResultFile file;
  if (Status status = file.open(options.out); !status.ok()) return fail(status);
  auto bench = bench_function(options);
  if (!bench.ok()) return fail(bench.status());
  int failed = 0;
  for (const Job& job : jobs.value()) {
    auto result = bench.value()(job);
    if (!result.ok()) {
      // An op without an implementation for the device, or one that refuses the case, is no
      // failure.
      const bool refused =
          options.memory != nullptr && result.status().code() == Code::kUnsupported;
      const int code = refused && !job.op->has_cuda ? 0 : fail(result.status());
      if (!refused) failed = code;
      continue;
    }
    if (!result.value().results_agree) {
      std::fprintf(stderr, "pestle: %s '%s': timed calls on the same inputs left other results\n",
                   job.op->spec->name, job.row.text);
      failed = kExitFailed;
    }
    const auto json = harness::result_json(result.value());
    file.write(json);
    if (options.json)
      std::printf("%s\n", print_json(json).c_str());
    else
      print_result(result.value());
  }
  return failed;
}

int bench_dispatch(const BenchArguments& options) {
  for (const harness::DispatchCost& cost : harness::bench_dispatch()) {
    if (options.json) {
      const nlohmann::ordered_json json = {{"op", cost.op},
                                           {"case", cost.case_text},
                                           {"seen_ns", cost.seen_ns},
                                           {"fresh_ns", cost.fresh_ns}};
      std::printf("%s\n", print_json(json).c_str());
    } else {
      std::printf("%-24s seen %6.0f ns   fresh %6.0f ns\n", cost.op.c_str(), cost.seen_ns,
                  cost.fresh_ns);
    }
  }
  return 0;
}

int bench_host_cost(const BenchArguments& options) {
  if (options.memory == nullptr) return fail(invalid_argument("--host-cost needs --device cuda"));
  harness::ResultFile file;
  if (Status status = file.open(options.out); !status.ok()) return fail(status);
  for (const harness::HostCost& cost : harness::bench_host_cost(*options.memory, options.ops)) {
    std::printf("%-24s %-30s call %6.0f ns   bare launch %6.0f ns   more by %6.0f ns\n",
                cost.op.c_str(), cost.impl.c_str(), cost.call_ns, cost.launch_ns,
                cost.call_ns - cost.launch_ns);
    file.write({{"host_cost", cost.op},
                {"impl", cost.impl},
                {"case", cost.case_text},
                {"call_ns", cost.call_ns},
                {"launch_ns", cost.launch_ns},
                {"machine", harness::machine_json()},
                {"gpu", harness::gpu_json(options.memory->device().index)}});
  }
  return 0;
}

Status open_device(BenchArguments& options) {
  Device device;
  if (!harness::device_from_text(options.device, device)) {
    return invalid_argument("--device is '" + options.device + "', expected cpu, cuda or cuda:N");
  }
  if (options.bench.graph != "auto" && options.bench.graph != "on" &&
      options.bench.graph != "off") {
    return invalid_argument("--graph is '" + options.bench.graph + "', expected on, off or auto");
  }
  if (device.type == DeviceType::kCpu) return {};
  auto memory = harness::cuda_memory(device.index);
  PESTLE_TRY(memory.status());
  options.memory = std::move(memory.value());
  return {};
}

void print_verdict(const harness::Verdict& v) {
  if (!v.missing.empty()) {
    std::printf("MISSING %-46s %s\n", v.bar.c_str(), v.missing.c_str());
  } else {
    std::printf("%-7s %-46s %8.2f (%s %g)  %s%s%s\n", v.met() ? "met" : "MISSED", v.bar.c_str(),
                v.value, v.at_least ? "at least" : "at most", v.limit, v.figure.c_str(),
                v.peer.empty() ? "" : " against ", v.peer.c_str());
  }
  std::fflush(stdout);
}

int bench_bars(const BenchArguments& options) {
  harness::ResultFile file;
  if (Status status = file.open(options.out); !status.ok()) return fail(status);
  int met = 0;
  int missed = 0;
  const Status status = harness::run_bars(options.bar_options, file, [&](const auto& verdict) {
    (verdict.met() ? met : missed) += 1;
    const auto json = harness::verdict_json(verdict);
    file.write(json);
    if (options.json)
      std::printf("%s\n", print_json(json).c_str());
    else
      print_verdict(verdict);
  });
  if (!status.ok()) return fail(status);
  if (!options.json) std::printf("%d met, %d missed or missing\n", met, missed);
  return missed == 0 ? 0 : kExitFailed;
}

// Samples are few and short, since there are thousands of points.
int run_sweep(BenchArguments& options) {
  SweepArguments& sweep = options.sweep_arguments;
  sweep.ops = options.ops;
  sweep.cases_file = options.cases_file;
  sweep.out = options.out;
  sweep.json = options.json;
  sweep.list_forms = options.list_cases;
  sweep.options.bench = options.bench;
  sweep.options.bench.timing.seconds = options.seconds.value_or(0.02);
  sweep.options.bench.timing.at_least = 3;
  if (options.largest_mib > 0) sweep.options.largest_bytes = options.largest_mib << 20;
  return bench_sweep(sweep, options.memory.get());
}

int run(BenchArguments& options) {
  options.bench.footprint_bytes = options.footprint_mib << 20;
  if (Status status = open_device(options); !status.ok()) return fail(status);
  if (options.bench.timing.spread <= 0) {
    options.bench.timing.spread = options.memory != nullptr ? 0.005 : 0.01;
  }
  options.bench.timing.seconds = options.seconds.value_or(2);
  options.bar_options.bench = options.bench;
  if (options.sweep) return run_sweep(options);
  if (options.bars) return bench_bars(options);
  if (options.host_cost) return bench_host_cost(options);
  return options.dispatch ? bench_dispatch(options) : bench_all(options);
}

void add_sweep_options(Command& command, BenchArguments& options) {
  harness::SweepOptions& sweep = options.sweep_arguments.options;
  command.add_flag("--sweep", options.sweep,
                   "every op that memory bounds at many shapes and kinds of data");
  command.add_option("--rows", sweep.rows, "of --sweep, such as 256,4096")
      .separated_by(',')
      .positive();
  command.add_option("--widths", sweep.widths, "of --sweep, such as 4096,11008")
      .separated_by(',')
      .positive();
  command
      .add_option("--budget", sweep.budget_seconds,
                  "seconds after which --sweep begins no further point (0: none)")
      .not_negative();
  command.add_option("--largest", options.largest_mib, "MiB of a call of --sweep at most (4096)")
      .positive();
}

void add_bars_options(Command& command, BenchArguments& options) {
  command.add_flag("--bars", options.bars, "measure and judge every bar of --bars-file");
  command.add_option("--bars-file", options.bar_options.bars_file, "(bench/bars.json)");
  command.add_option("--only", options.bar_options.only, "bars whose name contains this");
  command.add_option("--peers", options.bar_options.peers_file,
                     "peers' times as run_peers.py wrote them, instead of measuring them now");
  command.add_option("--python", options.bar_options.python,
                     "an interpreter with PyTorch (.venv/bin/python)");
  command.add_option("--work-folder", options.bar_options.work_folder,
                     "where bars about files put them; 20 GiB");
}

}  // namespace

void add_bench(Program& program) {
  Command command = program.add_command(
      "bench", "Time implementations, next to a copy of the same memory in the same run");
  auto options = std::make_shared<BenchArguments>();
  options->bench.timing.spread = 0;  // by device
  command.add_option("op", options->ops, "ops; all when none is named");
  command.add_option("--tags", options->tags, "cases: smoke, edge, bar, huge or all (bar)");
  command.add_option("--case", options->case_text, "a call in a case's words, for one op");
  command.add_option("--cases", options->cases_file,
                     "a JSON file with more cases, such as bench/bars_cuda.json");
  command.add_option("--impl", options->bench.impl, "an implementation, not the chosen one");
  command.add_option("--vs", options->bench.versus,
                     "a second implementation, or another build's libpestle.so, timed in turn "
                     "with the first, with a verdict");
  command.add_option("--isa", options->bench.isa, "scalar, avx2, avx512 or best");
  command.add_option("--threads", options->bench.threads, "0: one a core").not_negative();
  command.add_option("--seconds", options->seconds, "at most, for each case (2; in a sweep 0.02)")
      .not_negative();
  command.add_option("--spread", options->bench.timing.spread,
                     "enough when the median's 95 % interval is this narrow (0.01; 0.005 on CUDA)");
  command.add_option("--device", options->device, "cpu, cuda or cuda:N (cpu)");
  command.add_option("--graph", options->bench.graph,
                     "on a CUDA device, calls in a graph: on, off or, when they are short, auto");
  command.add_flag("--with-peers", options->with_peers,
                   "on a CUDA device, PyTorch on the same cases in the same run (--python)");
  command.add_option("--peers-script", options->peers_script, "(bench/peers/run_peers.py)");
  command.add_flag("--host-cost", options->host_cost,
                   "on a CUDA device, what a call through the C ABI costs the host");
  command.add_option("--footprint", options->footprint_mib,
                     "MiB over which calls rotate, to keep them out of the caches (1024)");
  command.add_option("--out", options->out, "append JSON lines to this file");
  command.add_flag("--dispatch", options->dispatch, "cost of choosing an implementation");
  command.add_flag("--list-cases", options->list_cases, "print the cases as JSON lines only");
  command.add_flag("--json", options->json, "JSON lines with raw samples instead of a table");
  add_sweep_options(command, *options);
  add_bars_options(command, *options);
  command.run([=] { return run(*options); });
}

}  // namespace pestle::cli
