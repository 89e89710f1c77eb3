// Which way a matrix product goes, by rule and by a tuner's file.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "ops/gemm/select/matmul_tuned.h"

namespace pestle::ops {
namespace {

ProductKey bf16(int64_t m, int64_t n, int64_t k) {
  return {DType::kBF16, DType::kBF16, DType::kBF16, m, n, k};
}

constexpr ProductMeans kAll{.library = true, .version = 130100};
constexpr ProductMeans kOwn{};

std::string described(const ProductKey& key, const ProductMeans& means,
                      const ProductChoice* tuned = nullptr) {
  return describe(choose_way(key, means, tuned), key, means.multiprocessors);
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

TEST(MatmulWays, OwnTilesWhereTheLibraryIsNot) {
  EXPECT_EQ(described(bf16(4608, 12288, 3072), kOwn), "128x192, 2304 tiles in 18 rounds");
}

TEST(MatmulWays, FewRowsHaveTheirKernel) {
  ProductMeans means = kAll;
  means.few_rows = true;
  EXPECT_EQ(described(bf16(16, 4096, 4096), means), "32 columns, 128 tiles");
}

TEST(MatmulWays, TheLibraryServesNoSmallProductAndNoOtherMachine) {
  EXPECT_EQ(choose_way(bf16(128, 256, 64), kAll).way, ProductWay::kTile);
  EXPECT_EQ(choose_way(bf16(64, 256, 256), kAll).way, ProductWay::kLibrary);
  EXPECT_EQ(choose_way(bf16(64, 4096, 4096), kAll).way, ProductWay::kLibrary);
  ProductKey fp8 = bf16(1024, 1024, 1024);
  fp8.sums = ProductSums::kFast;
  EXPECT_EQ(choose_way(fp8, kAll).way, ProductWay::kTile);
  fp8 = bf16(17, 4096, 4096);  // a long sum
  fp8.sums = ProductSums::kFast;
  EXPECT_EQ(choose_way(fp8, kAll).way, ProductWay::kLibrary);
  ProductMeans rows = kAll;  // under scales of rows
  rows.algorithms = 1;
  EXPECT_EQ(choose_way(fp8, rows).way, ProductWay::kTile);
  fp8.m = 4096;
  for (const ProductSums sums :
       {ProductSums::kFast, ProductSums::kAccurate, ProductSums::kBlocks}) {
    fp8.sums = sums;
    EXPECT_EQ(choose_way(fp8, kAll).way, ProductWay::kLibrary);
  }
  // It has no exact sums of integers with their scales.
  fp8.sums = ProductSums::kInteger;
  EXPECT_EQ(choose_way(fp8, kAll).way, ProductWay::kTile);
  ProductMeans other = kAll;
  other.compute_capability = 80;
  EXPECT_EQ(choose_way(bf16(8192, 4096, 4096), other).way, ProductWay::kTile);
}

TEST(MatmulWays, SlicesOfKWhereTheyAreFasterAndOpen) {
  ProductMeans means = kOwn;
  const ProductKey key = bf16(4608, 3072, 12288);
  EXPECT_EQ(described(key, means), "128x128, 864 tiles in 7 rounds");
  means.slices = true;
  EXPECT_EQ(described(key, means), "128x256, 432 tiles in 4 rounds, the last 36 in 3 slices of k");
  const ProductChoice narrow{ProductWay::kSlices, 192, true, 0};
  EXPECT_EQ(described(key, means, &narrow),
            "128x192, 576 tiles in 5 rounds, the last 48 in 2 slices of k (tuned)");
  EXPECT_EQ(choose_way(key, kOwn, &narrow).way, ProductWay::kTile);
  // Codes go forward by twice as much of k, so that the same slices are shorter.
  ProductKey int8{DType::kI8, DType::kI8, DType::kBF16, 64, 4096, 4096};
  int8.sums = ProductSums::kInteger;
  EXPECT_EQ(choose_way(int8, means).way, ProductWay::kTile);
  int8.k = 12288;
  EXPECT_EQ(choose_way(int8, means).way, ProductWay::kSlices);
}

TEST(MatmulWays, TheLibrarysAlgorithmIsOneThatItNames) {
  ProductKey key = bf16(4608, 9216, 3072);
  key.a = key.b = DType::kE4M3;
  key.sums = ProductSums::kFast;
  EXPECT_EQ(described(key, kAll), "cuBLASLt's algorithm 4");
  ProductMeans one = kAll;
  one.algorithms = 1;  // under scales of rows
  EXPECT_EQ(described(key, one), "cuBLASLt's algorithm 0");
  const ProductChoice third{ProductWay::kLibrary, 3, true, 130100};
  EXPECT_EQ(described(key, kAll, &third), "cuBLASLt's algorithm 3 (tuned)");
  EXPECT_EQ(described(key, one, &third), "cuBLASLt's algorithm 0");
}

TEST(MatmulWays, ATunedWayComesFirstWhereItIsOpen) {
  const ProductKey key = bf16(4608, 12288, 3072);
  const ProductChoice narrow{ProductWay::kTile, 192, true, 0};
  EXPECT_EQ(described(key, kAll, &narrow), "128x192, 2304 tiles in 18 rounds (tuned)");
  const ProductChoice library{ProductWay::kLibrary, 3, true, 130100};
  EXPECT_EQ(described(key, kAll, &library), "cuBLASLt's algorithm 3 (tuned)");
  // Not where the library is another or takes the call not.
  EXPECT_EQ(choose_way(key, kOwn, &library).way, ProductWay::kTile);
  const ProductChoice older{ProductWay::kLibrary, 3, true, 120900};
  EXPECT_EQ(choose_way(key, kAll, &older).tuned, false);
  // Nor a tile that sums begun anew can't have.
  ProductKey accurate = key;
  accurate.sums = ProductSums::kAccurate;
  EXPECT_NE(choose_way(accurate, kOwn, &narrow).variant, 192);
}

TEST(MatmulWays, AProductAsText) {
  ProductKey key = bf16(4608, 12288, 3072);
  key.b_along_k = false;
  EXPECT_EQ(text_of(key), "bf16 bf16 bf16 4608x12288x3072 b1 kn f32");
  key = {DType::kE4M3, DType::kE5M2, DType::kF16, 1, 2, 3, 4, false, true, ProductSums::kBlocks};
  const auto read = product_of_text(text_of(key));
  ASSERT_TRUE(read.has_value());
  EXPECT_TRUE(*read == key);
  for (const char* wrong :
       {"", "bf16 bf16 bf16 1x2x3 b1 kk", "bf16 bf16 bf16 1x2x3 b1 kx f32",
        "bf16 bf16 odd 1x2x3 b1 kk f32", "bf16 bf16 bf16 0x2x3 b1 kk f32",
        "bf16 bf16 bf16 1x2x3 b1 kk f33", "bf16 bf16 bf16 1x2x3 b1 kk f32 more"})
    EXPECT_FALSE(product_of_text(wrong).has_value()) << wrong;
}

TEST_F(Tuned, AFileThatWasWrittenIsReadAndUsed) {
  const ProductKey first = bf16(4608, 12288, 3072), second = bf16(64, 64, 64);
  TunedFile file = file_of({as_tuned(first, {ProductWay::kTile, 192}, 0)});
  ASSERT_TRUE(write_tuned(path("a.json"), file).ok());
  EXPECT_EQ(tuned_choice(first, 90, 132), nullptr);
  ASSERT_TRUE(load_tuned(path("a.json")).ok());
  const ProductChoice* choice = tuned_choice(first, 90, 132);
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
    file.choices.push_back(as_tuned(bf16(m, 8, 16), {ProductWay::kLibrary, int(m % 8)}, 130100));
  ASSERT_TRUE(use_tuned(file).ok());
  for (int64_t m = 1; m < 300; ++m) {
    const ProductChoice* choice = tuned_choice(bf16(m, 8, 16), 90, 132);
    ASSERT_NE(choice, nullptr) << m;
    EXPECT_EQ(choice->variant, m % 8);
    EXPECT_EQ(choice->version, 130100);
  }
  EXPECT_EQ(tuned_choice(bf16(300, 8, 16), 90, 132), nullptr);
}

TEST_F(Tuned, MergingReplacesAndKeepsGpusApart) {
  const ProductKey key = bf16(8, 8, 16);
  TunedFile file = file_of({as_tuned(key, {ProductWay::kTile, 128}, 0)});
  ASSERT_TRUE(merge_tuned(file, file_of({as_tuned(key, {ProductWay::kTile, 256}, 0),
                                         as_tuned(bf16(9, 8, 16), {ProductWay::kTile, 192}, 0)}))
                  .ok());
  ASSERT_EQ(file.choices.size(), 2u);
  EXPECT_EQ(file.choices[0].variant, 256);
  EXPECT_FALSE(merge_tuned(file, {"other", 90, 114, {}}).ok());
}

TEST_F(Tuned, WrongFilesAreRefusedAndChangeNothing) {
  const ProductKey key = bf16(8, 8, 16);
  ASSERT_TRUE(use_tuned(file_of({as_tuned(key, {ProductWay::kTile, 128}, 0)})).ok());
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
