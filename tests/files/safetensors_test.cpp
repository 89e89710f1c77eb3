#include "files/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "files/safetensors_plan.h"

namespace pestle::files {
namespace {

std::string file_of(const std::string& json, size_t data_bytes) {
  const uint64_t length = json.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + json + std::string(data_bytes, 'x');
}

Result<SafetensorsHeader> parse(const std::string& file) {
  return parse_safetensors(std::as_bytes(std::span(file)), "m.safetensors");
}

void expect_error(const std::string& file, const std::string& part) {
  const auto header = parse(file);
  ASSERT_FALSE(header.ok());
  EXPECT_EQ(header.status().code(), Code::kCorruptFile);
  EXPECT_EQ(header.status().message().rfind("m.safetensors: ", 0), 0u);
  EXPECT_NE(header.status().message().find(part), std::string::npos) << header.status().message();
  EXPECT_EQ(header.status().message().find('\n'), std::string::npos);
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

TEST(Safetensors, ReadsTensorsMetadataAndPadding) {
  const auto header = parse(file_of(R"({"__metadata__":{"format":"pt","k":"v"},"b":)" +
                                        entry("BF16", "[2,3]", "[4,16]") + R"(,"a\u00e9":)" +
                                        entry("F32", "[]", "[0,4]") + "}   ",
                                    16));
  ASSERT_TRUE(header.ok()) << header.status().message();
  const auto& h = header.value();
  ASSERT_EQ(h.tensors.size(), 2u);
  EXPECT_EQ(h.tensors[0].name, "aé");
  EXPECT_TRUE(h.tensors[0].shape.empty());
  EXPECT_EQ(h.tensors[1].name, "b");
  EXPECT_EQ(h.tensors[1].dtype->dtype, DType::kBF16);
  EXPECT_EQ(h.tensors[1].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(h.tensors[1].begin, 4u);
  EXPECT_EQ(h.metadata.at("format"), "pt");
  EXPECT_EQ(h.metadata.size(), 2u);
}

TEST(Safetensors, EmptyFileOfNoTensorsIsFine) { EXPECT_TRUE(parse(file_of("{}", 0)).ok()); }

TEST(Safetensors, EmptyTensorsShareAnOffset) {
  EXPECT_TRUE(parse(file_of("{\"a\":" + entry("F32", "[0,5]", "[0,0]") +
                                ",\"b\":" + entry("U8", "[1]", "[0,1]") +
                                ",\"c\":" + entry("U8", "[9223372036854775807,0]", "[1,1]") + "}",
                            1))
                  .ok());
}

TEST(Safetensors, NotSafetensors) {
  expect_error("", "not a safetensors file");
  expect_error("short", "not a safetensors file");
  expect_error("PK\x03\x04 some zip file with text", "not a safetensors file");
  expect_error(file_of("[]", 0), "does not begin with '{'");
  expect_error(file_of("", 0), "does not begin with '{'");
}

TEST(Safetensors, GgufIsNamed) { expect_error("GGUF\x03plus twelve bytes more", "it is GGUF"); }

TEST(Safetensors, HeaderOf2To63) {
  std::string file = file_of("{}", 100);
  const uint64_t length = uint64_t{1} << 63;
  std::memcpy(file.data(), &length, 8);
  expect_error(file, "9223372036854775808");
}

TEST(Safetensors, TruncatedHeader) {
  std::string file = file_of("{\"a\":" + entry("U8", "[1]", "[0,1]") + "}", 1);
  expect_error(file.substr(0, 20), "truncated: the header");
}

TEST(Safetensors, TruncatedData) {
  expect_error(file_of("{\"a\":" + entry("U8", "[9]", "[0,9]") + "}", 8), "truncated");
  expect_error(file_of("{\"a\":" + entry("U8", "[9]", "[0,9]") + "}", 8), "out of range");
}

TEST(Safetensors, HeaderLiesAboutSizes) {
  expect_error(file_of("{\"a\":" + entry("F32", "[2]", "[0,4]") + "}", 4), "lies about sizes");
  expect_error(file_of("{\"a\":" + entry("F32", "[1]", "[0,4]") + "}", 6),
               "2 bytes follow the last tensor");
}

TEST(Safetensors, OverlappingOffsets) {
  expect_error(file_of("{\"a\":" + entry("U8", "[4]", "[0,4]") +
                           ",\"b\":" + entry("U8", "[4]", "[2,6]") + "}",
                       6),
               "tensor \"b\" overlaps tensor \"a\"");
}

TEST(Safetensors, GapsAreRefused) {
  expect_error(file_of("{\"a\":" + entry("U8", "[4]", "[1,5]") + "}", 5), "no gaps");
}

TEST(Safetensors, OffsetsBackwards) {
  expect_error(file_of("{\"a\":" + entry("U8", "[4]", "[4,0]") + "}", 4), "before they begin");
}

TEST(Safetensors, OffsetsOutOfRange) {
  expect_error(
      file_of("{\"a\":" + entry("U8", "[4]", "[9223372036854775800,9223372036854775804]") + "}", 4),
      "no gaps");
  expect_error(file_of("{\"a\":" + entry("U8", "[4]", "[0,99999999999999999999]") + "}", 4),
               "no integer below 2^64");
  expect_error(file_of("{\"a\":" + entry("U8", "[4]", "[0,9223372036854775808]") + "}", 4),
               "beyond 2^63");
}

TEST(Safetensors, DuplicateNames) {
  const std::string one = entry("U8", "[0]", "[0,0]");
  expect_error(file_of("{\"a\":" + one + ",\"a\":" + one + "}", 0), "duplicate name \"a\"");
  expect_error(file_of("{\"a\":" + one + ",\"\\u0061\":" + one + "}", 0), "duplicate name \"a\"");
  expect_error(file_of(R"({"__metadata__":{"k":"1","k":"2"}})", 0), "duplicate key \"k\"");
  expect_error(file_of(R"({"a":{"dtype":"U8","dtype":"U8"}})", 0), "dtype is given twice");
  expect_error(file_of(R"({"a":{"shape":[1],"shape":[1]}})", 0), "shape is given twice");
}

TEST(Safetensors, NonUtf8Names) {
  const std::string one = entry("U8", "[0]", "[0,0]");
  expect_error(file_of("{\"\xff\":" + one + "}", 0), "not UTF-8 at its byte 2");
  expect_error(file_of("{\"\xc0\xaf\":" + one + "}", 0), "not UTF-8");
  expect_error(file_of("{\"\xed\xa0\x80\":" + one + "}", 0), "not UTF-8");
  expect_error(file_of("{\"\\ud800\":" + one + "}", 0), "no valid JSON");
}

TEST(Safetensors, JsonNested50000Deep) {
  const std::string deep(50000, '[');
  expect_error(file_of("{\"a\":" + deep, 0), "holds an array");
  expect_error(file_of("{\"a\":{\"shape\":" + deep, 0), "nested deeper than 3");
  std::string objects;
  for (int i = 0; i < 50000; ++i) objects += "{\"a\":";
  expect_error(file_of(objects, 0), "");
}

TEST(Safetensors, UnknownDtype) {
  expect_error(file_of("{\"a\":" + entry("F128", "[1]", "[0,16]") + "}", 16),
               "unknown dtype \"F128\"; known are BOOL");
}

TEST(Safetensors, ShapeProductOverflows) {
  expect_error(file_of("{\"a\":" + entry("F64", "[4294967296,4294967296]", "[0,8]") + "}", 8),
               "overflows");
}

TEST(Safetensors, SubByteTensorsMustFillBytes) {
  EXPECT_TRUE(parse(file_of("{\"a\":" + entry("F4", "[1,2]", "[0,1]") + "}", 1)).ok());
  expect_error(file_of("{\"a\":" + entry("F4", "[1,1]", "[0,1]") + "}", 1),
               "whole number of bytes");
}

TEST(Safetensors, NegativeAndFractionalNumbers) {
  expect_error(file_of("{\"a\":" + entry("U8", "[-1]", "[0,1]") + "}", 1), "negative number -1");
  expect_error(file_of("{\"a\":" + entry("U8", "[1.0]", "[0,1]") + "}", 1),
               "1.0, which is no integer");
  expect_error(file_of("{\"a\":" + entry("U8", "[1e3]", "[0,1]") + "}", 1), "1e3");
}

TEST(Safetensors, MissingAndStrangeFields) {
  expect_error(file_of(R"({"a":{"shape":[],"data_offsets":[0,1]}})", 1), "has no dtype");
  expect_error(file_of(R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1), "has no shape");
  expect_error(file_of(R"({"a":{"dtype":"U8","shape":[]}})", 1), "has no data_offsets");
  expect_error(file_of("{\"a\":" + entry("U8", "[1]", "[0,1,2]") + "}", 1), "3 numbers, not 2");
  expect_error(file_of(R"({"a":{"dtyp":"U8"}})", 1), "unknown key \"dtyp\"");
  expect_error(file_of(R"({"a":1})", 1), "entry \"a\" holds the number 1");
  expect_error(file_of(R"({"a":null})", 1), "entry \"a\" holds null");
  expect_error(file_of(R"({"__metadata__":{"k":1}})", 0), "__metadata__ key \"k\"");
  expect_error(file_of(R"({"__metadata__":[]})", 0), "entry \"__metadata__\" holds an array");
  expect_error(file_of(R"({"a":{"dtype":"U8","shape":[true]}})", 0), "holds true");
}

TEST(Safetensors, BrokenJson) {
  expect_error(file_of("{\"a\":", 0), "no valid JSON");
  expect_error(file_of("{}}", 0), "no valid JSON");
  expect_error(file_of("{} {}", 0), "no valid JSON");
}

TEST(SafetensorsPlan, WritesWidestFirstThenByNameAlignedTo8) {
  SafetensorsPlan plan;
  ASSERT_TRUE(plan.add("z", *file_dtype_from_name("U8"), {3}).ok());
  ASSERT_TRUE(plan.add("b", *file_dtype_from_name("BF16"), {2, 2}).ok());
  ASSERT_TRUE(plan.add("a", *file_dtype_from_name("F16"), {1}).ok());
  ASSERT_TRUE(plan.add("s", *file_dtype_from_name("F32"), {}).ok());
  plan.set_metadata({{"k", "quote \" and \n"}});
  ASSERT_TRUE(plan.finish().ok());
  EXPECT_EQ(plan.header().size() % 8, 0u);
  EXPECT_EQ(plan.file_bytes(), plan.header().size() + 4 + 2 + 8 + 3);
  EXPECT_EQ(plan.offset_of("s"), plan.header().size());
  EXPECT_EQ(plan.offset_of("a"), plan.header().size() + 4);
  EXPECT_EQ(plan.offset_of("b"), plan.header().size() + 6);
  EXPECT_EQ(plan.offset_of("z"), plan.header().size() + 14);
  const auto header = parse(plan.header() + std::string(17, 'x'));
  ASSERT_TRUE(header.ok()) << header.status().message();
  EXPECT_EQ(header.value().metadata.at("k"), "quote \" and \n");
}

TEST(SafetensorsPlan, SameBytesForAnyOrderOfAdding) {
  std::string first;
  for (const bool reversed : {false, true}) {
    SafetensorsPlan plan;
    std::vector<std::string> names = {"a", "b", "c"};
    if (reversed) names = {"c", "b", "a"};
    for (const auto& name : names) {
      ASSERT_TRUE(plan.add(name, *file_dtype_from_name("F32"), {2}).ok());
    }
    ASSERT_TRUE(plan.finish().ok());
    if (first.empty()) first = plan.header();
    EXPECT_EQ(plan.header(), first);
  }
}

TEST(SafetensorsPlan, RefusesDuplicateAndImpossibleNames) {
  SafetensorsPlan plan;
  const FileDType& u8 = *file_dtype_from_name("U8");
  ASSERT_TRUE(plan.add("a", u8, {1}).ok());
  EXPECT_EQ(plan.add("a", u8, {1}).code(), Code::kInvalidArgument);
  EXPECT_EQ(plan.add("__metadata__", u8, {1}).code(), Code::kInvalidArgument);
  EXPECT_EQ(plan.add("\xff", u8, {1}).code(), Code::kInvalidArgument);
  EXPECT_EQ(plan.add("big", u8, {int64_t{1} << 40, int64_t{1} << 40}).code(),
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace pestle::files
