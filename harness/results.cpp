#include "harness/results.h"

#include <ctime>
#include <filesystem>

#include "core/build_info.h"
#include "core/call_text.h"
#include "harness/check.h"
#include "harness/data.h"

namespace pestle::harness {
namespace {

nlohmann::ordered_json timing_json(const Timing& timing) {
  return {{"median_us", timing.median},
          {"low_us", timing.low},
          {"high_us", timing.high},
          {"samples_us", timing.samples}};
}

}  // namespace

nlohmann::ordered_json machine_json() {
  static const std::string cpu = cpu_name();
  char when[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  return {{"cpu", cpu},
          {"commit", build_commit()},
          {"build", build_type()},
          {"compiler", build_compiler()},
          {"time", when}};
}

nlohmann::ordered_json result_json(const BenchResult& r) {
  nlohmann::ordered_json json = {{"op", r.op},
                                 {"impl", r.impl},
                                 {"case", r.case_text},
                                 {"dtype", r.dtype},
                                 {"isa", r.isa},
                                 {"threads", r.threads},
                                 {"us", r.time.median},
                                 {"spread", r.time.spread()},
                                 {"bytes", r.bytes},
                                 {"flops", r.flops},
                                 {"gb_per_s", r.gb_per_s()},
                                 {"gflops", r.gflops()},
                                 {"bound", r.bound},
                                 {"percent_of_ceiling", r.percent_of_ceiling},
                                 {"copy_gb_per_s", r.copy_gb_per_s},
                                 {"compute_gflops", r.compute_gflops},
                                 {"sets", r.sets},
                                 {"timing", timing_json(r.time)},
                                 {"copy_timing", timing_json(r.copy)}};
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
    if (arg.kind == Kind::kTensor) {
      const TensorView& t = value.tensor;
      json["tensors"][arg.name] = {{"dtype", dtype_name(t.dtype)},
                                   {"shape", std::vector<int64_t>(t.shape, t.shape + t.rank)},
                                   {"role", arg.role == Role::kInput ? "input" : "output"}};
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
  if (file_.is_open()) file_ << line.dump() << '\n' << std::flush;
}

}  // namespace pestle::harness
