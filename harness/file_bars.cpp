// Bars about whole commands: start-up, and a model file's way through one.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/json_text.h"
#include "harness/bars.h"
#include "harness/data.h"

namespace pestle::harness {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr int64_t kRows = 4096;
constexpr int64_t kColumns = 8192;
constexpr int64_t kTensorBytes = kRows * kColumns * 2;

std::string number(const char* pattern, double value) {
  char text[64];
  std::snprintf(text, sizeof(text), pattern, value);
  return text;
}

// A folder of our own, gone when the bars are done.
struct WorkFolder {
  fs::path path;
  explicit WorkFolder(const std::string& parent) {
    std::error_code error;
    fs::path base = parent.empty() ? fs::temp_directory_path(error) : fs::path(parent);
    std::string name = (base / "pestle-bars-XXXXXX").string();
    if (mkdtemp(name.data()) != nullptr) path = name;
  }
  ~WorkFolder() {
    std::error_code ignored;
    if (!path.empty()) fs::remove_all(path, ignored);
  }
};

// A safetensors file of bf16 linear weights, all of one size.
Status write_model(const fs::path& path, int64_t bytes) {
  const int64_t count = bytes / kTensorBytes;
  nlohmann::ordered_json header;
  for (int64_t i = 0; i < count; ++i) {
    header["blocks." + std::to_string(i) + ".mlp.up.weight"] = {
        {"dtype", "BF16"},
        {"shape", {kRows, kColumns}},
        {"data_offsets", {i * kTensorBytes, (i + 1) * kTensorBytes}}};
  }
  std::string text = print_json(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::ofstream file(path, std::ios::binary);
  const auto size = static_cast<uint64_t>(text.size());
  file.write(reinterpret_cast<const char*>(&size), 8);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  std::vector<char> data(static_cast<size_t>(kTensorBytes));
  for (int64_t i = 0; i < count; ++i) {
    fill(data.data(), DType::kBF16, kRows * kColumns, Meaning::kValues, Dist::kNormal,
         static_cast<uint64_t>(i));
    file.write(data.data(), kTensorBytes);
  }
  file.close();
  return file ? Status() : Status{Code::kIoError, path.string() + ": could not be written"};
}

// Words of the row with {in}, {out}, {report} and {format} replaced, after this program's name.
std::vector<std::string> command_of(const json& row, const fs::path& in, const fs::path& folder,
                                    const std::string& format) {
  const std::pair<const char*, std::string> values[] = {
      {"{in}", in.string()},
      {"{out}", (folder / "out.safetensors").string()},
      {"{report}", (folder / "report.html").string()},
      {"{format}", format}};
  std::vector<std::string> argv = {own_executable()};
  for (const json& word : row.at("argv")) {
    std::string text = word.get<std::string>();
    for (const auto& [name, value] : values) {
      if (text == name) text = value;
    }
    argv.push_back(text);
  }
  return argv;
}

Result<double> timed(const std::vector<std::string>& argv, const fs::path& remove_after) {
  auto run = run_process(argv);
  PESTLE_TRY(run.status());
  std::error_code ignored;
  fs::remove(remove_after, ignored);
  if (run.value().exit_code != 0) {
    return Status{Code::kInternal, argv[0] + " " + argv[1] + " ended with exit code " +
                                       std::to_string(run.value().exit_code)};
  }
  return run.value().seconds;
}

void judge_time(const json& row, const fs::path& folder, const Judge& judge) {
  const fs::path in = folder / "model.safetensors";
  const auto bytes = static_cast<int64_t>(row.at("gib").get<double>() * (1 << 30));
  const Status written = write_model(in, bytes);
  for (const json& format : row.at("formats")) {
    Verdict verdict;
    verdict.bar = row.at("bar").get<std::string>() + ": " + format.get<std::string>();
    verdict.at_least = false;
    verdict.limit = row.at("at_most_times_cp").get<double>();
    std::vector<double> ours;
    std::vector<double> copies;
    Status status = written;
    const auto argv = command_of(row, in, folder, format.get<std::string>());
    const fs::path copy = folder / "copy.safetensors";
    // The first round warms the page cache and is not counted.
    for (int round = 0; round < 6 && status.ok(); ++round) {
      auto cp = timed({"cp", in.string(), copy.string()}, copy);
      auto run = cp.ok() ? timed(argv, folder / "out.safetensors") : cp;
      status = run.status();
      if (!status.ok() || round == 0) continue;
      copies.push_back(cp.value());
      ours.push_back(run.value());
    }
    if (!status.ok()) {
      verdict.missing = status.message();
    } else {
      const double median = summarize(ours).median;
      const double peer = summarize(copies).median;
      verdict.figure = number("%.2f s", median);
      verdict.peer = "cp " + number("%.2f s", peer);
      verdict.value = median / peer;
    }
    judge(verdict);
  }
}

void judge_memory(const json& row, const fs::path& folder, const Judge& judge) {
  constexpr double kMiB = 1 << 20;
  const double limit = row.at("base_mib").get<double>() +
                       row.at("largest_tensors").get<double>() * kTensorBytes / kMiB;
  const std::string format = row.at("format").get<std::string>();
  std::vector<double> peaks;
  for (const json& gib : row.at("gib")) {
    Verdict verdict;
    const double size = gib.get<double>();
    verdict.bar = row.at("bar").get<std::string>() + number(", %g GiB", size);
    verdict.at_least = false;
    verdict.limit = limit;
    const fs::path in = folder / "model.safetensors";
    Status status = write_model(in, static_cast<int64_t>(size * (1 << 30)));
    if (status.ok()) {
      auto run = run_process(command_of(row, in, folder, format), true);
      status = run.status();
      if (status.ok() && run.value().exit_code != 0) {
        status = {Code::kInternal, "ended with exit code " + std::to_string(run.value().exit_code)};
      }
      verdict.value = static_cast<double>(run.value().peak_private_bytes) / kMiB;
      verdict.figure = number("%.0f MiB private at most", verdict.value);
    }
    if (!status.ok())
      verdict.missing = status.message();
    else
      peaks.push_back(verdict.value);
    judge(verdict);
  }
  Verdict same;
  same.bar = row.at("bar").get<std::string>() + ", growth with the file";
  same.at_least = false;
  same.limit = 1 + row.at("same_within").get<double>();
  if (peaks.size() < 2) {
    same.missing = "a size could not be measured";
  } else {
    same.value = peaks.back() / peaks.front();
    same.figure = number("%.0f MiB", peaks.back());
    same.peer = number("%.0f MiB for the smaller file", peaks.front());
  }
  judge(same);
}

}  // namespace

void judge_files(const json& section, const BarsOptions& options, const Judge& judge) {
  for (const json& row : section) {
    const WorkFolder folder(options.work_folder);
    if (folder.path.empty()) {
      Verdict verdict;
      verdict.bar = row.at("bar").get<std::string>();
      verdict.missing = "no folder for model files; --work-folder names one";
      judge(verdict);
    } else if (row.contains("at_most_times_cp")) {
      judge_time(row, folder.path, judge);
    } else {
      judge_memory(row, folder.path, judge);
    }
  }
}

// Commands of this program, and scripts beside the bars that print seconds.
void judge_commands(const json& section, const BarsOptions& options, const Judge& judge) {
  for (const json& row : section) {
    Verdict verdict;
    verdict.bar = row.at("bar").get<std::string>();
    verdict.at_least = false;
    verdict.limit = row.at("at_most_s").get<double>();
    Status status;
    if (row.contains("script")) {
      const auto script =
          fs::path(options.bars_file).parent_path() / row.at("script").get<std::string>();
      LineWorker worker;
      status = worker.start({"bash", script.string()});
      auto answer = status.ok() ? worker.ask("") : Result<std::string>(status);
      status = answer.status();
      if (status.ok()) verdict.value = std::strtod(answer.value().c_str(), nullptr);
      if (status.ok() && verdict.value <= 0) {
        status = {Code::kInternal, script.string() + ": " + answer.value()};
      }
    } else {
      std::vector<double> seconds;
      for (int i = 0; i < 21 && status.ok(); ++i) {
        auto run = timed(command_of(row, "", "", ""), "");
        status = run.status();
        if (status.ok()) seconds.push_back(run.value());
      }
      verdict.value = summarize(std::move(seconds)).median;
    }
    verdict.figure = number("%.3f s", verdict.value);
    if (!status.ok()) verdict.missing = status.message();
    judge(verdict);
  }
}

}  // namespace pestle::harness
