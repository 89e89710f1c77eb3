// The checked-in files that are made from the op table are what `pestle dump` prints today.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  EXPECT_NE(value, nullptr) << name << " is not set; run this test through ctest";
  return value == nullptr ? "" : value;
}

std::string output_of(const std::string& command) {
  std::FILE* pipe = popen(command.c_str(), "r");
  EXPECT_NE(pipe, nullptr) << command;
  if (pipe == nullptr) return "";
  std::string text;
  char buffer[4096];
  for (size_t n; (n = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) text.append(buffer, n);
  EXPECT_EQ(pclose(pipe), 0) << command;
  return text;
}

// "line 12: 'old' became 'new'" of the first line that differs.
std::string first_difference(const std::string& file, const std::string& print) {
  size_t line = 1;
  size_t begin = 0;
  for (size_t i = 0; i < file.size() && i < print.size() && file[i] == print[i]; ++i) {
    if (file[i] != '\n') continue;
    ++line;
    begin = i + 1;
  }
  const auto line_at = [&](const std::string& text) {
    return "'" + text.substr(begin, text.find('\n', begin) - begin) + "'";
  };
  return "line " + std::to_string(line) + " is " + line_at(file) + ", the table says " +
         line_at(print);
}

void expect_fresh(const std::string& path, const std::string& what) {
  std::ifstream in(environment("PESTLE_SOURCE_DIR") + "/" + path, std::ios::binary);
  ASSERT_TRUE(in.good()) << path << " is missing";
  const std::string file{std::istreambuf_iterator<char>(in), {}};
  const std::string print = output_of("'" + environment("PESTLE_BIN") + "' dump " + what);
  ASSERT_GT(print.size(), 1000u);
  EXPECT_TRUE(file == print) << path << " is not what `pestle dump " << what
                             << "` prints: " << first_difference(file, print)
                             << "\nIf the table is right, run `make dump` and commit the result.";
}

TEST(Golden, CWrappers) { expect_fresh("include/pestle/ops.h", "c"); }
TEST(Golden, OpReference) { expect_fresh("docs/ops.md", "markdown"); }
TEST(Golden, RustOps) { expect_fresh("bindings/rust/pestle/src/ops.rs", "rust"); }

}  // namespace
