#include "files/quantize_file.h"

#include <gtest/gtest.h>

#include "backends/cpu/parallel.h"
#include "files/dequantize_file.h"
#include "files/diff_files.h"
#include "files/inspect_file.h"
#include "files/model.h"
#include "tests/files/test_models.h"

namespace pestle::files {
namespace {

class QuantizeFileTest : public testing::Test {
 protected:
  void SetUp() override {
    save_model(in_,
               {weight("blocks.0.fc.weight", {256, 512}), weight("blocks.1.fc.weight", {256, 512}),
                weight("blocks.0.fc.bias", {256}), weight("embed.weight", {32, 64}, "F32"),
                weight("final.weight", {64, 256}, "F16")},
               {{"format", "pt"}, {"author", "somebody"}});
  }
  QuantizeOptions options(const std::string& format) {
    QuantizeOptions options;
    options.input = in_;
    options.output = out_;
    options.format = format;
    options.overwrite = true;
    return options;
  }
  static QuantizeReport run(const QuantizeOptions& options) {
    auto report = quantize_file(options);
    EXPECT_TRUE(report.ok()) << report.status().message();
    return std::move(report.value());
  }
  // Refused, with this in the message and nothing beside the input.
  void expect_error(const QuantizeOptions& options, Code code, const std::string& part) {
    const auto names = folder_.names();
    const auto report = quantize_file(options);
    ASSERT_FALSE(report.ok());
    EXPECT_EQ(report.status().code(), code) << report.status().message();
    EXPECT_NE(report.status().message().find(part), std::string::npos) << report.status().message();
    EXPECT_EQ(report.status().message().find('\n'), std::string::npos);
    EXPECT_EQ(folder_.names(), names);
  }
  static const LayerReport& layer(const QuantizeReport& report, const std::string& name) {
    for (const LayerReport& layer : report.layers) {
      if (layer.name == name) return layer;
    }
    ADD_FAILURE() << "no layer " << name;
    return report.layers[0];
  }
  DiffReport diff(const std::string& a, const std::string& b) {
    DiffOptions options;
    options.a = a;
    options.b = b;
    const auto report = diff_files(options);
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report.value();
  }

  TempFolder folder_;
  std::string in_ = folder_ / "in.safetensors";
  std::string out_ = folder_ / "out.safetensors";
};

TEST_F(QuantizeFileTest, EveryFormatAndLayoutReadsBackAsReported) {
  for (const formats::FormatInfo& format : formats::all_formats()) {
    for (const FileLayout layout : {FileLayout::kComfy, FileLayout::kPlain}) {
      if (layout == FileLayout::kComfy && format.comfy.empty()) continue;
      SCOPED_TRACE(std::string(format.name) + " " + std::string(layout_name(layout)));
      QuantizeOptions o = options(std::string(format.name));
      o.layout = layout;
      const QuantizeReport report = run(o);
      const LayerReport& fc = layer(report, "blocks.0.fc");
      EXPECT_EQ(fc.format, format.name);
      const double bound = format.code_bits == 8 ? 0.06 : 0.16;
      EXPECT_GT(fc.relative_error(), 1e-4);
      EXPECT_LT(fc.relative_error(), bound);
      const DiffReport difference = diff(in_, out_);
      ASSERT_EQ(difference.layers.size(), 5u);
      EXPECT_EQ(difference.layers[0].format_b, format.name);
      const LayerReport& worst = report.layers[report.worst_first()[0]];
      EXPECT_NEAR(difference.layers[0].relative_error(), worst.relative_error(), 1e-9);
      EXPECT_EQ(difference.layers[0].sums.max_error, worst.sums->max_error);
      EXPECT_EQ(difference.layers[2].sums.noise, 0);  // the three that were kept

      DequantizeOptions back;
      back.input = out_;
      back.output = folder_ / "back.safetensors";
      back.dtype = DType::kF32;
      back.overwrite = true;
      ASSERT_TRUE(dequantize_file(back).ok());
      for (const LayerDiff& same : diff(out_, back.output).layers) EXPECT_EQ(same.sums.noise, 0);
    }
  }
}

TEST_F(QuantizeFileTest, BytesDoNotDependOnThreads) {
  for (const char* format : {"fp8", "nvfp4", "w4a8"}) {
    std::string first;
    for (const int threads : {1, 2, 3, 7}) {
      cpu::set_threads(threads);
      run(options(format));
      const std::string bytes = contents(out_);
      if (first.empty()) first = bytes;
      EXPECT_TRUE(bytes == first) << format << " with " << threads << " threads";
    }
  }
  cpu::set_threads(0);
}

TEST_F(QuantizeFileTest, ComfyLayoutToTheByte) {
  run(options("nvfp4"));
  const auto model = Model::open(out_);
  ASSERT_TRUE(model.ok());
  const auto describe = [&](const std::string& name) {
    const ModelTensor* tensor = model.value().find(name);
    if (tensor == nullptr) return std::string("missing");
    std::string text(tensor->dtype_name);
    for (const int64_t dim : tensor->shape) text += " " + std::to_string(dim);
    return text;
  };
  EXPECT_EQ(describe("blocks.0.fc.weight"), "U8 256 256");
  EXPECT_EQ(describe("blocks.0.fc.weight_scale"), "F8_E4M3 256 32");
  EXPECT_EQ(describe("blocks.0.fc.weight_scale_2"), "F32");
  EXPECT_EQ(describe("blocks.0.fc.bias"), "BF16 256");
  const ModelTensor& quant = *model.value().find("blocks.0.fc.comfy_quant");
  EXPECT_EQ(bytes_of(quant.data), R"({"format":"nvfp4"})");
  const auto& metadata = model.value().metadata();
  EXPECT_EQ(metadata.at("author"), "somebody");
  EXPECT_EQ(metadata.at("_quantization_metadata"),
            R"({"format_version":"1.0","layers":{"blocks.0.fc":{"format":"nvfp4"},)"
            R"("blocks.1.fc":{"format":"nvfp4"}}})");
}

TEST_F(QuantizeFileTest, ComfyQuantNamesRotations) {
  const std::pair<const char*, const char*> cases[] = {
      {"int8-row", R"({"format":"int8_tensorwise"})"},
      {"int8-convrot", R"({"format":"int8_tensorwise","convrot":true,"convrot_groupsize":256})"},
      {"w4a4-convrot", R"({"format":"convrot_w4a4","convrot_groupsize":256})"},
      {"w4a8",
       R"({"format":"asym_w4a8_int8","group_size":16,"convrot":true,"convrot_groupsize":256})"}};
  for (const auto& [format, json] : cases) {
    run(options(format));
    const auto model = Model::open(out_);
    ASSERT_TRUE(model.ok());
    const ModelTensor& quant = *model.value().find("blocks.0.fc.comfy_quant");
    EXPECT_EQ(bytes_of(quant.data), json);
    EXPECT_EQ(model.value().find("blocks.0.fc.weight")->dtype_name, "I8");
  }
}

TEST_F(QuantizeFileTest, OddSizesArePaddedAndReadBack) {
  save_model(in_, {weight("a.weight", {33, 50}), weight("b.weight", {1, 1}, "F32")});
  for (const char* format : {"nvfp4", "mxfp8", "mxfp4", "fp8", "int8-row", "fp8-block"}) {
    SCOPED_TRACE(format);
    const QuantizeReport report = run(options(format));
    EXPECT_EQ(layer(report, "a").format, format);
    const DiffReport difference = diff(in_, out_);
    ASSERT_EQ(difference.layers.size(), 2u);
    EXPECT_TRUE(difference.skipped.empty());
    EXPECT_LT(difference.layers[0].relative_error(), 0.2);
  }
}

TEST_F(QuantizeFileTest, AnOddLayerNeverEndsARun) {
  save_model(in_, {weight("a.weight", {32, 100}), weight("b.weight", {32, 256}),
                   weight("c.weight", {0, 256})});
  QuantizeOptions o = options("w4a8");
  o.default_keep = false;
  const QuantizeReport report = run(o);
  EXPECT_EQ(layer(report, "a.weight").reason, "w4a8 needs K to be a multiple of 256, it is 100");
  EXPECT_EQ(layer(report, "b").format, "w4a8");
  EXPECT_EQ(layer(report, "c.weight").reason, "w4a8 can't hold an empty weight");
}

TEST_F(QuantizeFileTest, SaysWhyATensorWasKept) {
  QuantizeOptions o = options("fp8");
  o.keep = {"blocks.1.*"};
  const QuantizeReport report = run(o);
  EXPECT_EQ(layer(report, "embed.weight").reason, "embedding (kept by default)");
  EXPECT_EQ(layer(report, "final.weight").reason, "first or last layer (kept by default)");
  EXPECT_EQ(layer(report, "blocks.0.fc.bias").reason, "no weight of a linear layer (its name)");
  EXPECT_EQ(layer(report, "blocks.1.fc.weight").reason, "--keep blocks.1.*");
  EXPECT_EQ(layer(report, "blocks.0.fc").format, "fp8");
}

TEST_F(QuantizeFileTest, LayerPatternsMixFormatsAndOverrideDefaults) {
  QuantizeOptions o = options("fp8");
  o.layers = {{"final", "int8"}, {"*.1.*", "nvfp4"}};
  const QuantizeReport report = run(o);
  EXPECT_EQ(layer(report, "final").format, "int8");
  EXPECT_EQ(layer(report, "blocks.1.fc").format, "nvfp4");
  EXPECT_EQ(layer(report, "blocks.0.fc").format, "fp8");
}

TEST_F(QuantizeFileTest, TargetErrorTakesTheSmallestFormatThatKeepsIt) {
  QuantizeOptions o = options("");
  o.target_error = 0.08;
  EXPECT_EQ(layer(run(o), "blocks.0.fc").format, "w4a8");
  o.target_error = 0.02;
  const QuantizeReport report = run(o);
  EXPECT_EQ(layer(report, "blocks.0.fc").format.rfind("int8", 0), 0u);
  EXPECT_LE(layer(report, "blocks.0.fc").relative_error(), 0.02);
  o.target_error = 1e-6;
  std::filesystem::remove(out_);
  expect_error(o, Code::kInvalidArgument, "no format keeps the relative error under 1e-06");
}

// ComfyUI tells models apart by the shapes of some layers, as the file stores them.
TEST_F(QuantizeFileTest, ComfyLayoutKeepsWhatDetectionReads) {
  const std::string read = "input_blocks.1.1.transformer_blocks.0.attn2.to_k";
  const std::string other = "input_blocks.1.1.transformer_blocks.0.attn2.to_q";
  save_model(in_, {weight(read + ".weight", {64, 256}), weight(other + ".weight", {64, 256}),
                   weight("y_embedder.mlp.0.weight", {64, 250})});
  QuantizeOptions o = options("nvfp4");
  o.default_keep = false;
  o.layers = {{"*attn2*", "w4a8"}};  // by name, too
  QuantizeReport report = run(o);
  EXPECT_EQ(layer(report, read + ".weight").reason,
            "ComfyUI finds the model by this layer's shape [64,256], which w4a8 would store as "
            "[64,128]");
  EXPECT_EQ(layer(report, other).format, "w4a8");
  EXPECT_EQ(layer(report, "y_embedder.mlp.0.weight").format, "");
  o.layers = {{"*attn2*", "fp8"}};
  EXPECT_EQ(layer(run(o), read).format, "fp8");
  o = options("");
  o.default_keep = false;
  o.target_error = 0.2;
  report = run(o);
  EXPECT_EQ(layer(report, read).format.find("4"), std::string::npos);
  EXPECT_FALSE(layer(report, read).format.empty());
  o.layout = FileLayout::kPlain;
  EXPECT_NE(layer(run(o), read).format.find("4"), std::string::npos);
}

TEST_F(QuantizeFileTest, MseScalesAreNeverWorseThanAmax) {
  for (const char* format : {"fp8", "fp8-row", "nvfp4", "int8", "int8-row", "int8-convrot"}) {
    SCOPED_TRACE(format);
    QuantizeOptions o = options(format);
    o.mse_scales = true;
    const QuantizeReport report = run(o);
    const LayerReport& fc = layer(report, "blocks.0.fc");
    ASSERT_TRUE(fc.amax_noise.has_value());
    EXPECT_LE(fc.sums->noise, *fc.amax_noise * (1 + 1e-12));
    EXPECT_NEAR(diff(in_, out_).layers[0].relative_error(),
                report.layers[report.worst_first()[0]].relative_error(), 1e-9);
  }
}

TEST_F(QuantizeFileTest, NanAndInfiniteWeights) {
  for (const auto& [bits, word] :
       {std::pair<uint16_t, const char*>{0x7FC0, "NaN"}, {0xFF80, "infinite"}}) {
    TestTensor bad = weight("blocks.0.fc.weight", {256, 512});
    std::memcpy(bad.bytes.data() + (3 * 512 + 17) * 2, &bits, 2);
    save_model(in_, {bad, weight("blocks.1.fc.weight", {256, 512})});
    for (const char* format : {"fp8", "nvfp4", "int4-g32"}) {
      expect_error(options(format), Code::kCorruptFile,
                   "tensor \"blocks.0.fc.weight\": element [3, 17] is " + std::string(word));
    }
    QuantizeOptions o = options("fp8");
    o.keep = {"blocks.0.*"};
    expect_error(o, Code::kCorruptFile, "element [3, 17] is " + std::string(word));
    o.allow_non_finite = true;
    EXPECT_EQ(layer(run(o), "blocks.1.fc").format, "fp8");
    o.keep.clear();
    const QuantizeReport report = run(o);
    EXPECT_EQ(layer(report, "blocks.1.fc").format, "fp8");
    EXPECT_EQ(layer(report, "blocks.0.fc.weight").reason,
              "holds NaN or an infinity (--allow-non-finite)");
    std::filesystem::remove(out_);
  }
}

TEST_F(QuantizeFileTest, OutputEqualsInput) {
  QuantizeOptions o = options("fp8");
  o.output = folder_ / "./in.safetensors";
  expect_error(o, Code::kInvalidArgument, "output and input are the same file");
  std::filesystem::create_symlink("in.safetensors", out_);
  expect_error(options("fp8"), Code::kInvalidArgument, "output and input are the same file");
}

TEST_F(QuantizeFileTest, RefusalsOfOptions) {
  expect_error(options("fp9"), Code::kInvalidArgument, "did you mean \"fp8\"?");
  expect_error(options(""), Code::kInvalidArgument, "nothing says which format");
  QuantizeOptions o = options("fp8");
  o.keep = {"nothing.*"};
  expect_error(o, Code::kInvalidArgument, "matches no tensor");
  o = options("fp8-row");
  o.layout = FileLayout::kComfy;
  expect_error(o, Code::kUnsupported, "--layout plain");
  o = options("fp8");
  o.target_error = 0.1;
  expect_error(o, Code::kInvalidArgument, "pass one");
  o = options("fp8");
  o.input = folder_ / "none.safetensors";
  expect_error(o, Code::kIoError, "No such file");
  o = options("fp8");
  o.output = folder_ / "no/folder/out.safetensors";
  expect_error(o, Code::kIoError, "No such file");
}

TEST_F(QuantizeFileTest, RefusesToOverwriteWithoutForce) {
  std::ofstream(out_) << "old";
  QuantizeOptions o = options("fp8");
  o.overwrite = false;
  expect_error(o, Code::kIoError, "--force");
  EXPECT_EQ(contents(out_), "old");
}

TEST_F(QuantizeFileTest, CancelLeavesNothing) {
  std::ofstream(out_) << "old";
  std::atomic<bool> cancel{true};
  QuantizeOptions o = options("fp8");
  o.cancel = &cancel;
  expect_error(o, Code::kInterrupted, "interrupted");
  EXPECT_EQ(contents(out_), "old");
}

TEST_F(QuantizeFileTest, DryRunSaysSizesAndWritesNothing) {
  QuantizeOptions o = options("nvfp4");
  o.dry_run = true;
  const QuantizeReport planned = run(o);
  EXPECT_FALSE(std::filesystem::exists(out_));
  o.dry_run = false;
  const QuantizeReport done = run(o);
  EXPECT_EQ(planned.bytes_after, done.bytes_after);
  EXPECT_EQ(done.bytes_after, std::filesystem::file_size(out_));
}

TEST_F(QuantizeFileTest, AlreadyQuantisedLayersStay) {
  run(options("fp8"));
  const std::string once = contents(out_);
  QuantizeOptions again = options("int8");
  again.input = out_;
  again.output = folder_ / "again.safetensors";
  expect_error(again, Code::kInvalidArgument, "2 tensors already quantised");
  again.default_keep = false;
  const QuantizeReport report = run(again);
  EXPECT_EQ(layer(report, "blocks.0.fc.weight").reason, "already quantised");
  for (const LayerDiff& same : diff(out_, again.output).layers) {
    if (!same.name.starts_with("blocks.")) continue;
    EXPECT_EQ(same.sums.noise, 0) << same.name;
  }
}

TEST_F(QuantizeFileTest, ShardsInAndOut) {
  QuantizeOptions o = options("fp8");
  o.output = folder_ / "s.safetensors";
  o.max_shard_bytes = 150'000;
  const QuantizeReport report = run(o);
  EXPECT_GE(report.outputs.size(), 3u);
  EXPECT_EQ(report.outputs.back(), folder_ / "s.safetensors.index.json");
  run(options("fp8"));
  const DiffReport difference = diff(out_, folder_ / "s.safetensors.index.json");
  EXPECT_EQ(difference.layers.size(), 5u);
  EXPECT_EQ(difference.layers[0].sums.noise, 0);
  // The shards as an input of their own, through the index.
  const auto inspected = inspect_file(folder_ / "s.safetensors.index.json");
  ASSERT_TRUE(inspected.ok());
  EXPECT_EQ(inspected.value().layers.size(), 5u);
}

TEST_F(QuantizeFileTest, LegacyScaledFp8IsRead) {
  run(options("fp8"));
  const auto model = Model::open(out_);
  ASSERT_TRUE(model.ok());
  std::vector<TestTensor> tensors = {{"scaled_fp8", "F8_E4M3", {0}, ""}};
  for (const ModelTensor& tensor : model.value().tensors()) {
    std::string name = tensor.name;
    if (name.ends_with(".comfy_quant")) continue;
    if (name.ends_with(".weight_scale")) {
      name = name.substr(0, name.size() - 13) + ".scale_weight";
    }
    tensors.push_back({name, std::string(tensor.dtype_name), tensor.shape, bytes_of(tensor.data)});
  }
  const std::string legacy = folder_ / "legacy.safetensors";
  save_model(legacy, tensors);
  const DiffReport difference = diff(out_, legacy);
  ASSERT_EQ(difference.layers.size(), 5u);
  EXPECT_EQ(difference.layers[0].sums.noise, 0);
  const auto inspected = inspect_file(legacy);
  ASSERT_TRUE(inspected.ok());
  EXPECT_EQ(inspected.value().layers[1].format, "fp8");
}

TEST_F(QuantizeFileTest, ReportsAreCompleteAndAloneReadable) {
  QuantizeOptions o = options("nvfp4");
  o.histograms = true;
  const QuantizeReport report = run(o);
  const std::string json = report_json(report);
  EXPECT_NE(json.find("\"relative_error\""), std::string::npos);
  EXPECT_NE(json.find("\"kept_because\": \"embedding (kept by default)\""), std::string::npos);
  const std::string html = report_html(report);
  EXPECT_NE(html.find("<svg"), std::string::npos);
  EXPECT_NE(html.find("blocks.0.fc"), std::string::npos);
  for (const char* outside : {"http:", "https:", "src=", "href=", "@import", "url("}) {
    EXPECT_EQ(html.find(outside), std::string::npos) << outside;
  }
  EXPECT_NE(report_text(report, 1).find("... and 1 more"), std::string::npos);
}

// A GGUF file with one tensor of each kind: decoded blocks, a plain one, one that is only listed.
std::string gguf_file() {
  std::string file;
  const auto put = [&](auto value) {
    file.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  const auto tensor = [&](const std::string& name, uint64_t k, uint32_t type, uint64_t offset) {
    put(uint64_t{name.size()});
    file += name;
    put(uint32_t{1});
    put(k);
    put(type);
    put(offset);
  };
  file = "GGUF";
  put(uint32_t{3});
  put(uint64_t{3});
  put(uint64_t{0});
  tensor("q8", 32, 8, 0);
  tensor("plain", 2, 0, 64);
  tensor("q5", 32, 6, 96);
  file.resize((file.size() + 31) / 32 * 32);
  put(uint16_t{0x3800});  // 0.5 as f16
  for (int i = 0; i < 32; ++i) put(static_cast<int8_t>(i - 16));
  file.resize((file.size() + 31) / 32 * 32);
  put(1.5f);
  put(-2.0f);
  file.resize((file.size() + 31) / 32 * 32);
  file += std::string(22, '\0');
  return file;
}

TEST_F(QuantizeFileTest, GgufIsInspectedAndDecoded) {
  const std::string gguf = folder_ / "m.gguf";
  std::ofstream(gguf, std::ios::binary) << gguf_file();
  const auto inspected = inspect_file(gguf);
  ASSERT_TRUE(inspected.ok()) << inspected.status().message();
  EXPECT_EQ(inspected.value().layers[1].format, "Q5_0");
  EXPECT_NE(inspected.value().layers[1].note.find("is not decoded"), std::string::npos);
  DequantizeOptions back;
  back.input = gguf;
  back.output = out_;
  back.dtype = DType::kF32;
  auto report = dequantize_file(back);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.status().code(), Code::kUnsupported);
  EXPECT_FALSE(std::filesystem::exists(out_));

  std::string readable = gguf_file();
  readable.replace(readable.find("q5") + 2 + 4 + 8, 4, std::string("\x18\0\0\0", 4));  // I8
  std::ofstream(gguf, std::ios::binary) << readable << std::string(10, 'x');
  report = dequantize_file(back);
  ASSERT_TRUE(report.ok()) << report.status().message();
  const auto model = Model::open(out_);
  ASSERT_TRUE(model.ok());
  const ModelTensor& q8 = *model.value().find("q8");
  EXPECT_EQ(q8.dtype_name, "F32");
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(load_weight(bytes_of(q8.data).data(), q8.dtype, i),
              0.5f * static_cast<float>(i - 16));
  }
  expect_error(
      [&] {
        QuantizeOptions o = options("fp8");
        o.input = gguf;
        o.output = folder_ / "other";
        return o;
      }(),
      Code::kInvalidArgument, "is GGUF");
}

TEST_F(QuantizeFileTest, DescriptionsThatDoNotFitTheirTensors) {
  run(options("nvfp4"));
  const auto model = Model::open(out_);
  ASSERT_TRUE(model.ok());
  std::vector<TestTensor> tensors;
  for (const ModelTensor& tensor : model.value().tensors()) {
    if (tensor.name == "blocks.0.fc.weight_scale") continue;
    tensors.push_back(
        {tensor.name, std::string(tensor.dtype_name), tensor.shape, bytes_of(tensor.data)});
  }
  const std::string broken = folder_ / "broken.safetensors";
  save_model(broken, tensors);
  const auto inspected = inspect_file(broken);
  ASSERT_FALSE(inspected.ok());
  EXPECT_EQ(inspected.status().code(), Code::kCorruptFile);
  EXPECT_NE(inspected.status().message().find("has no \"blocks.0.fc.weight_scale\""),
            std::string::npos);
}

}  // namespace
}  // namespace pestle::files
