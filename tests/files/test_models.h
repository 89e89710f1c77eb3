// Small models on disk for the tests of the file engine.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "files/input_file.h"
#include "files/safetensors_plan.h"
#include "formats/float_bits.h"

namespace pestle::files {

// A folder of its own for each test, removed afterwards.
class TempFolder {
 public:
  TempFolder() {
    char name[] = "/tmp/pestle-test-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  std::string path_;
};

inline std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::string bytes_of(const FileRange& range) {
  std::string bytes(range.size(), '\0');
  EXPECT_TRUE(range.read(0, std::as_writable_bytes(std::span(bytes))).ok());
  return bytes;
}

struct TestTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

// Normally distributed values with a deviation of 0.02, the same for the same name.
inline TestTensor weight(const std::string& name, std::vector<int64_t> shape,
                         const std::string& dtype = "BF16") {
  TestTensor tensor{name, dtype, std::move(shape), ""};
  int64_t count = 1;
  for (const int64_t dim : tensor.shape) count *= dim;
  std::mt19937 random(static_cast<unsigned>(std::hash<std::string>()(name)));
  std::normal_distribution<float> normal(0, 0.02f);
  for (int64_t i = 0; i < count; ++i) {
    const float value = normal(random);
    const uint16_t bits =
        dtype == "BF16" ? formats::bf16_from_f32(value) : formats::f16_from_f32(value);
    if (dtype == "F32")
      tensor.bytes.append(reinterpret_cast<const char*>(&value), 4);
    else
      tensor.bytes.append(reinterpret_cast<const char*>(&bits), 2);
  }
  return tensor;
}

inline void save_model(const std::string& path, const std::vector<TestTensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {}) {
  SafetensorsPlan plan;
  for (const TestTensor& tensor : tensors) {
    ASSERT_TRUE(plan.add(tensor.name, *file_dtype_from_name(tensor.dtype), tensor.shape).ok());
  }
  plan.set_metadata(metadata);
  ASSERT_TRUE(plan.finish().ok());
  std::string file = plan.header();
  file.resize(plan.file_bytes());
  for (const TestTensor& tensor : tensors) {
    std::memcpy(file.data() + plan.offset_of(tensor.name), tensor.bytes.data(),
                tensor.bytes.size());
  }
  std::ofstream(path, std::ios::binary) << file;
}

}  // namespace pestle::files
