// Which path a GEMM takes, by rule and by a tuner's file.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "ops/gemm/select/gemm_tuned.h"

namespace pestle::ops {
namespace {

GemmKey bf16(int64_t m, int64_t n, int64_t k) {
  return {DType::kBF16, DType::kBF16, DType::kBF16, m, n, k};
}

constexpr GemmOptions kAll{.library = true, .version = 130100};
constexpr GemmOptions kOwn{};

std::string described(const GemmKey& key, const GemmOptions& options,
                      const GemmChoice* tuned = nullptr) {
  return describe(choose_path(key, options, tuned), key, options.multiprocessors);
}

// A file in a folder of its own.
class Tuned : public testing::Test {
 protected:
  Tuned() {
    folder_ = std::filesystem::temp_directory_path() /
              ("pestle_tuned_" + std::to_string(reinterpret_cast<uintptr_t>(this)));
    std::filesystem::create_directories(folder_);
  }
  ~Tuned() override {
    EXPECT_TRUE(use_tuned({}).ok());
    std::filesystem::remove_all(folder_);
  }
  std::string path(const char* name) const { return (folder_ / name).string(); }
  std::string written(const char* name, const std::string& text) const {
    std::ofstream(path(name)) << text;
    return path(name);
  }
  static TunedFile file_of(const std::vector<TunedChoice>& choices) {
    return {"NVIDIA H200", 90, 132, choices};
  }
  std::filesystem::path folder_;
};

TEST(GemmChoice, OwnTilesWhereTheLibraryIsNot) {
  EXPECT_EQ(described(bf16(4608, 12288, 3072), kOwn), "128x192, 2304 tiles in 18 waves");
}

TEST(GemmChoice, GemvWhereItIsOpen) {
  GemmOptions options = kAll;
  options.gemv = true;
  EXPECT_EQ(described(bf16(16, 4096, 4096), options), "32 columns, 128 tiles");
}

TEST(GemmChoice, TheLibraryServesNoSmallGemmAndNoOtherMachine) {
  EXPECT_EQ(choose_path(bf16(128, 256, 64), kAll).path, GemmPath::kTile);
  EXPECT_EQ(choose_path(bf16(64, 256, 256), kAll).path, GemmPath::kLibrary);
  EXPECT_EQ(choose_path(bf16(64, 4096, 4096), kAll).path, GemmPath::kLibrary);
  GemmKey fp8 = bf16(1024, 1024, 1024);
  fp8.sums = GemmSums::kFast;
  EXPECT_EQ(choose_path(fp8, kAll).path, GemmPath::kTile);
  fp8 = bf16(17, 3072, 3072);  // a long sum
  fp8.sums = GemmSums::kFast;
  EXPECT_EQ(choose_path(fp8, kAll).path, GemmPath::kLibrary);
  GemmOptions rows = kAll;  // under scales of rows
  rows.algorithms = 1;
  EXPECT_EQ(choose_path(fp8, rows).path, GemmPath::kTile);
  fp8.m = 4096;
  for (const GemmSums sums : {GemmSums::kFast, GemmSums::kAccurate, GemmSums::kBlocks}) {
    fp8.sums = sums;
    EXPECT_EQ(choose_path(fp8, kAll).path, GemmPath::kLibrary);
  }
  // It has no exact sums of integers with their scales.
  fp8.sums = GemmSums::kInteger;
  EXPECT_EQ(choose_path(fp8, kAll).path, GemmPath::kTile);
  GemmOptions other = kAll;
  other.compute_capability = 80;
  EXPECT_EQ(choose_path(bf16(8192, 4096, 4096), other).path, GemmPath::kTile);
}

// Under scales of rows the library has no split-K.
TEST(GemmChoice, TheLibraryUnderScalesOfRowsServesManyWaves) {
  GemmOptions rows = kAll;
  rows.algorithms = 1;
  rows.split_k = true;
  GemmKey key{DType::kE4M3, DType::kE4M3, DType::kBF16, 256, 4096, 14336};
  key.sums = GemmSums::kFast;
  const std::string sliced = "128x128, 64 tiles in 1 waves, the last 64 by split-K of 2";
  EXPECT_EQ(described(key, rows), sliced);
  EXPECT_EQ(choose_path(key, kAll).path, GemmPath::kLibrary);
  key.sums = GemmSums::kAccurate;
  EXPECT_EQ(described(key, rows), sliced);
  key = {DType::kE4M3, DType::kE4M3, DType::kBF16, 192, 14336, 4096};
  key.sums = GemmSums::kFast;
  EXPECT_EQ(described(key, rows), "128x256, 112 tiles in 1 waves");
  key.sums = GemmSums::kAccurate;  // as many whole tiles, which it adds faster
  EXPECT_EQ(choose_path(key, rows).path, GemmPath::kLibrary);
  key.m = 8192;
  key.sums = GemmSums::kFast;
  EXPECT_EQ(choose_path(key, rows).path, GemmPath::kLibrary);
}

TEST(GemmChoice, SplitKWhereItIsFasterAndOpen) {
  GemmOptions options = kOwn;
  const GemmKey key = bf16(4608, 3072, 12288);
  EXPECT_EQ(described(key, options), "128x128, 864 tiles in 7 waves");
  options.split_k = true;
  EXPECT_EQ(described(key, options), "128x256, 432 tiles in 4 waves, the last 36 by split-K of 3");
  const GemmChoice narrow{GemmPath::kSplitK, 192, true, 0};
  EXPECT_EQ(described(key, options, &narrow),
            "128x192, 576 tiles in 5 waves, the last 48 by split-K of 2 (tuned)");
  EXPECT_EQ(choose_path(key, kOwn, &narrow).path, GemmPath::kTile);
  // Codes go forward by twice as much of k, so that the same splits are shorter.
  GemmKey int8{DType::kI8, DType::kI8, DType::kBF16, 64, 4096, 4096};
  int8.sums = GemmSums::kInteger;
  EXPECT_EQ(choose_path(int8, options).path, GemmPath::kTile);
  int8.k = 12288;
  EXPECT_EQ(choose_path(int8, options).path, GemmPath::kSplitK);
}

TEST(GemmChoice, TheLibrarysAlgorithmIsOneThatItNames) {
  GemmKey key = bf16(4608, 9216, 3072);
  key.a = key.b = DType::kE4M3;
  key.sums = GemmSums::kFast;
  EXPECT_EQ(described(key, kAll), "cuBLASLt's algorithm 4");
  GemmOptions one = kAll;
  one.algorithms = 1;  // under scales of rows
  EXPECT_EQ(described(key, one), "cuBLASLt's algorithm 0");
  const GemmChoice third{GemmPath::kLibrary, 3, true, 130100};
  EXPECT_EQ(described(key, kAll, &third), "cuBLASLt's algorithm 3 (tuned)");
  EXPECT_EQ(described(key, one, &third), "cuBLASLt's algorithm 0");
}

TEST(GemmChoice, ATunedPathComesFirstWhereItIsOpen) {
  const GemmKey key = bf16(4608, 12288, 3072);
  const GemmChoice narrow{GemmPath::kTile, 192, true, 0};
  EXPECT_EQ(described(key, kAll, &narrow), "128x192, 2304 tiles in 18 waves (tuned)");
  const GemmChoice library{GemmPath::kLibrary, 3, true, 130100};
  EXPECT_EQ(described(key, kAll, &library), "cuBLASLt's algorithm 3 (tuned)");
  // Not where the library is another or takes the call not.
  EXPECT_EQ(choose_path(key, kOwn, &library).path, GemmPath::kTile);
  const GemmChoice older{GemmPath::kLibrary, 3, true, 120900};
  EXPECT_EQ(choose_path(key, kAll, &older).tuned, false);
  // Nor a tile that sums begun anew can't have.
  GemmKey accurate = key;
  accurate.sums = GemmSums::kAccurate;
  EXPECT_NE(choose_path(accurate, kOwn, &narrow).variant, 192);
}

TEST(GemmChoice, AGemmAsText) {
  GemmKey key = bf16(4608, 12288, 3072);
  key.b_along_k = false;
  EXPECT_EQ(text_of(key), "bf16 bf16 bf16 4608x12288x3072 b1 kn f32");
  key = {DType::kE4M3, DType::kE5M2, DType::kF16, 1, 2, 3, 4, false, true, GemmSums::kBlocks};
  const auto read = gemm_of_text(text_of(key));
  ASSERT_TRUE(read.has_value());
  EXPECT_TRUE(*read == key);
  for (const char* wrong :
       {"", "bf16 bf16 bf16 1x2x3 b1 kk", "bf16 bf16 bf16 1x2x3 b1 kx f32",
        "bf16 bf16 odd 1x2x3 b1 kk f32", "bf16 bf16 bf16 0x2x3 b1 kk f32",
        "bf16 bf16 bf16 1x2x3 b1 kk f33", "bf16 bf16 bf16 1x2x3 b1 kk f32 more"})
    EXPECT_FALSE(gemm_of_text(wrong).has_value()) << wrong;
}

TEST_F(Tuned, AFileThatWasWrittenIsReadAndUsed) {
  const GemmKey first = bf16(4608, 12288, 3072), second = bf16(64, 64, 64);
  TunedFile file = file_of({as_tuned(first, {GemmPath::kTile, 192}, 0)});
  ASSERT_TRUE(write_tuned(path("a.json"), file).ok());
  EXPECT_EQ(tuned_choice(first, 90, 132), nullptr);
  ASSERT_TRUE(load_tuned(path("a.json")).ok());
  const GemmChoice* choice = tuned_choice(first, 90, 132);
  ASSERT_NE(choice, nullptr);
  EXPECT_EQ(choice->variant, 192);
  EXPECT_TRUE(choice->tuned);
  EXPECT_EQ(tuned_choice(second, 90, 132), nullptr);
  // It is of that GPU alone.
  EXPECT_EQ(tuned_choice(first, 90, 114), nullptr);
  EXPECT_EQ(tuned_choice(first, 80, 132), nullptr);
  ASSERT_TRUE(use_tuned({}).ok());
  EXPECT_EQ(tuned_choice(first, 90, 132), nullptr);
  // Nothing is left beside it.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_),
                          std::filesystem::directory_iterator()),
            1);
}

TEST_F(Tuned, ManyChoicesAreAllFound) {
  TunedFile file = file_of({});
  for (int64_t m = 1; m < 300; ++m)
    file.choices.push_back(as_tuned(bf16(m, 8, 16), {GemmPath::kLibrary, int(m % 8)}, 130100));
  ASSERT_TRUE(use_tuned(file).ok());
  for (int64_t m = 1; m < 300; ++m) {
    const GemmChoice* choice = tuned_choice(bf16(m, 8, 16), 90, 132);
    ASSERT_NE(choice, nullptr) << m;
    EXPECT_EQ(choice->variant, m % 8);
    EXPECT_EQ(choice->version, 130100);
  }
  EXPECT_EQ(tuned_choice(bf16(300, 8, 16), 90, 132), nullptr);
}

TEST_F(Tuned, MergingReplacesAndKeepsGpusApart) {
  const GemmKey key = bf16(8, 8, 16);
  TunedFile file = file_of({as_tuned(key, {GemmPath::kTile, 128}, 0)});
  ASSERT_TRUE(merge_tuned(file, file_of({as_tuned(key, {GemmPath::kTile, 256}, 0),
                                         as_tuned(bf16(9, 8, 16), {GemmPath::kTile, 192}, 0)}))
                  .ok());
  ASSERT_EQ(file.choices.size(), 2u);
  EXPECT_EQ(file.choices[0].variant, 256);
  EXPECT_FALSE(merge_tuned(file, {"other", 90, 114, {}}).ok());
}

TEST_F(Tuned, WrongFilesAreRefusedAndChangeNothing) {
  const GemmKey key = bf16(8, 8, 16);
  ASSERT_TRUE(use_tuned(file_of({as_tuned(key, {GemmPath::kTile, 128}, 0)})).ok());
  const std::string head =
      R"({"pestle_tuned": 1, "gpu": "g", "compute_capability": 90, "multiprocessors": 132, )";
  const std::string of = R"("key": "bf16 bf16 bf16 8x8x16 b1 kk f32", "version": 0, "us": 1)";
  const std::pair<std::string, const char*> wrong[] = {
      {"{", "no JSON object"},
      {R"({"pestle_tuned": 2})", "format 2"},
      {R"({"pestle_tuned": 1})", "of which GPU"},
      {head + "\"choices\": 3}", "no list"},
      {head + R"("choices": [{"key": "x"}]})", "choice 0 lacks"},
      {head + R"("choices": [{"way": "tile", "variant": 100, )" + of + "}]}", "variant 100"},
      {head + R"("choices": [{"way": "fly", "variant": 128, )" + of + "}]}", "'fly'"},
      {head + R"("choices": [{"way": "tile", "variant": 128, "key": "q", "version": 0, "us": 1}]})",
       "names no product"},
  };
  for (const auto& [text, words] : wrong) {
    const Status status = load_tuned(written("wrong.json", text));
    EXPECT_FALSE(status.ok()) << text;
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
  }
  EXPECT_EQ(load_tuned(path("none.json")).code(), Code::kIoError);
  ASSERT_NE(tuned_choice(key, 90, 132), nullptr);
}

}  // namespace
}  // namespace pestle::ops
