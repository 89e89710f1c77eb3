#include "harness/peers.h"

#include <algorithm>

#include <fstream>

#include "core/json_text.h"

namespace pestle::harness {

using nlohmann::json;

Status Peers::start(const std::string& python, const std::string& script, bool on_gpu) {
  std::vector<std::string> command = {python, script, "--serve"};
  if (on_gpu) command.insert(command.end(), {"--device", "cuda"});
  PESTLE_TRY(worker_.start(command));
  // An empty request shows at once whether PyTorch is there.
  auto answer = worker_.ask(R"({"op": "", "case": "", "peers": [], "seconds": 0})");
  if (answer.ok()) return {};
  return {Code::kIoError, "'" + python + " " + script +
                              "' does not answer: --python must name an "
                              "interpreter that has PyTorch (make setup makes .venv/bin/python)"};
}

Status Peers::load(const std::string& path) {
  std::ifstream file(path);
  if (!file) return {Code::kIoError, path + ": cannot be read"};
  for (std::string line; std::getline(file, line);) {
    json parsed = parse_json(line);
    if (!parsed.is_object() || !parsed.contains("samples_us")) {
      return {Code::kCorruptFile, path + ": a line is no peer's time: " + line.substr(0, 80)};
    }
    loaded_.push_back(std::move(parsed));
  }
  from_file_ = true;
  return {};
}

void Peers::add(const json& answer, std::map<std::string, PeerTime>& times) const {
  PeerTime& entry = times[answer.at("peer").get<std::string>()];
  auto samples = entry.time.samples;
  for (const json& sample : answer.at("samples_us")) samples.push_back(sample.get<double>());
  entry.time = summarize(std::move(samples));
  entry.bytes = answer.at("bytes").get<int64_t>();
}

Status Peers::ask(const nlohmann::ordered_json& request, std::map<std::string, PeerTime>& times) {
  auto answer = worker_.ask(print_json(request));
  PESTLE_TRY(answer.status());
  const json parsed = parse_json(answer.value());
  // A line too many would give every later case the times of another one.
  const auto op = request.at("op").get<std::string>();
  const auto text = request.at("case").get<std::string>();
  if (!parsed.is_object() || parsed.value("op", "") != op || parsed.value("case", "") != text) {
    return {Code::kIoError,
            "the peers' program answered " + op + " '" + text +
                "' with a line that is not of this case: " + answer.value().substr(0, 200)};
  }
  if (parsed.contains("error")) {
    return {Code::kUnsupported, "peer: " + parsed["error"].get<std::string>()};
  }
  for (const json& line : parsed.at("peers")) add(line, times);
  return {};
}

Status Peers::measure_all(const nlohmann::ordered_json& row, double seconds,
                          std::map<std::string, PeerTime>& times) {
  nlohmann::ordered_json request = row;
  request["peers"] = nullptr;
  request["seconds"] = seconds;
  return ask(request, times);
}

Status Peers::measure(const nlohmann::ordered_json& row, const std::vector<std::string>& names,
                      double seconds, std::map<std::string, PeerTime>& times) {
  const std::string what =
      row.at("op").get<std::string>() + " '" + row.at("case").get<std::string>() + "'";
  if (from_file_) {
    for (const json& line : loaded_) {
      const bool same = line.at("op") == row.at("op") && line.at("case") == row.at("case");
      const std::string peer = line.at("peer").get<std::string>();
      if (same && std::find(names.begin(), names.end(), peer) != names.end()) add(line, times);
    }
  } else {
    nlohmann::ordered_json request = row;
    request["peers"] = names;
    request["seconds"] = seconds;
    PESTLE_TRY(ask(request, times));
  }
  for (const std::string& name : names) {
    if (!times.contains(name)) return unsupported("no time of " + name + " for " + what);
  }
  return {};
}

}  // namespace pestle::harness
