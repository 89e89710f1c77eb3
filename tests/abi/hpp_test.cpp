#include "pestle/pestle.hpp"

#include <gtest/gtest.h>

#include <cstring>

namespace {

using pestle::api::Tensor;

TEST(Hpp, CallsByNameAndThrowsSentences) {
  float x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  unsigned char q[8];
  float scale[1];
  const Tensor tx(x, PESTLE_F32, {2, 4});
  const Tensor tq(q, PESTLE_E4M3, {2, 4});
  const Tensor ts(scale, PESTLE_F32, {1});
  pestle::api::call("quantize_fp8", {{"x", tx}, {"q", tq}, {"scale_out", ts}});
  EXPECT_FLOAT_EQ(scale[0], 8.0f / 448.0f);
  EXPECT_EQ(q[7], 0x7E);
  try {
    pestle::api::call("quantize_fp8", {{"x", tx}, {"q", ts}, {"scale_out", ts}});
    FAIL() << "a wrong shape was accepted";
  } catch (const pestle::api::Error& error) {
    EXPECT_EQ(error.status(), PESTLE_INVALID_ARGUMENT);
    EXPECT_NE(std::string(error.what()).find("quantize_fp8: q "), std::string::npos);
  }
  EXPECT_THROW(pestle::api::call("quantize_fp8", {{"xx", tx}}), pestle::api::Error);
  EXPECT_THROW(pestle::api::call("no_such_op", {}), pestle::api::Error);
}

TEST(Hpp, StridesAndByteOffset) {
  float x[10] = {9, 1, 9, 2, 9, 4, 9, 8, 9, 9};
  unsigned char q[4];
  float scale[1] = {1};
  const Tensor tx(x, PESTLE_F32, {1, 4}, {8, 2}, 4);
  const Tensor tq(q, PESTLE_E4M3, {1, 4});
  const Tensor ts(scale, PESTLE_F32, {1});
  pestle::api::call("quantize_fp8", {{"x", tx}, {"scale", ts}, {"q", tq}});
  const unsigned char expected[4] = {0x38, 0x40, 0x48, 0x50};
  EXPECT_EQ(0, std::memcmp(q, expected, 4));
}

}  // namespace
