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

// The implementation that a call on the CPU takes first.
std::string first_cpu_impl(const char* op) {
  for (const Impl& impl : find_op(op)->impls) {
    if (std::string_view(impl.id).starts_with("cpu/")) return impl.id;
  }
  ADD_FAILURE() << op << " has no implementation on the CPU";
  return "reference";
}

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

// By the lse that the forward op keeps: rounded to f32, it would be off by 3 % at 2^20.
TEST(Accuracy, CrossEntropysGradientDoesNotDependOnAnOffset) {
  constexpr int kClasses = 1001;
  for (const char* backward : {"reference", "cpu/cross_entropy_backward_simd"}) {
    std::vector<float> plain;
    for (float offset : {0.0f, 0x1p10f, -0x1p14f, 0x1p20f}) {
      Owned forward("cross_entropy", "M=1 N=1001 logits=f32");
      Owned call("cross_entropy_backward", "M=1 N=1001 logits=f32");
      for (int i = 0; i < kClasses; ++i) {
        const float logit = offset + static_cast<float>(i * 37 % 64) / 8;
        call.at<float>("logits")[i] = forward.at<float>("logits")[i] = logit;
      }
      *call.at<int64_t>("target") = *forward.at<int64_t>("target") = 5;
      *call.at<float>("d_loss") = 1;
      forward.run_on("cpu/cross_entropy_simd");
      *call.at<double>("lse") = *forward.at<double>("lse");
      call.run_on(backward);
      const float* d_logits = call.at<float>("d_logits");
      if (offset == 0) plain.assign(d_logits, d_logits + kClasses);
      for (int i = 0; i < kClasses; ++i) {
        const float wanted = plain[static_cast<size_t>(i)];
        ASSERT_NEAR(d_logits[i], wanted, 2e-6 * std::fabs(wanted))
            << backward << offset << " " << i;
      }
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

// Numbers of few bits whose sum is 0: sums, means and shifted copies of them are exact.
float balanced(int64_t i) {
  return static_cast<float>((i / 2 * 37 % 61 + 1) * (i % 2 ? 1 : -1)) / 8;
}

// An op's `out` for x = factor * balanced + offset, the other inputs as `fill` leaves them.
template <class Fill>
std::vector<float> result_of(const char* op, const std::string& text, std::string_view impl,
                             const char* x, const char* out, float factor, float offset,
                             Fill&& fill) {
  Owned call(op, text);
  const TensorView& view = call.text.values[static_cast<size_t>(find_arg(*call.op.spec, x))].tensor;
  for (int64_t i = 0; i < numel(view); ++i) call.at<float>(x)[i] = factor * balanced(i) + offset;
  fill(call);
  call.run_on(impl);
  const TensorView& to = call.text.values[static_cast<size_t>(find_arg(*call.op.spec, out))].tensor;
  return {call.at<float>(out), call.at<float>(out) + numel(to)};
}
void no_more(Owned&) {}

constexpr const char* kForwardNorms[][2] = {
    {"rms_norm", "M=3 K=1000 x=f32 eps=0"},
    {"layer_norm", "M=3 K=1000 x=f32 eps=0"},
    {"group_norm", "M=2x8x5 K=50 x=f32 C=8 groups=2 eps=0"}};

// Exactly, since the scale is a power of two.
TEST(Accuracy, NormsDoNotDependOnAScale) {
  for (const auto& [op, text] : kForwardNorms) {
    for (const std::string& impl : {std::string("reference"), first_cpu_impl(op)}) {
      const auto of = [&](float factor) {
        return result_of(op, text, impl, "x", "out", factor, 0, no_more);
      };
      const std::vector<float> plain = of(1);
      EXPECT_NE(plain[0], 0);
      EXPECT_EQ(of(0x1p30f), plain) << impl;
      EXPECT_EQ(of(0x1p-30f), plain) << impl;
    }
  }
}

// The mean is a number that f32 has: squares of x without its mean would be off by more than the
// variance.
TEST(Accuracy, VariancesDoNotDependOnAShift) {
  for (const auto& [op, text] : kForwardNorms) {
    if (std::string_view(op) == "rms_norm") continue;
    for (const std::string& impl : {std::string("reference"), first_cpu_impl(op)}) {
      const auto of = [&](float offset) {
        return result_of(op, text, impl, "x", "out", 1, offset, no_more);
      };
      EXPECT_EQ(of(0x1p14f), of(0)) << impl;
      const std::vector<float> plain = of(0), far = of(-0x1p17f);
      for (size_t i = 0; i < plain.size(); ++i) {
        ASSERT_NEAR(far[i], plain[i], 1e-5 * std::fabs(plain[i])) << impl << " " << i;
      }
    }
  }
}

TEST(Accuracy, GradientsOfNormsFollowTheScaleOfX) {
  constexpr const char* kOps[][2] = {
      {"rms_norm_backward", "M=3 K=1000 x=f32 eps=0"},
      {"layer_norm_backward", "M=3 K=1000 x=f32 eps=0"},
      {"group_norm_backward", "M=2x8x5 K=50 x=f32 C=8 groups=2 eps=0"}};
  for (const auto& [op, text] : kOps) {
    for (const std::string& impl : {std::string("reference"), first_cpu_impl(op)}) {
      const auto of = [&](float factor, float offset) {
        return result_of(op, text, impl, "x", "d_x", factor, offset, [](Owned& call) {
          for (int i = 0; i < 3000; ++i) {
            call.at<float>("d_out")[i] = static_cast<float>(i * 29 % 83 - 41) / 16;
          }
        });
      };
      std::vector<float> plain = of(1, 0);
      if (std::string_view(op) != "rms_norm_backward") {
        EXPECT_EQ(of(1, 0x1p14f), plain) << impl;
      }
      for (float& v : plain) v *= 0x1p-20f;
      EXPECT_EQ(of(0x1p20f, 0), plain) << impl;
    }
  }
}

// d_out - sum of d_out * y, where the y add up to 1.
TEST(Accuracy, SoftmaxsGradientDoesNotDependOnAShiftOfTheOutputs) {
  for (const char* impl : {"reference", "cpu/softmax_backward_simd"}) {
    const auto of = [&](float offset) {
      return result_of("softmax_backward", "S=4x256 d_out=f32", impl, "d_out", "d_x", 1, offset,
                       [](Owned& call) { std::fill_n(call.at<float>("out"), 1024, 0x1p-8f); });
    };
    EXPECT_EQ(of(0x1p14f), of(0)) << impl;
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
