// The table of file formats: names, order, and sizes that follow from its own fields.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "formats/format_table.h"

namespace pestle::formats {
namespace {

TEST(FormatTable, HoldsTheFormatsOfTheCommandLineInOrder) {
  const std::string_view want[] = {"fp8",       "fp8-e5m2",     "fp8-row",     "fp8-block",
                                   "nvfp4",     "mxfp8",        "mxfp4",       "int8",
                                   "int8-row",  "int8-convrot", "int4-g32",    "int4-g64",
                                   "int4-g128", "w4a8",         "w4a4-convrot"};
  const auto formats = all_formats();
  ASSERT_EQ(formats.size(), std::size(want));
  for (size_t i = 0; i < formats.size(); ++i) {
    EXPECT_EQ(formats[i].name, want[i]);
    EXPECT_EQ(static_cast<size_t>(formats[i].format), i);
    EXPECT_EQ(&format_info(formats[i].format), &formats[i]);
    EXPECT_EQ(find_format(want[i]), &formats[i]);
    EXPECT_EQ(formats[i].layout, WeightLayout::kFile);
    EXPECT_FALSE(formats[i].doc.empty());
  }
  EXPECT_EQ(find_format("fp9"), nullptr);
  EXPECT_EQ(find_format(""), nullptr);
}

// Elements of a field's shape, by the few forms that shapes take.
int64_t field_elements(std::string_view shape, int64_t n, int64_t k) {
  if (shape.empty()) return 1;
  if (shape == "N") return n;
  if (shape == "16") return 16;
  if (shape == "ceil(N/128),ceil(K/128)") return (n + 127) / 128 * ((k + 127) / 128);
  EXPECT_EQ(shape.substr(0, 3), "N,K");
  if (shape.size() == 3) return n * k;
  EXPECT_EQ(shape[3], '/');
  return n * k / std::stoll(std::string(shape.substr(4)));
}

TEST(FormatTable, BitsPerWeightAreTheBytesOfItsFields) {
  for (const FormatInfo& info : all_formats()) {
    int64_t bytes = 0;
    std::set<std::string_view> suffixes;
    for (const FormatField& field : info.fields()) {
      bytes += field_elements(field.shape, 640, 1024) * dtype_bytes(field.dtype);
      suffixes.insert(field.suffix);
    }
    EXPECT_EQ(suffixes.size(), info.fields().size()) << info.name;
    EXPECT_EQ(info.fields()[0].suffix, "weight");
    EXPECT_DOUBLE_EQ(bits_per_weight(info, 640, 1024), 8.0 * bytes / (640.0 * 1024.0)) << info.name;
  }
  EXPECT_DOUBLE_EQ(nominal_bits_per_weight(*find_format("int4-g64")), 4.5);
  EXPECT_NEAR(nominal_bits_per_weight(*find_format("nvfp4")), 4.5, 1e-5);
  EXPECT_DOUBLE_EQ(nominal_bits_per_weight(*find_format("mxfp8")), 8.25);
}

TEST(FormatTable, MultiplesOfK) {
  EXPECT_EQ(format_k_multiple(*find_format("fp8")), 1);
  EXPECT_EQ(format_k_multiple(*find_format("fp8-block")), 1);
  EXPECT_EQ(format_k_multiple(*find_format("nvfp4")), 16);
  EXPECT_EQ(format_k_multiple(*find_format("mxfp4")), 32);
  EXPECT_EQ(format_k_multiple(*find_format("int4-g128")), 128);
  EXPECT_EQ(format_k_multiple(*find_format("int8-convrot")), 256);
  EXPECT_EQ(format_k_multiple(*find_format("w4a8")), 256);
  EXPECT_EQ(format_k_multiple(*find_format("w4a4-convrot")), 256);
}

}  // namespace
}  // namespace pestle::formats
