#include "files/file_job.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "pestle/pestle.h"
#include "tests/files/test_models.h"

namespace pestle::files {
namespace {

using Json = nlohmann::json;

class FileJobTest : public testing::Test {
 protected:
  void SetUp() override {
    save_model(in_, {weight("a.weight", {64, 256}), weight("b.weight", {64, 256})});
  }

  Json run(const std::string& verb, const Json& options) {
    char* report = nullptr;
    const auto status =
        pestle_file(verb.c_str(), options.dump().c_str(), nullptr, nullptr, &report);
    EXPECT_EQ(status, PESTLE_OK) << pestle_last_error();
    const Json json = report == nullptr ? Json() : Json::parse(report);
    pestle_free(report);
    return json;
  }
  void expect_error(const std::string& verb, const std::string& options, pestle_status status,
                    const std::string& part) {
    EXPECT_EQ(pestle_file(verb.c_str(), options.c_str(), nullptr, nullptr, nullptr), status);
    EXPECT_NE(std::string(pestle_last_error()).find(part), std::string::npos)
        << pestle_last_error();
  }

  TempFolder folder_;
  std::string in_ = folder_ / "in.safetensors";
  std::string out_ = folder_ / "out.safetensors";
};

TEST_F(FileJobTest, EveryVerbThroughTheCAbi) {
  const Json quantized = run("quantize", {{"input", in_},
                                          {"output", out_},
                                          {"format", "fp8"},
                                          {"layers", {"b=nvfp4"}},
                                          {"html", folder_ / "r.html"}});
  EXPECT_EQ(quantized["layers"][0]["format"], "fp8");
  EXPECT_EQ(quantized["layers"][1]["format"], "nvfp4");
  EXPECT_LT(quantized["layers"][0]["relative_error"].get<double>(), 0.05);
  EXPECT_NE(contents(folder_ / "r.html").find("<svg"), std::string::npos);
  const Json inspected = run("inspect", {{"input", out_}});
  EXPECT_EQ(inspected["layers"].size(), 2u);
  const Json difference = run("diff", {{"a", in_}, {"b", out_}});
  EXPECT_EQ(difference["layers"][0]["format_b"], "nvfp4");
  const std::string back = folder_ / "back.safetensors";
  EXPECT_EQ(
      run("dequantize", {{"input", out_}, {"output", back}, {"dtype", "f32"}})["layers_decoded"],
      2);
}

TEST_F(FileJobTest, ARecipeIsRead) {
  std::ofstream(folder_ / "r.toml") << "format = \"int8\"\nkeep = [\"b.*\"]\n";
  const Json report =
      run("quantize", {{"input", in_}, {"output", out_}, {"recipe", folder_ / "r.toml"}});
  EXPECT_EQ(report["layers"][0]["format"], "int8");
  EXPECT_EQ(report["layers"][1]["kept_because"], "keep b.* of the recipe");
}

TEST_F(FileJobTest, ProgressMayStopTheJob) {
  const auto stop = [](void*, const char*, uint64_t, uint64_t) { return 1; };
  const Json options = {{"input", in_}, {"output", out_}, {"target_error", 1e-7}};
  EXPECT_EQ(pestle_file("quantize", options.dump().c_str(), stop, nullptr, nullptr),
            PESTLE_INTERRUPTED);
  EXPECT_EQ(folder_.names(), std::vector<std::string>{"in.safetensors"});
}

TEST_F(FileJobTest, Refusals) {
  expect_error("quantise", "{}", PESTLE_INVALID_ARGUMENT, "no file job \"quantise\"");
  expect_error("inspect", "[]", PESTLE_INVALID_ARGUMENT, "no JSON object");
  expect_error("inspect", "{\"inptu\":\"x\"}", PESTLE_INVALID_ARGUMENT, "did you mean \"input\"?");
  expect_error("inspect", "{\"input\":1}", PESTLE_INVALID_ARGUMENT, "input must be a string");
  expect_error("inspect", "{\"input\":\"/none\"}", PESTLE_IO_ERROR, "No such file");
  expect_error("quantize", "{\"layout\":\"x\"}", PESTLE_INVALID_ARGUMENT,
               "expected comfy or plain");
  EXPECT_EQ(pestle_file(nullptr, "{}", nullptr, nullptr, nullptr), PESTLE_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace pestle::files
