#include "harness/results.h"

#include <cstdio>
#include <ctime>
#include <filesystem>
#include <iterator>

#include "backends/cuda/host/runtime.h"
#include "core/build_info.h"
#include "core/call_text.h"
#include "core/json_text.h"
#include "harness/check.h"
#include "harness/data.h"
#include "harness/test_tensor.h"

namespace pestle::harness {
namespace {

nlohmann::ordered_json timing_json(const Timing& timing) {
  return {{"median_us", timing.median},
          {"low_us", timing.low},
          {"high_us", timing.high},
          {"samples_us", timing.samples}};
}

// Of this program, so that a result names exactly what made it.
std::string binary_hash() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  char text[20];
  std::snprintf(text, sizeof(text), "%016llx",
                static_cast<unsigned long long>(
                    hash_bytes(bytes.data(), static_cast<int64_t>(bytes.size()))));
  return text;
}

nlohmann::ordered_json counts_json(const CheckReport::Counts& counts) {
  return {{"run", counts.run},
          {"refused", counts.refused},
          {"skipped", counts.skipped},
          {"failed", counts.failed},
          {"not_run", counts.not_run}};
}

}  // namespace

nlohmann::ordered_json machine_json() {
  static const std::string cpu = cpu_name();
  static const std::string binary = binary_hash();
  char when[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  return {{"cpu", cpu},
          {"commit", build_commit()},
          {"build", build_type()},
          {"compiler", build_compiler()},
          {"binary", binary},
          {"time", when}};
}

nlohmann::ordered_json gpu_json(int device) {
  auto found = cuda::device_info(device);
  if (!found.ok()) return {{"error", found.status().message()}};
  const cuda::DeviceInfo& info = found.value();
  const cuda::Clocks clocks = cuda::clocks(device);
  const int portable = cuda::portable();
  return {{"portable", portable > 0 ? std::to_string(portable) : ""},
          {"name", info.name},
          {"compute_capability", info.compute_capability},
          {"sms", info.sm_count},
          {"l2_bytes", info.l2_bytes},
          {"driver", info.driver},
          {"cuda", info.driver_version},
          {"clocks_known", clocks.known},
          {"sm_mhz", clocks.sm_mhz},
          {"memory_mhz", clocks.memory_mhz},
          {"temperature", clocks.temperature},
          {"throttled", clocks.throttled()}};
}

nlohmann::ordered_json check_json(const CheckReport& report) {
  nlohmann::ordered_json json = {{"ok", report.ok()}, {"worst_bound", report.worst_bound}};
  json["tags"] = nlohmann::ordered_json::object();
  json["implementations"] = nlohmann::ordered_json::object();
  for (const auto& [tag, counts] : report.by_tag) json["tags"][tag] = counts_json(counts);
  for (const auto& [impl, counts] : report.by_impl)
    json["implementations"][impl] = counts_json(counts);
  if (!report.not_run.empty()) json["not_run"] = report.not_run;
  if (!report.truths.empty()) json["truths"] = report.truths;
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
  return json;
}

nlohmann::ordered_json result_json(const BenchResult& r) {
  nlohmann::ordered_json json = {{"op", r.op},
                                 {"impl", r.impl},
                                 {"case", r.case_text},
                                 {"dtype", r.dtype},
                                 {"us", r.time.median},
                                 {"spread", r.time.spread()},
                                 {"bytes", r.bytes},
                                 {"flops", r.flops},
                                 {"gb_per_s", r.gb_per_s()},
                                 {"gflops", r.gflops()},
                                 {"bound", r.bound},
                                 {"percent_of_ceiling", r.percent_of_ceiling},
                                 {"copy_gb_per_s", r.copy_gb_per_s},
                                 {"sets", r.sets},
                                 {"timing", timing_json(r.time)},
                                 {"copy_timing", timing_json(r.copy)}};
  if (r.device < 0) {
    json["isa"] = r.isa;
    json["threads"] = r.threads;
    json["compute_gflops"] = r.compute_gflops;
  } else {
    json["peers"] = r.peers;
    json["graph"] = r.graph;
    json["forced"] = r.forced;
    json["launches"] = r.launches;
    json["reads"] = r.reads;
    json["writes"] = r.writes;
    json["copy_method"] = r.copy_method;
    json["results_agree"] = r.results_agree;
    json["sm_mhz"] = r.sm_mhz;
    json["memory_mhz"] = r.memory_mhz;
    json["throttled"] = r.throttled;
    json["gpu"] = gpu_json(r.device);
  }
  if (!r.versus.empty()) {
    json["versus"] = {{"impl", r.versus},           {"timing", timing_json(r.versus_time)},
                      {"ratio", r.ratio.median},    {"ratio_low", r.ratio.low},
                      {"ratio_high", r.ratio.high}, {"verdict", versus_verdict(r)}};
  }
  json["machine"] = machine_json();
  return json;
}

Result<nlohmann::ordered_json> case_json(const Op& op, const Case& row) {
  auto made = call_from_text(op, row.text, DeviceType::kCpu);
  PESTLE_TRY(made.status());
  const TextCall& call = made.value();
  nlohmann::ordered_json json = {{"op", op.spec->name},
                                 {"case", row.text},
                                 {"dist", dist_name(row.dist)},
                                 {"tags", tags_text(row.tags)}};
  json["tensors"] = nlohmann::ordered_json::object();
  json["attributes"] = nlohmann::ordered_json::object();
  for (size_t i = 0; i < call.values.size(); ++i) {
    const Arg& arg = op.spec->args[i];
    const Value& value = call.values[i];
    if (!value.present) continue;
    const auto described = [&](const TensorView& t) {
      nlohmann::ordered_json one = {{"dtype", dtype_name(t.dtype)},
                                    {"shape", std::vector<int64_t>(t.shape, t.shape + t.rank)},
                                    {"role", arg.role == Role::kInput ? "input" : "output"}};
      if (!is_contiguous(t)) one["transposed"] = true;  // the text has no other strides
      return one;
    };
    if (arg.kind == Kind::kTensor) {
      json["tensors"][arg.name] = described(value.tensor);
    } else if (arg.kind == Kind::kTensorList) {
      for (const TensorView& t : value.list) json["tensors"][arg.name].push_back(described(t));
    } else if (arg.kind == Kind::kChoice) {
      json["attributes"][arg.name] = choice_label(arg.choices, value.i);
    } else if (arg.kind == Kind::kFloat) {
      json["attributes"][arg.name] = value.f;
    } else {
      json["attributes"][arg.name] = value.i;
    }
  }
  auto bytes = op.contract.bytes(call.scope);
  PESTLE_TRY(bytes.status());
  auto flops = op.contract.evaluate(op.spec->flops, call.scope);
  PESTLE_TRY(flops.status());
  json["bytes"] = bytes.value();
  json["flops"] = flops.value();
  return json;
}

Status ResultFile::open(const std::string& path) {
  if (path.empty()) return {};
  const auto folder = std::filesystem::path(path).parent_path();
  std::error_code ignored;  // a folder that can't be made shows as a file that can't be opened
  if (!folder.empty()) std::filesystem::create_directories(folder, ignored);
  file_.open(path, std::ios::app);
  return file_ ? Status() : Status{Code::kIoError, path + ": cannot be opened for writing"};
}

void ResultFile::write(const nlohmann::ordered_json& line) {
  if (file_.is_open()) file_ << print_json(line) << '\n' << std::flush;
}

}  // namespace pestle::harness
