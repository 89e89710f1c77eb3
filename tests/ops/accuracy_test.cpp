// Errors that must not grow with an offset of the data, or with the number of terms.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "core/call_text.h"
#include "core/dispatch.h"
#include "core/op_table.h"

namespace pestle {
namespace {

// A call of an op whose tensors lie in memory of their own.
struct Owned {
  const Op& op;
  TextCall text;
  std::vector<std::vector<char>> memory;

  Owned(const char* name, const std::string& call)
      : op(*find_op(name)),
        text(std::move(call_from_text(op, call, DeviceType::kCpu).value())),
        memory(op.spec->args.size()) {
    for (size_t i = 0; i < memory.size(); ++i) {
      Value& value = text.values[i];
      if (op.spec->args[i].kind != Kind::kTensor || !value.present) continue;
      memory[i].resize(static_cast<size_t>(size_bytes(value.tensor)) + 1);
      value.tensor.data = memory[i].data();
    }
  }
  template <class T>
  T* at(const char* arg) {
    return text.values[static_cast<size_t>(find_arg(*op.spec, arg))].tensor.as<T>();
  }
  void run_on(std::string_view impl) {
    auto choice = choose(op, text.call, impl);
    ASSERT_TRUE(choice.ok()) << choice.status().message();
    std::vector<double> workspace(static_cast<size_t>(choice.value().workspace_bytes / 8 + 1));
    text.call.workspace = workspace.data();
    text.call.workspace_bytes = choice.value().workspace_bytes;
    const Status status = run(op, text.call, impl);
    EXPECT_TRUE(status.ok()) << status.message();
  }
};

TEST(Accuracy, CrossEntropyDoesNotDependOnAnOffset) {
  constexpr int kClasses = 1001;
  for (const char* smoothing : {"0", "0.1"}) {
    float plain = 0;
    for (float offset : {0.0f, 0x1p10f, 0x1p14f, 0x1p20f}) {
      Owned call("cross_entropy",
                 std::string("M=1 N=1001 logits=f32 label_smoothing=") + smoothing);
      for (int i = 0; i < kClasses; ++i) {
        call.at<float>("logits")[i] = offset + static_cast<float>(i * 37 % 64) / 8;
      }
      *call.at<int64_t>("target") = 5;
      call.run_on("cpu/cross_entropy_simd");
      const float loss = *call.at<float>("loss");
      if (offset == 0) plain = loss;
      EXPECT_NEAR(loss, plain, 1e-6 * plain) << offset << " smoothing " << smoothing;
    }
  }
}

TEST(Accuracy, CrossEntropyOfOneHugeLogitIsThatLogit) {
  for (const char* classes : {"8", "24", "64", "300", "1000"}) {
    Owned call("cross_entropy", std::string("M=1 logits=f32 N=") + classes);
    call.at<float>("logits")[3] = 1e30f;
    *call.at<int64_t>("target") = 0;
    call.run_on("cpu/cross_entropy_simd");
    EXPECT_EQ(*call.at<float>("loss"), 1e30f) << classes;
  }
}

TEST(Accuracy, SumsOfEqualNumbersAreRightHoweverMany) {
  struct Shape {
    const char* text;
    int64_t count;  // behind the first result
  };
  constexpr Shape kShapes[] = {
      {"M=1800000 ", 1'800'000}, {"M=1800003 ", 1'800'003}, {"M=225000x8 dims=1 ", 225'000}};
  for (const Shape& shape : kShapes) {
    for (float value : {0.3f, 0.1f, 7.7f}) {
      for (const char* kind : {"sum", "mean", "norm"}) {
        Owned call("reduce", std::string(shape.text) + "x=f32 op=" + kind);
        const std::string name = kind;
        float* x = call.at<float>("x");
        const int64_t all = numel(call.text.values[0].tensor);
        for (int64_t i = 0; i < all; ++i) x[i] = value;
        call.run_on("cpu/reduce_rows");
        const auto n = static_cast<double>(shape.count);
        const double wanted = double{value} * (name == "sum"    ? n
                                               : name == "mean" ? 1
                                                                : std::sqrt(n));
        EXPECT_NEAR(*call.at<float>("out"), wanted, 2e-7 * wanted) << shape.text << name << value;
      }
    }
  }
}

TEST(Accuracy, IntegerProductsThatAreZeroStayZero) {
  Owned call("linear_int8", "M=1 N=1 K=64 x=f32 out=f32 granularity=row activations=row");
  for (int i = 0; i < 64; ++i) {
    call.at<float>("x")[i] = 0.7f * static_cast<float>(i % 7 - 3);
    call.at<int8_t>("weight")[i] = static_cast<int8_t>(i % 7 == 3 ? 9 : (i / 7 % 2 ? 1 : -1) * 11);
  }
  // Pairs of sevens cancel; the last lone one is all zeros.
  for (int i = 56; i < 64; ++i) call.at<int8_t>("weight")[i] = 0;
  *call.at<float>("scale") = 0.013f;
  call.run_on("reference");
  EXPECT_EQ(*call.at<float>("out"), 0.0f);
}

}  // namespace
}  // namespace pestle
