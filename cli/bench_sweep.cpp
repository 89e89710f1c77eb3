#include "cli/bench_sweep.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "cli/case_file.h"
#include "cli/commands.h"
#include "core/build_info.h"
#include "core/json_text.h"
#include "harness/results.h"

namespace pestle::cli {
namespace {

using harness::SweepForm;
using harness::SweepPoint;

Result<std::vector<const Op*>> ops_to_sweep(const SweepArguments& arguments) {
  std::vector<const Op*> ops;
  for (const std::string& name : arguments.ops) {
    auto op = require_op(name);
    PESTLE_TRY(op.status());
    if (!harness::is_sweepable(*op.value()))
      return invalid_argument("--sweep is for ops that memory bounds, and " + name + " is none");
    ops.push_back(op.value());
  }
  if (!ops.empty()) return ops;
  for (const Op& op : all_ops()) {
    if (harness::is_sweepable(op)) ops.push_back(&op);
  }
  return ops;
}

Result<std::vector<SweepForm>> forms_to_sweep(const SweepArguments& arguments) {
  auto ops = ops_to_sweep(arguments);
  PESTLE_TRY(ops.status());
  auto named = cases_of_file(arguments.cases_file, ops.value());
  PESTLE_TRY(named.status());
  std::vector<SweepForm> forms;
  for (const Op* op : ops.value()) {
    const size_t before = forms.size();
    for (const FileCase& entry : named.value()) {
      if (entry.op == op) forms.push_back({op, entry.text});
    }
    if (forms.size() > before) continue;
    for (SweepForm& form : harness::sweep_forms(*op)) forms.push_back(std::move(form));
  }
  return forms;
}

nlohmann::ordered_json where_json(harness::Memory* memory) {
  nlohmann::ordered_json json = {
      {"machine", {{"commit", build_commit()}, {"build", build_type()}}}};
  if (memory == nullptr) {
    json["machine"]["cpu"] = harness::cpu_name();
    return json;
  }
  const auto gpu = harness::gpu_json(memory->device().index);
  for (const char* key : {"name", "driver", "cuda", "portable"}) json["gpu"][key] = gpu[key];
  return json;
}

nlohmann::ordered_json rounded(const std::map<std::string, double>& us) {
  nlohmann::ordered_json json;
  for (const auto& [kind, time] : us) json[kind] = std::round(time * 1e3) / 1e3;
  return json;
}

nlohmann::ordered_json point_json(const SweepPoint& point, const nlohmann::ordered_json& where) {
  nlohmann::ordered_json json = {{"sweep", point.op},
                                 {"form", point.form},
                                 {"rows", point.rows},
                                 {"width", point.width},
                                 {"class", point.bound_class},
                                 {"impl", point.impl},
                                 {"bytes", point.bytes},
                                 {"graph", point.graph},
                                 {"agree", point.results_agree},
                                 {"us", rounded(point.us)},
                                 {"copy_us", rounded(point.copy_us)}};
  json.update(where);
  return json;
}

using Key = std::tuple<std::string, std::string, int64_t, int64_t>;

// What a run of this commit on this machine has measured already.
std::set<Key> known_points(const std::string& path, const nlohmann::ordered_json& where) {
  std::set<Key> known;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto json = parse_json(line);
    if (!json.is_object() || !json.contains("sweep")) continue;
    const bool same =
        std::all_of(where.items().begin(), where.items().end(), [&](const auto& item) {
          return json.contains(item.key()) && json[item.key()] == nlohmann::json(item.value());
        });
    if (!same) continue;
    known.emplace(json.value("sweep", ""), json.value("form", ""), json.value("rows", int64_t{0}),
                  json.value("width", int64_t{0}));
  }
  return known;
}

void print_point(const SweepPoint& point) {
  std::printf("%-22s %6lld x %-6lld", point.op.c_str(), static_cast<long long>(point.rows),
              static_cast<long long>(point.width));
  for (const auto& [kind, us] : point.us)
    std::printf(" %s %.1f us %.0f%%", kind.c_str(), us, point.copy_us.at(kind) / us * 100);
  std::printf("  %s\n", point.form.c_str());
}

void print_summary(const harness::SweepCounts& counts) {
  for (const auto& [sentence, count] : counts.refused)
    std::fprintf(stderr, "refused %lld times: %s\n", static_cast<long long>(count),
                 sentence.c_str());
  std::fprintf(
      stderr,
      "sweep: %lld points, %lld measured, %lld known, %lld no calls or too large, %lld left\n",
      static_cast<long long>(counts.points), static_cast<long long>(counts.measured),
      static_cast<long long>(counts.known), static_cast<long long>(counts.not_calls),
      static_cast<long long>(counts.left));
  if (counts.left > 0) std::fprintf(stderr, "the same command goes on with what is left\n");
}

// A line of progress every five seconds.
class Progress {
 public:
  void show(const harness::SweepCounts& counts) {
    const auto now = std::chrono::steady_clock::now();
    if (now - shown_ < std::chrono::seconds(5)) return;
    shown_ = now;
    std::fprintf(stderr, "sweep: %lld measured of %lld points, %.0f s\n",
                 static_cast<long long>(counts.measured), static_cast<long long>(counts.points),
                 std::chrono::duration<double>(now - begun_).count());
  }

 private:
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point shown_ = begun_;
};

}  // namespace

int bench_sweep(const SweepArguments& arguments, harness::Memory* memory) {
  auto forms = forms_to_sweep(arguments);
  if (!forms.ok()) return fail(forms.status());
  if (arguments.list_forms) {
    for (const SweepForm& form : forms.value())
      std::printf("%s\n", print_json(nlohmann::ordered_json{{"op", form.op->spec->name},
                                                            {"case", form.text}})
                              .c_str());
    return 0;
  }
  const nlohmann::ordered_json where = where_json(memory);
  const std::set<Key> before = known_points(arguments.out, where);
  harness::ResultFile file;
  if (Status status = file.open(arguments.out); !status.ok()) return fail(status);
  Progress progress;
  int failed = 0;
  const auto known = [&](const SweepForm& form, int64_t rows, int64_t width) {
    return before.contains({form.op->spec->name, form.text, rows, width});
  };
  const auto report = [&](const SweepPoint& point, const harness::SweepCounts& counts) {
    const auto json = point_json(point, where);
    file.write(json);
    if (arguments.json)
      std::printf("%s\n", print_json(json).c_str());
    else if (arguments.out.empty())
      print_point(point);
    if (!point.results_agree) {
      std::fprintf(stderr, "pestle: %s '%s': calls on the same inputs left other results\n",
                   point.op.c_str(), point.case_text.c_str());
      failed = kExitFailed;
    }
    progress.show(counts);
  };
  auto counts = harness::run_sweep(forms.value(), arguments.options, memory, known, report);
  if (!counts.ok()) return fail(counts.status());
  print_summary(counts.value());
  if (counts.value().measured + counts.value().known == 0) {
    std::fprintf(stderr, "pestle: the sweep measured nothing\n");
    return kExitFailed;
  }
  return failed;
}

}  // namespace pestle::cli
