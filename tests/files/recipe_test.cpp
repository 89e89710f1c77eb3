#include "files/recipe.h"

#include <gtest/gtest.h>

#include <string>

#include "files/pattern.h"

namespace pestle::files {
namespace {

Status check_format(std::string_view name) {
  if (name == "fp8" || name == "nvfp4") return {};
  return invalid_argument("unknown format \"" + std::string(name) + "\"");
}

Result<Recipe> parse(const std::string& toml) { return parse_recipe(toml, "r.toml", check_format); }

void expect_error(const std::string& toml, const std::string& part) {
  const auto recipe = parse(toml);
  ASSERT_FALSE(recipe.ok()) << toml;
  EXPECT_EQ(recipe.status().code(), Code::kInvalidArgument);
  EXPECT_NE(recipe.status().message().find(part), std::string::npos) << recipe.status().message();
}

TEST(Recipe, ReadsEveryKey) {
  const auto recipe = parse(R"(
format = "nvfp4"
layout = "plain"
target_error = 0.02
scale_search = "mse"
default_keep = false
max_shard = "5GB"
keep = ["final_layer*", "*.norm"]
[[layer]]
pattern = "a.*"
format = "fp8"
[[layer]]
pattern = "*"
format = "nvfp4"
)");
  ASSERT_TRUE(recipe.ok()) << recipe.status().message();
  const Recipe& r = recipe.value();
  EXPECT_EQ(r.format, "nvfp4");
  EXPECT_EQ(r.layout, "plain");
  EXPECT_EQ(r.target_error, 0.02);
  EXPECT_EQ(r.scale_search, "mse");
  EXPECT_EQ(r.default_keep, false);
  EXPECT_EQ(r.max_shard_bytes, 5'000'000'000u);
  EXPECT_EQ(r.keep, (std::vector<std::string>{"final_layer*", "*.norm"}));
  ASSERT_EQ(r.layers.size(), 2u);
  EXPECT_EQ(r.layers[0].pattern, "a.*");
  EXPECT_EQ(r.layers[1].format, "nvfp4");
}

TEST(Recipe, EmptyRecipeSetsNothing) {
  const auto recipe = parse("");
  ASSERT_TRUE(recipe.ok());
  EXPECT_FALSE(recipe.value().format);
  EXPECT_TRUE(recipe.value().layers.empty());
}

TEST(Recipe, UnknownKeyNamesTheNearest) {
  expect_error("\nformt = \"fp8\"", "r.toml:2: unknown key \"formt\"; did you mean \"format\"?");
  expect_error("targeterror = 0.1", "did you mean \"target_error\"?");
  expect_error("zzzzzzzzzz = 1", "known are format");
  expect_error("[[layer]]\npatern = \"a\"", "did you mean \"pattern\"?");
}

TEST(Recipe, WrongValues) {
  expect_error("format = 8", "format must be a string");
  expect_error("format = \"fp9\"", "unknown format \"fp9\"");
  expect_error("target_error = 0", "above 0 and below 1");
  expect_error("target_error = 1.0", "above 0 and below 1");
  expect_error("target_error = nan", "above 0 and below 1");
  expect_error("target_error = \"0.1\"", "above 0 and below 1");
  expect_error("scale_search = \"best\"", "\"amax\" or \"mse\"");
  expect_error("layout = \"gguf\"", "\"comfy\" or \"plain\"");
  expect_error("keep = \"a\"", "keep must be an array");
  expect_error("keep = [\"[a\"]", "without ']'");
  expect_error("keep = [1]", "must be a string");
  expect_error("default_keep = 1", "true or false");
  expect_error("max_shard = \"0GB\"", "no whole number");
  expect_error("layer = 1", "[[layer]]");
  expect_error("layer = [1]", "[[layer]]");
  expect_error("[[layer]]\nformat = \"fp8\"", "no pattern");
  expect_error("[[layer]]\npattern = \"a\"", "no format");
}

TEST(Recipe, NotToml) {
  expect_error("= 1", "r.toml:1: no valid TOML");
  expect_error("a = [", "no valid TOML");
  expect_error("a = \"\xff\"", "not UTF-8");
  expect_error("a = " + std::string(50000, '['), "no valid TOML");
}

TEST(LayerRule, DividesAtTheLastEquals) {
  const auto rule = parse_layer_rule("a=b.*=fp8", check_format);
  ASSERT_TRUE(rule.ok());
  EXPECT_EQ(rule.value().pattern, "a=b.*");
  EXPECT_EQ(rule.value().format, "fp8");
  EXPECT_FALSE(parse_layer_rule("a.*", check_format).ok());
  EXPECT_FALSE(parse_layer_rule("=fp8", check_format).ok());
  EXPECT_FALSE(parse_layer_rule("a=int2", check_format).ok());
}

TEST(ParseBytes, UnitsAndRefusals) {
  EXPECT_EQ(parse_bytes("123").value(), 123u);
  EXPECT_EQ(parse_bytes("2KiB").value(), 2048u);
  EXPECT_EQ(parse_bytes("3MB").value(), 3'000'000u);
  for (const char* bad :
       {"", "0", "-1", "5 GB", "1.5GB", "GB", "5TB", "99999999999999999999", "9999999999999GiB"}) {
    EXPECT_FALSE(parse_bytes(bad).ok()) << bad;
  }
}

TEST(Pattern, Matches) {
  EXPECT_TRUE(matches("blocks.*.mlp.*", "blocks.12.mlp.fc1.weight"));
  EXPECT_FALSE(matches("blocks.*.mlp.*", "blocks.12.attn.qkv.weight"));
  EXPECT_TRUE(matches("*", ""));
  EXPECT_TRUE(matches("a?c", "abc"));
  EXPECT_FALSE(matches("a?c", "ac"));
  EXPECT_TRUE(matches("layer.[0-3].w", "layer.2.w"));
  EXPECT_FALSE(matches("layer.[!0-3].w", "layer.2.w"));
  EXPECT_TRUE(matches("[]]", "]"));
  EXPECT_TRUE(matches("[a-]", "-"));
  EXPECT_TRUE(matches("\\*", "*"));
  EXPECT_FALSE(matches("\\*", "x"));
  EXPECT_FALSE(matches("abc", "abcd"));
  EXPECT_FALSE(matches("abcd", "abc"));
  EXPECT_TRUE(matches("a*b*c", "a-b-b-c"));
}

TEST(Pattern, ManyStarsStayFast) {
  std::string pattern;
  for (int i = 0; i < 100; ++i) pattern += "a*";
  EXPECT_FALSE(matches(pattern + "b", std::string(10000, 'a')));
}

TEST(Pattern, Refusals) {
  for (const char* bad : {"", "[a", "[", "[!", "[]", "a\\"}) EXPECT_FALSE(check_pattern(bad).ok());
  for (const char* good : {"*", "[]]", "[!]]", "a\\\\", "[a-z]?"}) {
    EXPECT_TRUE(check_pattern(good).ok()) << good;
  }
}

}  // namespace
}  // namespace pestle::files
