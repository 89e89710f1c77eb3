// pestle tune: measures on a GPU which way each product goes fastest, and writes what it found.
#include <cstdio>
#include <filesystem>
#include <memory>

#include "cli/commands.h"
#include "harness/cuda_bench.h"
#include "harness/cuda_memory.h"

namespace pestle::cli {
namespace {

struct TuneOptions {
  std::string op;
  std::vector<std::string> cases;
  std::string out;
  std::string show;
  std::string device = "cuda";
  double margin = 0.01;
  harness::BenchOptions bench;
};

void print_ways(const Op& op, const std::string& text, const harness::TunedWays& found, bool kept) {
  std::printf("%s '%s'\n", op.spec->name, text.c_str());
  for (size_t i = 0; i < found.ways.size(); ++i) {
    const TunedChoice& way = found.ways[i];
    const char* mark = i == found.best ? "->" : "  ";
    std::printf("  %s %-30s %-8s %3d %11.1f us%s\n", mark, found.impls[i].c_str(), way.way.c_str(),
                way.variant, way.us, i == found.untuned ? "  taken without a file" : "");
  }
  if (!kept) std::printf("  nothing to write: what is taken without a file is as fast\n");
  std::fflush(stdout);
}

// Adds the fastest way of each case to the file.
Status tune_case(const TuneOptions& options, const Op& op, const std::string& text,
                 harness::Memory& memory) {
  const Case row{text.c_str(), kBar};
  auto found = harness::time_ways_on_cuda(op, row, options.bench, memory);
  PESTLE_TRY(found.status());
  const harness::TunedWays& ways = found.value();
  const bool gains = ways.ways[ways.best].us < (1 - options.margin) * ways.ways[ways.untuned].us;
  print_ways(op, text, ways, gains);
  if (!gains) return {};
  TunedFile file = ways.machine;
  if (std::filesystem::exists(options.out)) {
    auto known = read_tuned(options.out);
    PESTLE_TRY(known.status());
    file = known.value();
  }
  TunedFile more = ways.machine;
  more.choices.push_back(ways.ways[ways.best]);
  PESTLE_TRY(merge_tuned(file, more));
  return write_tuned(options.out, file);
}

int show(const std::string& path) {
  auto file = read_tuned(path);
  if (!file.ok()) return fail(file.status());
  if (const Status used = use_tuned(file.value()); !used.ok()) return fail(used);
  std::printf("%s, compute capability %d, %d multiprocessors\n", file.value().gpu.c_str(),
              file.value().compute_capability, file.value().multiprocessors);
  for (const TunedChoice& choice : file.value().choices) {
    std::printf("  %-52s %-8s %3d %11.1f us\n", choice.key.c_str(), choice.way.c_str(),
                choice.variant, choice.us);
  }
  return 0;
}

int run_tune(const TuneOptions& options) {
  if (!options.show.empty()) return show(options.show);
  auto op = require_op(options.op);
  if (!op.ok()) return fail(op.status());
  if (options.cases.empty()) return fail(invalid_argument("tune: name a call, --case 'M=8 ...'"));
  Device device;
  if (!harness::device_from_text(options.device, device) || device.type != DeviceType::kCuda) {
    return fail(invalid_argument("--device is '" + options.device + "', expected cuda or cuda:N"));
  }
  auto memory = harness::cuda_memory(device.index);
  if (!memory.ok()) return fail(memory.status());
  for (const std::string& text : options.cases) {
    const Status status = tune_case(options, *op.value(), text, *memory.value());
    if (!status.ok()) return fail(status);
  }
  return 0;
}

}  // namespace

void add_tune(Program& program) {
  Command command = program.add_command(
      "tune", "Measure on a GPU which way a matrix product goes fastest, and keep it in a file");
  auto options = std::make_shared<TuneOptions>();
  options->bench.timing = {.spread = 0.003, .seconds = 1, .at_least = 3};
  options->out = "pestle_tuned.json";
  command.add_option("op", options->op, "an op that multiplies matrices");
  command.add_option("--case", options->cases, "a call in a case's words; may be repeated");
  command.add_option("--out", options->out,
                     "the file that gains the choices (pestle_tuned.json); PESTLE_TUNED names it "
                     "to programs");
  command.add_option("--show", options->show, "check and print such a file instead");
  command.add_option("--margin", options->margin,
                     "write only what is faster by this share than without a file (0.01)");
  command.add_option("--seconds", options->bench.timing.seconds, "at most, for each case (1)");
  command.add_option("--device", options->device, "cuda or cuda:N (cuda)");
  command.run([=] { return run_tune(*options); });
}

}  // namespace pestle::cli
