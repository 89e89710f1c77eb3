#include "files/gguf.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace pestle::files {
namespace {

// Builds a GGUF file piece by piece.
class Bytes {
 public:
  template <class T>
  Bytes& num(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Bytes& raw(const std::string& text) {
    text_ += text;
    return *this;
  }
  Bytes& str(const std::string& text) { return num<uint64_t>(text.size()).raw(text); }
  Bytes& head(uint64_t tensors, uint64_t keys, uint32_t version = 3) {
    return raw("GGUF").num(version).num(tensors).num(keys);
  }
  Bytes& tensor(const std::string& name, std::vector<uint64_t> dims, uint32_t type,
                uint64_t offset) {
    str(name).num<uint32_t>(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) num(dim);
    return num(type).num(offset);
  }
  Bytes& pad(size_t align = 32) {
    return raw(std::string((align - text_.size() % align) % align, 0));
  }
  Bytes& zeros(size_t count) { return raw(std::string(count, 0)); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

Result<GgufFile> parse(const Bytes& bytes) {
  return parse_gguf(std::as_bytes(std::span(bytes.text())), "m.gguf");
}

void expect_error(const Bytes& bytes, const std::string& part) {
  const auto file = parse(bytes);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().code(), Code::kCorruptFile);
  EXPECT_NE(file.status().message().find(part), std::string::npos) << file.status().message();
}

TEST(Gguf, ReadsKeysAndTensors) {
  Bytes b;
  b.head(2, 4);
  b.str("general.name").num<uint32_t>(8).str("tiny");
  b.str("rate").num<uint32_t>(6).num(0.5f);
  b.str("on").num<uint32_t>(7).num<uint8_t>(1);
  b.str("list").num<uint32_t>(9).num<uint32_t>(8).num<uint64_t>(2).str("x").str("y");
  b.tensor("blk.0.w", {64, 2}, 8, 0);  // Q8_0, K = 64 first
  b.tensor("norm", {3}, 0, 160).pad().zeros(136 + 24 + 12);
  const auto file = parse(b);
  ASSERT_TRUE(file.ok()) << file.status().message();
  const GgufFile& f = file.value();
  EXPECT_EQ(f.version, 3u);
  EXPECT_EQ(f.metadata[0].second, "tiny");
  EXPECT_EQ(f.metadata[1].second, "0.5");
  EXPECT_EQ(f.metadata[2].second, "true");
  EXPECT_EQ(f.metadata[3].second, "[2 x string]");
  EXPECT_EQ(f.tensors[0].shape, (std::vector<int64_t>{2, 64}));
  EXPECT_EQ(f.tensors[0].type->name, "Q8_0");
  EXPECT_EQ(f.tensors[0].bytes, 4u * 34);
  EXPECT_EQ(f.tensors[0].offset % 32, 0u);
  EXPECT_EQ(f.tensors[1].offset, f.tensors[0].offset + 160);
}

TEST(Gguf, HonoursItsAlignment) {
  Bytes b;
  b.head(1, 1).str("general.alignment").num<uint32_t>(4).num<uint32_t>(64);
  b.tensor("w", {1}, 0, 0).pad(64).zeros(4);
  const auto file = parse(b);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file.value().tensors[0].offset % 64, 0u);
}

TEST(Gguf, NotGguf) { expect_error(Bytes().raw("nothing here"), "not a GGUF file"); }
TEST(Gguf, OldVersion) { expect_error(Bytes().head(0, 0, 1), "version 1"); }
TEST(Gguf, BigEndian) { expect_error(Bytes().head(0, 0, 0x03000000), "big-endian"); }
TEST(Gguf, TruncatedHeader) { expect_error(Bytes().raw("GGUF").num<uint32_t>(3), "truncated"); }
TEST(Gguf, LyingCounts) {
  expect_error(Bytes().head(uint64_t{1} << 63, 0), "truncated");
  expect_error(Bytes().head(0, uint64_t{1} << 63), "truncated");
  expect_error(Bytes().head(0, 1).num(~uint64_t{0}), "truncated");
  Bytes array;
  array.head(0, 1).str("a").num<uint32_t>(9).num<uint32_t>(10).num(uint64_t{1} << 62);
  expect_error(array, "truncated");
}
TEST(Gguf, DeepArrays) {
  Bytes b;
  b.head(0, 1).str("a").num<uint32_t>(9);
  for (int i = 0; i < 1000; ++i) b.num<uint32_t>(9).num<uint64_t>(1);
  expect_error(b, "nests arrays deeper");
}
TEST(Gguf, DuplicateKeyAndName) {
  Bytes keys;
  keys.head(0, 2);
  for (int i = 0; i < 2; ++i) keys.str("k").num<uint32_t>(0).num<uint8_t>(1);
  expect_error(keys, "duplicate key \"k\"");
  Bytes names;
  names.head(2, 0).tensor("w", {1}, 0, 0).tensor("w", {1}, 0, 32).pad().zeros(64);
  expect_error(names, "duplicate name \"w\"");
}
TEST(Gguf, NonUtf8Name) {
  expect_error(Bytes().head(1, 0).tensor("\xff", {1}, 0, 0).pad().zeros(4), "not UTF-8");
}
TEST(Gguf, UnknownTypes) {
  expect_error(Bytes().head(1, 0).tensor("w", {1}, 4, 0).pad().zeros(4), "unknown type 4");
  expect_error(Bytes().head(0, 1).str("k").num<uint32_t>(13).num<uint32_t>(0), "unknown type 13");
}
TEST(Gguf, RowNoMultipleOfTheBlock) {
  expect_error(Bytes().head(1, 0).tensor("w", {33}, 8, 0).pad().zeros(99), "multiple of 32");
}
TEST(Gguf, BadDimensions) {
  expect_error(Bytes().head(1, 0).tensor("w", {}, 0, 0).pad(), "0 dimensions");
  expect_error(Bytes().head(1, 0).tensor("w", {1, 1, 1, 1, 1}, 0, 0).pad(), "5 dimensions");
  expect_error(Bytes().head(1, 0).tensor("w", {uint64_t{1} << 63}, 0, 0).pad(), "beyond 2^63");
  expect_error(Bytes().head(1, 0).tensor("w", {1ull << 40, 1ull << 40}, 0, 0).pad(), "overflows");
}
TEST(Gguf, OffsetsOutOfRangeUnalignedOverlapping) {
  expect_error(Bytes().head(1, 0).tensor("w", {8}, 0, 0).pad().zeros(31), "out of range");
  expect_error(Bytes().head(1, 0).tensor("w", {1}, 0, ~uint64_t{31}).pad().zeros(4),
               "out of range");
  expect_error(Bytes().head(1, 0).tensor("w", {1}, 0, 4).pad().zeros(64), "no multiple");
  expect_error(Bytes().head(2, 0).tensor("a", {16}, 0, 0).tensor("b", {1}, 0, 32).pad().zeros(64),
               "overlaps");
}
TEST(Gguf, BadAlignment) {
  for (const uint32_t value : {0u, 3u, 4u, 48u, 1u << 30}) {
    Bytes b;
    b.head(0, 1).str("general.alignment").num<uint32_t>(4).num(value);
    expect_error(b, "power of two");
  }
}

}  // namespace
}  // namespace pestle::files
