// What a user's files must survive, and what must not pass in silence: a named test for each fault
// that was found by running on files of others.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "backends/cpu/parallel.h"
#include "core/json_text.h"
#include "files/dequantize_file.h"
#include "files/diff_files.h"
#include "files/inspect_file.h"
#include "files/model.h"
#include "files/quantize_file.h"
#include "files/stored_layers.h"
#include "files/text.h"
#include "tests/files/test_models.h"

namespace pestle::files {
namespace {

class UserFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    save_model(in_, {weight("blocks.0.fc.weight", {40, 72}), weight("blocks.1.fc.weight", {40, 72}),
                     weight("blocks.2.fc.weight", {40, 72}), weight("blocks.0.fc.bias", {40})});
  }
  QuantizeOptions options(const std::string& format) {
    QuantizeOptions options;
    options.input = in_;
    options.output = out_;
    options.format = format;
    return options;
  }
  static QuantizeReport run(const QuantizeOptions& options) {
    auto report = quantize_file(options);
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report.ok() ? std::move(report.value()) : QuantizeReport();
  }
  // Refused, with this in the message, and every file in the folder as it was.
  void expect_error(const QuantizeOptions& options, Code code, const std::string& part) {
    const auto before = everything();
    const auto report = quantize_file(options);
    ASSERT_FALSE(report.ok());
    EXPECT_EQ(report.status().code(), code) << report.status().message();
    EXPECT_NE(report.status().message().find(part), std::string::npos) << report.status().message();
    EXPECT_EQ(everything(), before);
  }
  std::map<std::string, std::string> everything() const {
    std::map<std::string, std::string> files;
    for (const std::string& name : folder_.names()) files[name] = contents(folder_ / name);
    return files;
  }
  // What the command line does: exit code, standard output and standard error.
  static std::string binary() {
    const char* path = std::getenv("PESTLE_BIN");
    EXPECT_NE(path, nullptr) << "is PESTLE_BIN set?";
    return path == nullptr ? "pestle" : path;
  }
  struct Outcome {
    int code = -1;
    std::string out;
    std::string err;
  };
  Outcome pestle(const std::string& arguments) const {
    const std::string command = binary() + " " + arguments + " >" + (folder_ / "stdout") + " 2>" +
                                (folder_ / "stderr") + " </dev/null";
    const int status = std::system(command.c_str());
    Outcome outcome{WIFEXITED(status) ? WEXITSTATUS(status) : -1, contents(folder_ / "stdout"),
                    contents(folder_ / "stderr")};
    std::filesystem::remove(folder_ / "stdout");
    std::filesystem::remove(folder_ / "stderr");
    return outcome;
  }
  static const StoredLayer* find(const std::vector<StoredLayer>& layers, const std::string& name) {
    for (const StoredLayer& layer : layers) {
      if (layer.name == name) return &layer;
    }
    return nullptr;
  }

  TempFolder folder_;
  std::string in_ = folder_ / "in.safetensors";
  std::string out_ = folder_ / "out.safetensors";
};

// ---- nothing is lost

// First layer in `first`, the rest of the same model in `second`; the first keeps what was said of
// it.
TEST_F(UserFilesTest, PartlyQuantisedFilesKeepTheirDescriptions) {
  struct Step {
    const char* format;
    FileLayout layout;
  };
  const Step kSteps[] = {{"nvfp4", FileLayout::kComfy},
                         {"int4-g32", FileLayout::kPlain},
                         {"mxfp4", FileLayout::kPlain},
                         {"fp8", FileLayout::kComfy}};
  save_model(in_, {weight("blocks.0.fc.weight", {40, 96}), weight("blocks.1.fc.weight", {40, 96})});
  for (const Step& first : kSteps) {
    for (const Step& second : kSteps) {
      SCOPED_TRACE(std::string(first.format) + " then " + second.format);
      QuantizeOptions o = options("");
      o.overwrite = true;
      o.layers = {{"blocks.0.*", first.format}};
      o.layout = first.layout;
      run(o);
      o.input = out_;
      o.output = folder_ / "twice.safetensors";
      o.layers = {{"blocks.1.*", second.format}};
      o.layout = second.layout;
      run(o);
      const auto once = Model::open(out_);
      const auto twice = Model::open(o.output);
      ASSERT_TRUE(once.ok() && twice.ok());
      const auto before = stored_layers(once.value());
      const auto after = stored_layers(twice.value());
      ASSERT_TRUE(before.ok() && after.ok()) << after.status().message();
      const StoredLayer* was = find(before.value(), "blocks.0.fc.weight");
      const StoredLayer* is = find(after.value(), "blocks.0.fc.weight");
      ASSERT_TRUE(was != nullptr && is != nullptr);
      EXPECT_EQ(is->format, first.format);
      EXPECT_EQ(is->shape, (std::vector<int64_t>{40, 96}));
      EXPECT_EQ(is->source, DType::kBF16);
      EXPECT_EQ(find(after.value(), "blocks.1.fc.weight")->format, second.format);
      DiffOptions difference;
      difference.a = out_;
      difference.b = o.output;
      const auto report = diff_files(difference);
      ASSERT_TRUE(report.ok());
      ASSERT_EQ(report.value().layers.size(), 2u);
      EXPECT_EQ(report.value().layers[1].name, "blocks.0.fc.weight");
      EXPECT_EQ(report.value().layers[1].sums.noise, 0);
    }
  }
}

TEST_F(UserFilesTest, DescriptionsInQuantizationMetadataAloneAreKept) {
  run(options("fp8"));
  const auto model = Model::open(out_);
  ASSERT_TRUE(model.ok());
  std::vector<TestTensor> tensors;
  for (const ModelTensor& tensor : model.value().tensors()) {
    if (tensor.name.ends_with(".comfy_quant")) continue;
    tensors.push_back(
        {tensor.name, std::string(tensor.dtype_name), tensor.shape, bytes_of(tensor.data)});
  }
  tensors.push_back(weight("blocks.3.fc.weight", {40, 72}));
  auto metadata = model.value().metadata();
  metadata.erase("pestle");
  save_model(in_, tensors, metadata);
  QuantizeOptions o = options("int8");
  o.overwrite = true;
  run(o);
  const auto again = Model::open(out_);
  const auto layers = stored_layers(again.value());
  ASSERT_TRUE(layers.ok());
  EXPECT_EQ(find(layers.value(), "blocks.1.fc.weight")->format, "fp8");
  EXPECT_EQ(find(layers.value(), "blocks.3.fc.weight")->format, "int8");
}

TEST_F(UserFilesTest, AReportMayNotReplaceTheModel) {
  for (const std::string& target : {in_, out_, folder_ / "./in.safetensors"}) {
    QuantizeOptions o = options("fp8");
    o.overwrite = true;
    o.reports = {{"HTML report", target, 0, true, false}};
    expect_error(o, Code::kInvalidArgument, "are the same file");
  }
  std::filesystem::create_hard_link(in_, folder_ / "other name");
  QuantizeOptions o = options("fp8");
  o.overwrite = true;
  o.reports = {{"JSON report", folder_ / "other name", 0, true, false}};
  expect_error(o, Code::kInvalidArgument, "JSON report and input are the same file");
  o.reports = {{"JSON report", folder_ / "r", 0, true, false},
               {"HTML report", folder_ / "r", 0, true, false}};
  expect_error(o, Code::kInvalidArgument, "HTML report and JSON report are the same file");
}

TEST_F(UserFilesTest, ResumeMayNotEmptyItsInput) {
  std::filesystem::rename(in_, out_ + ".partial");
  QuantizeOptions o = options("fp8");
  o.input = out_ + ".partial";
  o.resume = true;
  expect_error(o, Code::kInvalidArgument, "unfinished output and input are the same file");
}

TEST_F(UserFilesTest, ForceMayNotReplaceTheInputsShards) {
  save_model(folder_ / "m-00001-of-00002.safetensors", {weight("blocks.0.fc.weight", {40, 72})});
  save_model(folder_ / "m-00002-of-00002.safetensors", {weight("blocks.1.fc.weight", {40, 72})});
  const std::string index = folder_ / "m.safetensors.index.json";
  std::ofstream(index) << R"({"weight_map": {
      "blocks.0.fc.weight": "m-00001-of-00002.safetensors",
      "blocks.1.fc.weight": "m-00002-of-00002.safetensors"}})";
  QuantizeOptions o = options("fp8");
  o.input = index;
  o.output = folder_ / "m.safetensors";
  o.max_shard_bytes = 1;
  o.overwrite = true;
  expect_error(o, Code::kInvalidArgument, "output and input are the same file");
  o.output = folder_ / "other.safetensors";
  o.reports = {{"JSON report", index, 0, true, false}};
  expect_error(o, Code::kInvalidArgument, "JSON report and input are the same file");
}

TEST_F(UserFilesTest, OutputsAreCheckedBeforeAnyWork) {
  bool worked = false;
  QuantizeOptions o = options("fp8");
  o.progress = [&](const Progress& progress) { worked |= progress.bytes_done > 0; };
  o.reports = {{"HTML report", folder_ / "no/folder/r.html", 0, false, false}};
  expect_error(o, Code::kIoError, "No such file");
  std::ofstream(folder_ / "r.json") << "kept";
  o.reports = {{"JSON report", folder_ / "r.json", 0, false, false}};
  expect_error(o, Code::kIoError, "pass --force");
  o.reports = {{"JSON report", folder_.path(), 0, true, false}};
  expect_error(o, Code::kIoError, "no regular file");
  EXPECT_FALSE(worked);
}

// In this process: a signal would end it.
TEST_F(UserFilesTest, AnInputCutShortWhileItIsReadIsAnError) {
  std::vector<TestTensor> tensors;
  for (int i = 0; i < 4; ++i) {
    tensors.push_back(weight("blocks." + std::to_string(i) + ".fc.weight", {512, 1024}));
  }
  save_model(in_, tensors);
  QuantizeOptions o = options("fp8");
  o.progress = [&](const Progress& progress) {
    if (progress.bytes_done > 0) std::filesystem::resize_file(in_, 100'000);
  };
  const auto report = quantize_file(o);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.status().code(), Code::kIoError) << report.status().message();
  EXPECT_EQ(folder_.names(), std::vector<std::string>{"in.safetensors"});
}

TEST_F(UserFilesTest, AnInputChangedWhileItIsReadIsAnError) {
  QuantizeOptions o = options("fp8");
  o.progress = [&](const Progress&) {
    std::filesystem::last_write_time(
        in_, std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  };
  const auto report = quantize_file(o);
  ASSERT_FALSE(report.ok());
  EXPECT_NE(report.status().message().find("was changed while it was read"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(out_));
}

TEST_F(UserFilesTest, DeepJsonIsRefusedWhereverItStands) {
  const std::string deep = std::string(150'000, '[') + std::string(150'000, ']');
  EXPECT_TRUE(parse_json(deep).is_discarded());
  EXPECT_FALSE(parse_json("{\"text\": \"" + std::string(1000, '[') + "\"}").is_discarded());
  TestTensor described{"blocks.0.fc.comfy_quant", "U8", {}, ""};
  described.bytes = "{\"format\":\"float8_e4m3fn\",\"params\":" + deep + "}";
  described.shape = {static_cast<int64_t>(described.bytes.size())};
  save_model(in_, {weight("blocks.0.fc.weight", {32, 32}), described});
  EXPECT_EQ(inspect_file(in_).status().code(), Code::kCorruptFile);
  save_model(in_, {weight("blocks.0.fc.weight", {32, 32})},
             {{"_quantization_metadata", "{\"layers\":" + deep + "}"}});
  EXPECT_EQ(inspect_file(in_).status().code(), Code::kCorruptFile);
  QuantizeOptions o = options("fp8");
  o.default_keep = false;
  expect_error(o, Code::kCorruptFile, "_quantization_metadata is no JSON");
}

TEST_F(UserFilesTest, ThreadsAreClamped) {
  cpu::set_threads(100'000);
  EXPECT_EQ(cpu::threads(), cpu::kMaxThreads);
  cpu::set_threads(0);
}

TEST_F(UserFilesTest, NamesCanNotSteerATerminal) {
  const std::string name =
      "evil\x1b[2J\xc2\x9b"
      "31m.weight";
  save_model(in_, {weight(name, {32, 32}), weight("a.weight", {32, 32})}, {{"\x1b]0;", "x"}});
  for (const std::string& command : {"inspect --layers " + in_, "diff " + in_ + " " + in_,
                                     "quantize --dry-run --all -f fp8 " + in_}) {
    const Outcome outcome = pestle(command);
    EXPECT_EQ(outcome.code, 0) << command << outcome.err;
    EXPECT_EQ(outcome.out.find('\x1b'), std::string::npos) << command;
    EXPECT_EQ(outcome.out.find("\xc2\x9b"), std::string::npos) << command;
  }
  EXPECT_NE(pestle("inspect --layers " + in_).out.find("evil\\x1B[2J\\xC2\\x9B31m.weight"),
            std::string::npos);
}

TEST_F(UserFilesTest, NoPartialFileIsLeftByAnError) {
  TestTensor bad = weight("blocks.2.fc.weight", {40, 72});
  bad.bytes[1] = '\x7f';
  bad.bytes[0] = '\xc0';
  save_model(in_,
             {weight("blocks.0.fc.weight", {40, 72}), weight("blocks.1.fc.weight", {40, 72}), bad});
  expect_error(options("fp8"), Code::kCorruptFile, "is NaN");
  QuantizeOptions o = options("fp8");
  o.max_shard_bytes = 3000;
  expect_error(o, Code::kCorruptFile, "is NaN");
}

TEST_F(UserFilesTest, NanInATensorThatIsKeptIsTold) {
  for (const char* dtype : {"BF16", "F16", "F32", "F64", "F8_E4M3", "F8_E5M2"}) {
    TestTensor bias = {"blocks.0.fc.bias", dtype, {40}, ""};
    const int width = dtype[1] == '8' ? 1 : dtype[1] == '6' ? 8 : dtype[1] == '3' ? 4 : 2;
    bias.bytes.assign(static_cast<size_t>(40 * width), '\0');
    bias.bytes.replace(static_cast<size_t>(7 * width), static_cast<size_t>(width),
                       std::string(static_cast<size_t>(width), '\xff'));
    save_model(in_, {weight("blocks.0.fc.weight", {40, 72}), weight("blocks.1.fc.weight", {40, 72}),
                     bias});
    SCOPED_TRACE(dtype);
    expect_error(options("fp8"), Code::kCorruptFile, "element [7] is NaN");
    QuantizeOptions o = options("fp8");
    o.allow_non_finite = true;
    run(o);
    std::filesystem::remove(out_);
  }
}

// ---- nothing passes falsely

TEST_F(UserFilesTest, NothingQuantisedIsAnError) {
  save_model(in_, {weight("norm.weight", {72}), weight("conv.weight", {8, 8, 3, 3})});
  expect_error(options("fp8"), Code::kInvalidArgument, "nothing would be quantised: 1 tensors 1-D");
  QuantizeOptions o = options("fp8");
  o.dry_run = true;
  expect_error(o, Code::kInvalidArgument, "nothing would be quantised");
  EXPECT_EQ(pestle("quantize -f fp8 " + in_ + " " + out_).code, 11);
}

TEST_F(UserFilesTest, NothingDecodedIsAnError) {
  EXPECT_EQ(pestle("dequantize " + in_ + " " + out_).code, 11);
  EXPECT_FALSE(std::filesystem::exists(out_));
}

TEST_F(UserFilesTest, NothingComparedFailsTheGate) {
  save_model(out_, {weight("other.weight", {40, 72})});
  for (const char* gate : {"", " --max-error 0.5"}) {
    const Outcome outcome = pestle("diff " + in_ + " " + out_ + gate);
    EXPECT_EQ(outcome.code, 1);
    EXPECT_NE(outcome.err.find("nothing was compared"), std::string::npos);
  }
}

TEST_F(UserFilesTest, ALayerThatIsNotANumberFailsTheGate) {
  TestTensor bad = weight("blocks.2.fc.weight", {40, 72});
  bad.bytes[0] = '\xc0';
  bad.bytes[1] = '\x7f';
  TestTensor other = weight("blocks.0.fc.weight", {40, 72});
  other.bytes[1] = static_cast<char>(other.bytes[1] ^ 1);
  save_model(
      out_, {other, weight("blocks.1.fc.weight", {40, 72}), bad, weight("blocks.0.fc.bias", {40})});
  const Outcome outcome = pestle("diff " + in_ + " " + out_ + " --max-error 1000");
  EXPECT_EQ(outcome.code, 1) << outcome.out;
  EXPECT_EQ(outcome.out.find("blocks.2.fc.weight"), 0u) << outcome.out;
}

TEST_F(UserFilesTest, ALayerThatWasNotComparedFailsTheGate) {
  save_model(out_, {weight("blocks.0.fc.weight", {40, 72}), weight("blocks.1.fc.weight", {40, 72}),
                    weight("blocks.0.fc.bias", {40}), weight("more.weight", {40, 72})});
  EXPECT_EQ(pestle("diff " + in_ + " " + out_).code, 0);
  Outcome outcome = pestle("diff " + in_ + " " + out_ + " --max-error 0.5");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("1 layers of the first were not compared: blocks.2.fc.weight"),
            std::string::npos)
      << outcome.err;
  // What the second has beside them is no layer of the first.
  save_model(out_, {weight("blocks.0.fc.weight", {40, 72}), weight("blocks.1.fc.weight", {40, 72}),
                    weight("blocks.2.fc.weight", {40, 72}), weight("blocks.0.fc.bias", {40}),
                    weight("more.weight", {40, 72})});
  EXPECT_EQ(pestle("diff " + in_ + " " + out_ + " --max-error 0.5").code, 0);
  save_model(out_, {weight("blocks.0.fc.weight", {40, 72}), weight("blocks.1.fc.weight", {72, 40}),
                    weight("blocks.2.fc.weight", {40, 72}), weight("blocks.0.fc.bias", {40})});
  outcome = pestle("diff " + in_ + " " + out_ + " --max-error 0.5");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("blocks.1.fc.weight"), std::string::npos) << outcome.err;
}

TEST_F(UserFilesTest, ALayerPatternThatTakesNoLayerIsAnError) {
  QuantizeOptions o = options("fp8");
  o.layers = {{"*.bias", "int8"}};
  expect_error(o, Code::kInvalidArgument,
               "takes no layer: \"blocks.0.fc.bias\" is kept: no weight");
  o.layers = {{"blocks.*", "int8"}, {"blocks.1.*", "nvfp4"}};
  expect_error(
      o, Code::kInvalidArgument,
      "\"blocks.1.*=nvfp4\" takes no layer: \"blocks.1.fc.weight\" is taken by the pattern "
      "\"blocks.*\"");
}

TEST_F(UserFilesTest, JsonThatCanNotBeWrittenFails) {
  if (access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full here";
  for (const std::string& command :
       {"quantize -f fp8 --json - " + in_ + " " + out_, "inspect --json " + in_,
        "diff --json " + in_ + " " + in_, std::string("ops --json")}) {
    const int status = std::system((binary() + " " + command + " >/dev/full 2>/dev/null").c_str());
    EXPECT_EQ(WEXITSTATUS(status), 16) << command;
  }
}

TEST_F(UserFilesTest, TheCommandLineBeatsTheRecipe) {
  const std::string recipe = folder_ / "r.toml";
  std::ofstream(recipe) << "\xEF\xBB\xBF"  // as some editors begin a file
                        << "format = \"fp8\"\nkeep = [\"blocks.0.*\"]\nscale_search = \"mse\"\n"
                           "[[layer]]\npattern = \"blocks.1.*\"\nformat = \"nvfp4\"\n";
  const std::string json = folder_ / "r.json";
  const auto formats = [&](const std::string& more) {
    const Outcome outcome = pestle("quantize --force -q --json " + json + " --recipe " + recipe +
                                   " " + more + " " + in_ + " " + out_);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    const auto report = nlohmann::json::parse(contents(json));
    std::map<std::string, std::string> found;
    for (const auto& layer : report["layers"]) {
      found[layer["name"]] = layer["format"].is_null() ? "" : std::string(layer["format"]);
      if (layer.contains("relative_error_amax")) found["mse"] = "yes";
    }
    return found;
  };
  auto found = formats("");
  EXPECT_EQ(found["blocks.0.fc.weight"], "");
  EXPECT_EQ(found["blocks.1.fc"], "nvfp4");
  EXPECT_EQ(found["blocks.2.fc"], "fp8");
  EXPECT_EQ(found["mse"], "yes");
  found = formats("-l 'blocks.0.*=int8' -l 'blocks.1.*=int8' --scale-search amax");
  EXPECT_EQ(found["blocks.0.fc"], "int8");
  EXPECT_EQ(found["blocks.1.fc"], "int8");
  EXPECT_EQ(found["mse"], "");
  found = formats("-f mxfp8 -k 'blocks.1.*'");
  EXPECT_EQ(found["blocks.1.fc.weight"], "");
  EXPECT_EQ(found["blocks.2.fc"], "mxfp8");
}

TEST_F(UserFilesTest, KeepAndLayerTakeOneValueEach) {
  EXPECT_EQ(pestle("quantize -f fp8 -k 'blocks.0.*' " + in_ + " " + out_).code, 0);
  EXPECT_EQ(pestle("quantize -l 'blocks.0.*=fp8' --force " + in_ + " " + out_).code, 0);
}

TEST_F(UserFilesTest, NegativeCountsAreRefused) {
  for (const char* option : {"--rows -1", "--threads -1", "--max-shard -5GB"}) {
    const Outcome outcome =
        pestle("quantize -f fp8 " + std::string(option) + " " + in_ + " " + out_);
    EXPECT_TRUE(outcome.code == 2 || outcome.code == 11) << option << outcome.err;
  }
  EXPECT_EQ(pestle("diff --rows -1 " + in_ + " " + in_).code, 2);
  EXPECT_EQ(pestle("diff --max-error -1 " + in_ + " " + in_).code, 2);
  EXPECT_FALSE(std::filesystem::exists(out_));
}

}  // namespace
}  // namespace pestle::files
