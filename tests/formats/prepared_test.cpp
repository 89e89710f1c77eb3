// The prepared layout of weights: places by hand, and each the inverse of the other.
#include "formats/prepared.h"

#include <gtest/gtest.h>

#include <set>

namespace pestle::formats {
namespace {

// From the table of docs/formats/prepared.md.
TEST(Prepared, PlacesByHand) {
  const PreparedShape nibbles{128, 64, 4};
  const auto at = [&](int64_t n, int64_t k) {
    const CodePlace place = prepared_place(nibbles, n, k);
    return place.byte * 2 + place.half;
  };
  EXPECT_EQ(at(0, 0), 0);                     // thread 0, step 0, pair 0
  EXPECT_EQ(at(8, 0), 1);                     // pair 1
  EXPECT_EQ(at(0, 8), 2);                     // pair 2
  EXPECT_EQ(at(8, 8), 3);                     // pair 3
  EXPECT_EQ(at(0, 1), 4);                     // the odd code, 16 bits further
  EXPECT_EQ(at(0, 2), 32);                    // thread 1
  EXPECT_EQ(at(1, 0), 4 * 32);                // thread 4
  EXPECT_EQ(at(0, 16), 8);                    // step 1
  EXPECT_EQ(at(16, 0), 32 * 32);              // warp 1
  EXPECT_EQ(at(0, 64), kBrickBytes * 2);      // the next brick along k
  EXPECT_EQ(at(64, 0), kBrickBytes * 2 * 2);  // the next row of bricks
  const PreparedShape bytes{64, 32, 8};
  EXPECT_EQ(prepared_place(bytes, 8, 0).byte, 1);
  EXPECT_EQ(prepared_place(bytes, 0, 1).byte, 2);
  EXPECT_EQ(prepared_place(bytes, 0, 8).byte, 4);
  EXPECT_EQ(prepared_place(bytes, 0, 16).byte, 8);
  EXPECT_EQ(prepared_place(bytes, 0, 2).byte, 16);
}

// Whole bricks, what follows them along both dimensions, and weights without one.
TEST(Prepared, EveryCodeHasOnePlaceAndComesBack) {
  const PreparedShape shapes[] = {{64, 32, 4},  {128, 96, 4}, {70, 37, 4}, {131, 75, 8},
                                  {64, 160, 8}, {63, 64, 4},  {64, 31, 8}, {1, 1, 4}};
  for (const PreparedShape& shape : shapes) {
    const int64_t columns = shape.row_bytes * (8 / shape.bits);
    std::set<int64_t> places;
    for (int64_t n = 0; n < shape.rows; ++n) {
      for (int64_t k = 0; k < columns; ++k) {
        const CodePlace place = prepared_place(shape, n, k);
        ASSERT_LT(place.byte, shape.rows * shape.row_bytes);
        ASSERT_TRUE(places.insert(place.byte * 2 + place.half).second) << n << ' ' << k;
        const CodeIndex code = prepared_code(shape, place.byte, place.half);
        ASSERT_EQ(code.n, n);
        ASSERT_EQ(code.k, k);
      }
    }
  }
}

}  // namespace
}  // namespace pestle::formats
