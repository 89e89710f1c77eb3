// The performance bars, read from a data file, measured, and judged.
#pragma once

#include <functional>
#include <string>

#include "harness/bench.h"
#include "harness/peers.h"
#include "harness/results.h"

namespace pestle::harness {

struct BarsOptions {
  std::string bars_file = "bench/bars.json";
  std::string peers_file;  // empty: peers are measured now, by `python`
  std::string python = ".venv/bin/python";
  std::string work_folder;  // for model files; empty: the system's temporary one
  std::string only;         // bars whose name contains this
  BenchOptions bench;
};

struct Verdict {
  std::string bar;
  std::string figure;  // "21.4 GB/s"
  std::string peer;    // "bf16 copy, 33.0 GB/s"
  double value = 0;    // what the limit is about
  double limit = 0;
  bool at_least = true;
  std::string missing;  // why there is no value; such a bar has failed
  bool met() const { return missing.empty() && (at_least ? value >= limit : value <= limit); }
};

using Judge = std::function<void(const Verdict&)>;

// Measures every bar of the file in turn and hands each verdict over as soon as it is there.
// `raw` gets the measurements behind them.
Status run_bars(const BarsOptions& options, ResultFile& raw, const Judge& judge);

// The parts, by section of the file.
void judge_files(const nlohmann::json& section, const BarsOptions& options, const Judge& judge);
void judge_commands(const nlohmann::json& section, const BarsOptions& options, const Judge& judge);

nlohmann::ordered_json verdict_json(const Verdict& verdict);

}  // namespace pestle::harness
