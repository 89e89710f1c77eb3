// The device path of the checks, tried without a device: memory that the harness may not read or
// write directly, whose work is queued, and whose calls can be recorded. What a CUDA device does
// wrong there, a wrong implementation does here.
#include <gtest/gtest.h>

#include <cstring>
#include <deque>

#include "harness/check.h"
#include "harness/cuda_memory.h"
#include "harness/mutants.h"
#include "harness/sample.h"
#include "harness/test_tensor.h"

namespace pestle::harness {
namespace {

// Work of calls runs when the "stream" is drained, or at once on the default one.
class FakeDevice final : public Memory {
 public:
  explicit FakeDevice(int32_t index = 1) : index_(index) {}
  Device device() const override { return {DeviceType::kCpu, index_}; }
  void* allocate(int64_t bytes) override { return host_memory().allocate(bytes); }
  void release(void* memory, int64_t bytes) override { host_memory().release(memory, bytes); }
  int64_t free_bytes() const override { return host_memory().free_bytes(); }
  bool host_visible() const override { return false; }
  void to_device(void* device, const void* host, int64_t bytes) override {
    std::memcpy(device, host, static_cast<size_t>(bytes));
  }
  void to_host(void* host, const void* device, int64_t bytes) override {
    std::memcpy(host, device, static_cast<size_t>(bytes));
  }
  void fill(void* memory, uint8_t byte, int64_t bytes) override {
    std::memset(memory, byte, static_cast<size_t>(bytes));
  }
  void copy(void* to, const void* from, int64_t bytes) override { to_host(to, from, bytes); }
  uint64_t hash(const void* memory, int64_t bytes) override { return hash_bytes(memory, bytes); }
  void synchronize() override {}
  double time_us(const std::function<void()>& work) override { return host_memory().time_us(work); }
  bool has(Launch) const override { return true; }

  Status call(Launch launch, std::span<const Region> regions, std::unique_ptr<Recording>& recording,
              const std::function<Status(void* stream)>& work) override {
    if (launch == Launch::kDefault) return work(nullptr);
    if (launch == Launch::kGraph) {
      if (!recording) recording = record(work);
      static_cast<Recorded&>(*recording).replay();
      return {};
    }
    // Content arrives only once the stream runs.
    std::vector<std::vector<uint8_t>> content;
    for (const Region& region : regions) {
      const auto* bytes = static_cast<const uint8_t*>(region.memory);
      content.emplace_back(bytes, bytes + region.bytes);
      std::memset(region.memory, 0xC3, static_cast<size_t>(region.bytes));
    }
    stream_.clear();
    for (size_t i = 0; i < regions.size(); ++i) {
      stream_.push_back(
          [&, i] { std::memcpy(regions[i].memory, content[i].data(), content[i].size()); });
    }
    const Status status = work(&stream_);
    for (const auto& step : stream_) step();
    return status;
  }

  using Queue = std::deque<std::function<void()>>;

 private:
  struct Recorded : Recording {
    Queue steps;
    void replay() const {
      for (const auto& step : steps) step();
    }
  };
  static std::unique_ptr<Recording> record(const std::function<Status(void* stream)>& work) {
    auto recorded = std::make_unique<Recorded>();
    (void)work(&recorded->steps).ok();
    return recorded;
  }

  int32_t index_;
  Queue stream_;
};

// ---- an op: out = -x, queued on the caller's stream ---------------------------------------------

enum class Fault { kNone, kOwnStream, kForgetsReplay, kVariesSometimes, kFirstDeviceOnly };
Fault g_fault = Fault::kNone;
int g_calls = 0;

constexpr Arg kArgs[] = {
    input("x", "f32", "*M, K", "values"),
    output("out", "=x", "*M, K", "-x"),
    output("sum", "f32", "*M", "of each row").within(2, "K"),
};
constexpr Case kCases[] = {{"M=3 K=10"}, {"M=5 K=16", kEdge, Dist::kSpecial}, {"M=300 K=64", kBar}};
constexpr OpSpec kSpec{
    .name = "negate", .doc = "Negates.", .source = "this test", .args = kArgs, .cases = kCases};

void negate(const TensorView& x, const TensorView& out, const TensorView& sum, bool magnitudes) {
  for (int64_t m = 0; m < x.shape[0]; ++m) {
    double total = 0;
    for (int64_t k = 0; k < x.shape[1]; ++k) {
      float value;
      std::memcpy(&value, x.as<char>() + (m * x.strides[0] + k * x.strides[1]) * 4, 4);
      total += magnitudes && value < 0 ? -value : value;
      value = -value;
      std::memcpy(out.as<char>() + (m * out.strides[0] + k * out.strides[1]) * 4, &value, 4);
    }
    const auto narrow = static_cast<float>(total);
    const bool wide = sum.dtype == DType::kF64;
    std::memcpy(sum.as<char>() + m * sum.strides[0] * dtype_bytes(sum.dtype),
                wide ? static_cast<const void*>(&total) : &narrow, wide ? 8 : 4);
  }
}

Status run_reference(const Call& call) {
  negate(call.tensor(0), call.tensor(1), call.tensor(2), call.sum_magnitudes);
  return {};
}

Status run_tested(const Call& call) {
  const TensorView x = call.tensor(0);
  const TensorView out = call.tensor(1);
  const TensorView sum = call.tensor(2);
  if (g_fault == Fault::kFirstDeviceOnly && x.device.index != 1) return {};
  const bool varies = g_fault == Fault::kVariesSometimes && ++g_calls % 13 == 0;
  const auto work = [=] {
    negate(x, out, sum, false);
    if (!varies || numel(sum) == 0) return;
    sum.as<uint8_t>()[0] ^= 1;
  };
  auto* stream = static_cast<FakeDevice::Queue*>(call.stream);
  if (stream == nullptr || g_fault == Fault::kOwnStream) {
    work();
  } else if (g_fault == Fault::kForgetsReplay) {
    auto done = std::make_shared<bool>(false);
    stream->push_back([=] {
      if (!*done) work();
      *done = true;
    });
  } else {
    stream->push_back(work);
  }
  return {};
}

const Op& tested_op() {
  static const Op op = [] {
    Op made;
    made.spec = &kSpec;
    made.contract = Contract::compile(kSpec).value();
    made.impls = {{.id = "cpu/negate_tested", .run = run_tested},
                  {.id = "reference", .run = run_reference}};
    return made;
  }();
  return op;
}

CheckReport check_with(Fault fault, bool second = true, unsigned tags = kSmoke | kEdge) {
  FakeDevice device;
  FakeDevice other(2);
  g_fault = fault;
  g_calls = 0;
  CheckOptions options;
  options.memory = &device;
  options.second = second ? &other : nullptr;
  options.impl = "cpu/negate_tested";
  options.tags = tags;
  CheckReport report;
  check_op(tested_op(), options, report);
  g_fault = Fault::kNone;
  return report;
}

void expect_caught(Fault fault, const std::string& words, const std::string& where) {
  const CheckReport report = check_with(fault);
  ASSERT_FALSE(report.ok()) << "not noticed";
  for (const Failure& failure : report.failures) {
    if (failure.what.find(words) != std::string::npos &&
        failure.where.find(where) != std::string::npos) {
      EXPECT_NE(failure.repeat.find("--device cuda:1 --launch "), std::string::npos);
      return;
    }
  }
  ADD_FAILURE() << "expected '" << words << "' at " << where << ", first was "
                << report.failures[0].where << ": " << report.failures[0].what;
}

TEST(DevicePath, RightImplementationPasses) {
  const CheckReport report = check_with(Fault::kNone);
  for (const Failure& f : report.failures) ADD_FAILURE() << f.where << ": " << f.what;
  // Layouts by launches, and the second device.
  EXPECT_GE(report.by_tag.at("smoke").run, kLayouts * kLaunches + 2);
  EXPECT_TRUE(report.not_run.empty());
}

TEST(DevicePath, MissingSecondDeviceIsSaid) {
  const CheckReport report = check_with(Fault::kNone, false);
  EXPECT_TRUE(report.ok());
  EXPECT_GT(report.not_run.at("needs a second device"), 0);
  EXPECT_GT(report.by_tag.at("smoke").not_run, 0);
}

TEST(DevicePath, FaultsOfDevicesAreNoticed) {
  expect_caught(Fault::kOwnStream, "elements differ", "launch=stream");
  expect_caught(Fault::kForgetsReplay, "elements differ", "launch=graph");
  expect_caught(Fault::kVariesSometimes, "bits", "launch=default");
  expect_caught(Fault::kFirstDeviceOnly, "elements differ", "launch=default");
}

TEST(DevicePath, BigCasesAreSampled) {
  const CheckReport report = check_with(Fault::kNone, true, kBar);
  for (const Failure& f : report.failures) ADD_FAILURE() << f.where << ": " << f.what;
  ASSERT_EQ(report.truths.size(), 1u);
  EXPECT_EQ(report.truths.begin()->first,
            "exact outputs by cpu/negate_tested; bounded outputs by float64 on sampled rows");
}

// Codes of a big output are held to all of it, though its rows are compared by samples.
TEST(DevicePath, CodesOfBigCasesAreHeldToTheWholeOutput) {
  FakeDevice device;
  CheckOptions options;
  options.memory = &device;
  options.impl = "cpu/rms_norm_rows";
  CheckReport report;
  const Case row{"M=1024 K=1024 weight=bf16 out_format=fp8_row", kBar, Dist::kNormal};
  check_case(*find_op("rms_norm"), row, options, report);
  for (const Failure& f : report.failures) ADD_FAILURE() << f.where << ": " << f.what;
  EXPECT_GT(report.by_tag.at("bar").run, 0);
}

TEST(DevicePath, MutantsAreCaughtThere) {
  FakeDevice device;
  CheckOptions options;
  options.memory = &device;
  const auto verdicts = check_mutants(tested_op(), options);
  EXPECT_EQ(verdicts.size(), mutant_names().size());
  for (const MutantVerdict& v : verdicts) {
    EXPECT_EQ(v.applies, v.mutant != "wrong scale column") << v.mutant;
    EXPECT_FALSE(v.survived()) << v.mutant;
  }
}

// ---- every op of the table, broken in every way, on the host ------------------------------------

class TableMutants : public testing::TestWithParam<const Op*> {};

TEST_P(TableMutants, AreCaught) {
  int caught = 0;
  for (const MutantVerdict& v : check_mutants(*GetParam(), {})) {
    EXPECT_FALSE(v.survived()) << v.impl << ": " << v.mutant;
    caught += v.caught;
  }
  const int fewest = GetParam()->impls.size() > 1 ? 6 : 0;
  EXPECT_GE(caught, fewest);
}

std::vector<const Op*> ops() {
  std::vector<const Op*> result;
  for (const Op& op : all_ops()) result.push_back(&op);
  return result;
}

INSTANTIATE_TEST_SUITE_P(Ops, TableMutants, testing::ValuesIn(ops()),
                         [](const auto& info) { return std::string(info.param->spec->name); });

// ---- small parts --------------------------------------------------------------------------------

TEST(DevicePath, DevicesByName) {
  Device device;
  EXPECT_TRUE(device_from_text("cuda:3", device));
  EXPECT_EQ(device, (Device{DeviceType::kCuda, 3}));
  EXPECT_TRUE(device_from_text("cuda", device));
  EXPECT_EQ(device, (Device{DeviceType::kCuda, 0}));
  EXPECT_TRUE(device_from_text("cpu", device));
  EXPECT_EQ(device, Device{});
  for (const char* wrong : {"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda1"}) {
    EXPECT_FALSE(device_from_text(wrong, device)) << wrong;
  }
}

std::vector<std::vector<uint8_t>> inputs_of(const Op& op, const std::string& text) {
  auto call = call_from_text(op, text, DeviceType::kCpu);
  std::vector<std::vector<uint8_t>> inputs(op.spec->args.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const TensorView& t = call.value().values[i].tensor;
    if (op.spec->args[i].role != Role::kInput || !call.value().values[i].present) continue;
    inputs[i].assign(static_cast<size_t>(size_bytes(t)), 1);
  }
  return inputs;
}

TEST(DevicePath, SymbolsThatAContractTiesAreCutTogether) {
  const Op& op = *find_op("apply_rope");
  const std::string text = "B=1 H=2 S=100 D=16 FB=1 FH=1 FS=100";
  const auto sampled = sample_call(op, text, inputs_of(op, text), 1);
  ASSERT_TRUE(sampled.ok()) << sampled.status().message();
  EXPECT_EQ(sampled.value().text, "B=1 H=2 S=32 D=16 FB=1 FH=1 FS=32");
}

TEST(DevicePath, RowsThatHangTogetherAreNotSampled) {
  // One scale of the whole tensor: no row of the codes stands alone.
  const Op& op = *find_op("quantize_fp8");
  const std::string text = "M=100 K=16";
  for (uint64_t seed = 1; seed < 20; ++seed) {
    EXPECT_FALSE(sample_call(op, text, inputs_of(op, text), seed).ok());
  }
  // Scales swizzled by tiles of 128 rows: whole tiles would stand alone, single rows do not.
  const Op& tiled = *find_op("scaled_mm_nvfp4");
  const std::string shape = "M=4 N=1536 K=64";
  EXPECT_FALSE(sample_call(tiled, shape, inputs_of(tiled, shape), 1).ok());
}

TEST(DevicePath, TakesRowsInEachDimension) {
  const int64_t dims[] = {3, 4};
  TensorView shape = make_view(nullptr, DType::kU8, 2, dims);
  const uint8_t elements[12] = {0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23};
  std::vector<int64_t> rows[kMaxRank];
  rows[0] = {0, 2};
  rows[1] = {1, 3};
  EXPECT_EQ(take_rows(elements, rows, shape), (std::vector<uint8_t>{1, 3, 21, 23}));
  EXPECT_EQ(shape.shape[0], 2);
  EXPECT_EQ(shape.shape[1], 2);
}

}  // namespace
}  // namespace pestle::harness
