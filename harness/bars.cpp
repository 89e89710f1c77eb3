#include "harness/bars.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "core/json_text.h"

namespace pestle::harness {
namespace {

using nlohmann::json;

std::string format(const char* pattern, double value) {
  char text[64];
  std::snprintf(text, sizeof(text), pattern, value);
  return text;
}

std::string time_text(double us) {
  return us < 1000  ? format("%.1f us", us)
         : us < 1e6 ? format("%.2f ms", us / 1e3)
                    : format("%.2f s", us / 1e6);
}

// Criteria name "copy" for the machine's ceiling: the fastest copy known, ours or PyTorch's.
constexpr const char* kCopy = "copy";
constexpr const char* kTorchCopy = "torch_copy";

class KernelBars {
 public:
  KernelBars(const BarsOptions& options, ResultFile& raw, const Judge& judge)
      : options_(options), raw_(raw), judge_(judge) {}

  Status run(const json& section) {
    auto ceiling = CopyCeiling::make();
    PESTLE_TRY(ceiling.status());
    ceiling_ = std::move(ceiling.value());
    gflops_ = compute_ceiling_gflops();
    if (!options_.peers_file.empty()) {
      PESTLE_TRY(peers_.load(options_.peers_file));
    } else {
      const auto folder = std::filesystem::path(options_.bars_file).parent_path();
      PESTLE_TRY(peers_.start(options_.python, folder / "peers" / "run_peers.py"));
    }
    for (const json& row : section) run_row(row);
    return {};
  }

 private:
  void run_row(const json& row) {
    times_.clear();
    const Status status = measure(row);
    for (const json& criterion : row.at("criteria")) {
      Verdict verdict;
      verdict.bar = row.at("bar").get<std::string>();
      verdict.limit = criterion.at("at_least").get<double>();
      if (status.ok())
        compare(criterion, verdict);
      else
        verdict.missing = status.message();
      judge_(verdict);
    }
  }

  // Peers, ours, peers again: a slow phase of the machine should not favour either.
  Status measure(const json& row) {
    const std::string name = row.at("op").get<std::string>();
    const std::string text = row.at("case").get<std::string>();
    const Op* op = find_op(name);
    if (op == nullptr) return unsupported("there is no op " + name);
    const Case bar{text.c_str(), kBar};
    auto described = case_json(*op, bar);
    PESTLE_TRY(described.status());
    std::vector<std::string> wanted;
    for (const json& criterion : row.at("criteria")) {
      const std::string peer = criterion.at("peer").get<std::string>();
      wanted.push_back(peer == kCopy ? kTorchCopy : peer);
    }
    const double seconds = options_.bench.timing.seconds / 2;
    PESTLE_TRY(peers_.measure(described.value(), wanted, seconds, times_));
    auto result = bench_case(*op, bar, options_.bench, *ceiling_, gflops_);
    PESTLE_TRY(result.status());
    if (options_.peers_file.empty()) {
      PESTLE_TRY(peers_.measure(described.value(), wanted, seconds, times_));
    }
    result_ = std::move(result.value());
    write_raw();
    return {};
  }

  void write_raw() {
    nlohmann::ordered_json line = result_json(result_);
    for (const auto& [name, peer] : times_) {
      line["peers"][name] = {
          {"us", peer.time.median}, {"bytes", peer.bytes}, {"samples_us", peer.time.samples}};
    }
    raw_.write(line);
  }

  void compare(const json& criterion, Verdict& verdict) const {
    const std::string name = criterion.at("peer").get<std::string>();
    const PeerTime& peer = times_.at(name == kCopy ? kTorchCopy : name);
    if (criterion.at("figure") == "speed") {
      verdict.figure = time_text(result_.time.median) + " by " + result_.impl;
      verdict.peer = name + " " + time_text(peer.time.median);
      verdict.value = peer.time.median / result_.time.median;
      return;
    }
    double rate = peer.gb_per_s();
    std::string what = name;
    if (name == kCopy) {
      what = rate > result_.copy_gb_per_s ? "PyTorch's bf16 copy"
                                          : std::string("copy by ") + ceiling_->method();
      rate = std::max(rate, result_.copy_gb_per_s);
    }
    verdict.figure = format("%.2f GB/s", result_.gb_per_s()) + " by " + result_.impl;
    verdict.peer = what + format(" %.2f GB/s", rate);
    verdict.value = result_.gb_per_s() / rate;
  }

  const BarsOptions& options_;
  ResultFile& raw_;
  const Judge& judge_;
  std::unique_ptr<CopyCeiling> ceiling_;
  double gflops_ = 0;
  Peers peers_;
  std::map<std::string, PeerTime> times_;
  BenchResult result_;
};

// The slowest op of the table.
void judge_dispatch(const json& section, const Judge& judge) {
  const std::vector<DispatchCost> costs = bench_dispatch();
  for (const json& row : section) {
    const bool seen = row.at("figure") == "seen_ns";
    const auto cost = [&](const DispatchCost& c) { return seen ? c.seen_ns : c.fresh_ns; };
    Verdict verdict;
    verdict.bar = row.at("bar").get<std::string>();
    verdict.limit = row.at("at_most").get<double>();
    verdict.at_least = false;
    const auto slowest =
        std::max_element(costs.begin(), costs.end(),
                         [&](const auto& a, const auto& b) { return cost(a) < cost(b); });
    if (slowest == costs.end()) {
      verdict.missing = "no op could be dispatched";
    } else {
      verdict.value = cost(*slowest);
      verdict.figure = format("%.0f ns", verdict.value) + " (slowest of " +
                       std::to_string(costs.size()) + " ops: " + slowest->op + ")";
    }
    judge(verdict);
  }
}

// The rows of one section that --only leaves.
json selected(const json& bars, const char* section, const std::string& only) {
  json rows = json::array();
  if (!bars.contains(section)) return rows;
  for (const json& row : bars.at(section)) {
    if (row.at("bar").get<std::string>().find(only) != std::string::npos) rows.push_back(row);
  }
  return rows;
}

}  // namespace

nlohmann::ordered_json verdict_json(const Verdict& v) {
  return {{"bar", v.bar},     {"figure", v.figure},     {"peer", v.peer}, {"value", v.value},
          {"limit", v.limit}, {"at_least", v.at_least}, {"met", v.met()}, {"missing", v.missing}};
}

Status run_bars(const BarsOptions& options, ResultFile& raw, const Judge& judge) {
  std::ifstream file(options.bars_file);
  if (!file) return {Code::kIoError, options.bars_file + ": cannot be read; --bars-file names it"};
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const json bars = parse_json(text);
  if (!bars.is_object()) return {Code::kCorruptFile, options.bars_file + ": is not JSON"};
  bool any = false;
  const auto rows = [&](const char* section) {
    json found = selected(bars, section, options.only);
    any |= !found.empty();
    return found;
  };
  if (const json found = rows("dispatch"); !found.empty()) judge_dispatch(found, judge);
  if (const json found = rows("commands"); !found.empty()) judge_commands(found, options, judge);
  if (const json found = rows("kernels"); !found.empty()) {
    PESTLE_TRY(KernelBars(options, raw, judge).run(found));
  }
  if (const json found = rows("files"); !found.empty()) judge_files(found, options, judge);
  return any ? Status() : invalid_argument("no bar's name contains '" + options.only + "'");
}

}  // namespace pestle::harness
