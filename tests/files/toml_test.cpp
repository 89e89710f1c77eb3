#include "files/toml.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace pestle::files {
namespace {

using Kind = TomlValue::Kind;

TomlValue parse(const std::string& text) {
  auto value = parse_toml(text, "t.toml");
  EXPECT_TRUE(value.ok()) << text << " " << value.status().message();
  return std::move(value.value());
}

void expect_error(const std::string& text, const std::string& part = "no valid TOML") {
  const auto value = parse_toml(text, "t.toml");
  ASSERT_FALSE(value.ok()) << text;
  EXPECT_NE(value.status().message().find(part), std::string::npos) << value.status().message();
  EXPECT_EQ(value.status().message().find('\n'), std::string::npos);
}

TEST(Toml, Strings) {
  EXPECT_EQ(parse(R"(a = "x\t\"\\\u00e9\U0001F600")").find("a")->text, "x\t\"\\é😀");
  EXPECT_EQ(parse(R"(a = 'C:\x')").find("a")->text, "C:\\x");
  EXPECT_EQ(parse("a = \"\"\"\nx\n\\\n   y\"\"\"\"\"").find("a")->text, "x\ny\"\"");
  EXPECT_EQ(parse("a = '''\r\nx\\n'''").find("a")->text, "x\\n");
  EXPECT_EQ(parse("a = \"\"").find("a")->text, "");
}

TEST(Toml, Numbers) {
  EXPECT_EQ(parse("a = 1_000").find("a")->integer, 1000);
  EXPECT_EQ(parse("a = -9223372036854775808").find("a")->integer, INT64_MIN);
  EXPECT_EQ(parse("a = 0xdead_beef").find("a")->integer, 0xdeadbeef);
  EXPECT_EQ(parse("a = 0o17").find("a")->integer, 15);
  EXPECT_EQ(parse("a = 0b101").find("a")->integer, 5);
  EXPECT_EQ(parse("a = 0.02").find("a")->real, 0.02);
  EXPECT_EQ(parse("a = -1e-3").find("a")->real, -1e-3);
  EXPECT_TRUE(std::isinf(parse("a = -inf").find("a")->real));
  EXPECT_TRUE(std::isnan(parse("a = nan").find("a")->real));
  for (const char* bad : {"a = 01", "a = 1_", "a = _1", "a = 1__0", "a = 1.", "a = .5", "a = 0x",
                          "a = +0x1", "a = 9223372036854775808", "a = 1e", "a = 1e999", "a = +",
                          "a = 1979-05-27", "a = 07:32:00", "a = 1.e5", "a = abc"}) {
    expect_error(bad);
  }
}

TEST(Toml, TablesAndArrays) {
  TomlValue root = parse(R"(
a.b.c = 1          # dotted
"quoted key" = true
list = [ 1,
  [2, "x"], # comment
]
inline = { x = 1, y.z = 2 }
[t.u]
v = false
[[layer]]
n = 1
[[layer]]
n = 2
[layer.sub]
m = 3
)");
  EXPECT_EQ(root.find("a")->find("b")->find("c")->integer, 1);
  EXPECT_TRUE(root.find("quoted key")->boolean);
  ASSERT_EQ(root.find("list")->items.size(), 2u);
  EXPECT_EQ(root.find("list")->items[1].items[1].text, "x");
  EXPECT_EQ(root.find("inline")->find("y")->find("z")->integer, 2);
  EXPECT_EQ(root.find("t")->find("u")->find("v")->kind, Kind::kBool);
  ASSERT_EQ(root.find("layer")->items.size(), 2u);
  EXPECT_EQ(root.find("layer")->items[1].find("sub")->find("m")->integer, 3);
  EXPECT_EQ(root.find("layer")->items[1].find("n")->line, 13);
}

TEST(Toml, Refusals) {
  expect_error("= 1", "t.toml:1: no valid TOML: expected a key, found \"=\"");
  expect_error("\n\na", "t.toml:3: no valid TOML: expected '=' before the end");
  expect_error("a = 1\na = 2", "already given");
  expect_error("a = {b = 1}\n[a.c]", "already given");
  expect_error("a = [1]\n[[a]]", "already given");
  expect_error("[a]\n[a]", "already given");
  expect_error("a = {b = {}}\na.b.c = 1", "already given");
  expect_error("[.a]");
  expect_error("[a");
  expect_error("[[a]");
  expect_error("a = \"x", "without its closing");
  expect_error("a = \"x\ny\"", "line break inside a string");
  expect_error("a = \"\\q\"", "unknown escape");
  expect_error("a = \"\\ud800\"", "no Unicode character");
  expect_error("a = 1 b = 2", "end of the line");
  expect_error("a = [1 2]");
  expect_error("a = {b = 1,}");
  expect_error("a = " + std::string(50000, '['), "nested deeper");
  expect_error("# \x01", "control character");
  expect_error("a = \"\xff\"", "not UTF-8");
  std::string key = "a";
  for (int i = 0; i < 50000; ++i) key += ".a";
  expect_error(key + " = 1", "more than 32 parts");
}

}  // namespace
}  // namespace pestle::files
