// Which kernel takes few rows of x times a quantised weight.
#include "ops/gemm/weight_only/row_choice.h"

#include <gtest/gtest.h>

namespace pestle::ops {
namespace {

RowCall call(int64_t m, int64_t n, int64_t k, int bits, int summed = 0, bool row_bytes = false) {
  RowCall c;
  c.m = m, c.n = n, c.k = k, c.bits = bits, c.summed = summed, c.row_bytes = row_bytes;
  return c;
}

TEST(RowChoice, FourRowsAreGemvs) {
  for (const bool wgmma : {true, false})
    for (const int bits : {4, 8}) {
      RowCall c = call(4, 14336, 4096, bits);
      c.wgmma = wgmma;
      EXPECT_EQ(choose_row_kernel(c), RowKernel::kGemv);
    }
}

TEST(RowChoice, ScaledCodesAreWgmmasFromNineRowsOn) {
  EXPECT_EQ(choose_row_kernel(call(8, 4096, 4096, 4)), RowKernel::kGemv);
  for (const int64_t m : {9, 16, 17, 32, 33, 128, 129, 4096})
    EXPECT_EQ(choose_row_kernel(call(m, 4096, 4096, 4)), RowKernel::kMany) << m;
  // One wave of GEMV.
  EXPECT_EQ(choose_row_kernel(call(16, 1024, 2048, 4)), RowKernel::kGemv);
  EXPECT_EQ(choose_row_kernel(call(16, 1024, 4096, 4)), RowKernel::kMany);
}

TEST(RowChoice, LargeWeightsOfFewRows) {
  EXPECT_EQ(choose_row_kernel(call(8, 14336, 4096, 4)), RowKernel::kFewRows);
  EXPECT_EQ(choose_row_kernel(call(8, 3072, 12288, 4)), RowKernel::kFewRows);  // a long row
  EXPECT_EQ(choose_row_kernel(call(8, 12288, 3072, 4)), RowKernel::kMany);
  for (const bool row_bytes : {true, false}) {
    EXPECT_EQ(choose_row_kernel(call(8, 12288, 3072, 8, 0, row_bytes)), RowKernel::kMany);
    EXPECT_EQ(choose_row_kernel(call(8, 4096, 4096, 8, 0, row_bytes)), RowKernel::kMany);
    EXPECT_EQ(choose_row_kernel(call(8, 2048, 4096, 8, 0, row_bytes)), RowKernel::kGemv);
  }
  EXPECT_EQ(choose_row_kernel(call(8, 12288, 3072, 8, 32)), RowKernel::kFewRows);
}

TEST(RowChoice, ScaledSumsOfFourBits) {
  EXPECT_EQ(choose_row_kernel(call(8, 12288, 3072, 4, 128)), RowKernel::kGemv);
  EXPECT_EQ(choose_row_kernel(call(8, 14336, 4096, 4, 128)), RowKernel::kFewRows);
  EXPECT_EQ(choose_row_kernel(call(16, 4096, 4096, 4, 128)), RowKernel::kGemv);
  EXPECT_EQ(choose_row_kernel(call(16, 12288, 3072, 4, 128)), RowKernel::kMany);
  EXPECT_EQ(choose_row_kernel(call(16, 14336, 4096, 4, 128)), RowKernel::kFewRows);
  EXPECT_EQ(choose_row_kernel(call(32, 14336, 4096, 4, 128)), RowKernel::kMany);
}

TEST(RowChoice, SumsOf32ColumnsAreFewRowsKernelsTo32) {
  EXPECT_EQ(choose_row_kernel(call(16, 4096, 4096, 4, 32)), RowKernel::kGemv);
  EXPECT_EQ(choose_row_kernel(call(32, 4096, 4096, 4, 32)), RowKernel::kFewRows);
  EXPECT_EQ(choose_row_kernel(call(33, 4096, 4096, 4, 32)), RowKernel::kMany);
}

TEST(RowChoice, WithoutWgmma) {
  RowCall c = call(16, 14336, 4096, 4);
  c.wgmma = false;
  EXPECT_EQ(choose_row_kernel(c), RowKernel::kFewRows);
  c.clusters = false;
  EXPECT_EQ(choose_row_kernel(c), RowKernel::kGemv);
  c.m = 32;
  EXPECT_EQ(choose_row_kernel(c), RowKernel::kFewRows);
  c.m = 33;
  EXPECT_EQ(choose_row_kernel(c), RowKernel::kMany);
  c.summed = 128;
  EXPECT_EQ(choose_row_kernel(c), RowKernel::kFewRows);
  c.m = 129;
  EXPECT_EQ(choose_row_kernel(c), RowKernel::kMany);
  for (const bool row_bytes : {true, false}) {
    c = call(32, 4096, 4096, 8, 0, row_bytes);
    c.wgmma = false;
    EXPECT_EQ(choose_row_kernel(c), row_bytes ? RowKernel::kMany : RowKernel::kFewRows);
  }
}

TEST(RowChoice, ColumnsThatAreSummed) {
  EXPECT_EQ(columns_summed(32), 32);
  EXPECT_EQ(columns_summed(96), 32);
  EXPECT_EQ(columns_summed(192), 64);
  EXPECT_EQ(columns_summed(4096), 128);
}

}  // namespace
}  // namespace pestle::ops
