// Times of other libraries on the same cases: asked of a program while we measure, or read from a
// file that it wrote.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/status.h"
#include "harness/process.h"
#include "harness/timing.h"

namespace pestle::harness {

struct PeerTime {
  Timing time;
  int64_t bytes = 0;
  double gb_per_s() const { return static_cast<double>(bytes) / time.median * 1e-3; }
};

class Peers {
 public:
  // Starts `python script --serve`, for a GPU with "--device cuda".
  Status start(const std::string& python, const std::string& script, bool on_gpu = false);
  // Reads what the same script wrote as JSON lines.
  Status load(const std::string& path);

  // Of all the peers that there are for this case, maybe none.
  Status measure_all(const nlohmann::ordered_json& row, double seconds,
                     std::map<std::string, PeerTime>& times);
  // Times by peer's name. Called twice for a case, it adds samples: once before ours, once after.
  // An error when one of the peers is missing.
  Status measure(const nlohmann::ordered_json& row, const std::vector<std::string>& names,
                 double seconds, std::map<std::string, PeerTime>& times);

 private:
  Status ask(const nlohmann::ordered_json& request, std::map<std::string, PeerTime>& times);
  void add(const nlohmann::json& answer, std::map<std::string, PeerTime>& times) const;

  LineWorker worker_;
  std::vector<nlohmann::json> loaded_;
  bool from_file_ = false;
};

}  // namespace pestle::harness
