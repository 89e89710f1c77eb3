// The contract engine on a contract of its own, and the whole table's contracts.
#include "core/contract.h"

#include <gtest/gtest.h>

#include "core/call_text.h"
#include "core/dispatch.h"

namespace pestle {
namespace {

constexpr Arg kArgs[] = {
    input("x", "bf16|f32", "*M, K", "input"),
    input("packed", "u8", "N, K/2", "codes"),
    input("scale", "f32", "row: *M, 1; tensor: 1", "scale").selected_by("mode").optional(),
    output("out", "=x", "*M, N", "result").in_place_of("x"),
    output("scale_out", "f32", "row: *M, 1; tensor: 1", "scale")
        .selected_by("mode")
        .only_if("!has(scale)"),
    choice("mode", "row|tensor", "granularity"),
    int_attr("group", 4, "group"),
};
constexpr Constraint kConstraints[] = {{"K % group == 0", "K must be whole groups"}};
constexpr OpSpec kSpec{.name = "toy",
                       .doc = "",
                       .source = "",
                       .args = kArgs,
                       .constraints = kConstraints,
                       .flops = "2*M*N*K"};

Status run_toy(const Call&) { return {}; }

Op toy() {
  forget_choices();  // of another test's op in the same place
  Op op;
  op.spec = &kSpec;
  op.contract = std::move(Contract::compile(kSpec).value());
  op.impls.push_back({.id = "reference", .run = run_toy});
  return op;
}

std::string error_of(const char* text) {
  const Op op = toy();
  auto call = call_from_text(op, text, DeviceType::kCpu);
  if (call.ok()) return "ok";
  EXPECT_EQ(call.status().code(), Code::kInvalidArgument) << text;
  return call.status().message();
}

TEST(Contract, BindsInfersAndEvaluates) {
  const Op op = toy();
  auto call = call_from_text(op, "x=f32[2,3,8] packed=u8[5,4]", DeviceType::kCpu);
  ASSERT_TRUE(call.ok()) << call.status().message();
  EXPECT_EQ(describe(call.value().values[3].tensor), "f32[2,3,5]");
  EXPECT_EQ(describe(call.value().values[4].tensor), "f32[2,3,1]");
  EXPECT_EQ(op.contract.evaluate("2*M*N*K", call.value().scope).value(), 2 * 6 * 5 * 8);
  EXPECT_EQ(op.contract.bytes(call.value().scope).value(), 48 * 4 + 20 + 30 * 4 + 6 * 4);
}

TEST(Contract, SymbolsGiveShapes) {
  const Op op = toy();
  auto call = call_from_text(op, "M=2x3 N=5 K=8 mode=tensor scale=f32", DeviceType::kCpu);
  ASSERT_TRUE(call.ok()) << call.status().message();
  EXPECT_EQ(describe(call.value().values[0].tensor), "bf16[2,3,8]");
  EXPECT_EQ(describe(call.value().values[1].tensor), "u8[5,4]");
  EXPECT_EQ(describe(call.value().values[2].tensor), "f32[1]");
  EXPECT_FALSE(call.value().values[4].present);
}

constexpr Arg kHalvesArgs[] = {
    input("x", "f32", "*M, 2*K", "two halves"),
    input("y", "f32", "*B", "anything that repeats to x's shape"),
    output("out", "=x", "*M, K", "one half"),
    int_attr("dim", -1, "a dimension"),
};
constexpr Constraint kHalvesConstraints[] = {
    {"rank(x) > 0 && dim >= -rank(x) && dim < rank(x)", "dim must be x's"},
    {"broadcasts(y, x)", "y must repeat to x"},
};
constexpr OpSpec kHalves{.name = "halves",
                         .doc = "",
                         .source = "",
                         .args = kHalvesArgs,
                         .constraints = kHalvesConstraints,
                         .flops = "size(x, dim)"};

TEST(Contract, HalvesADimensionAndCountsDimensions) {
  Op op;
  op.spec = &kHalves;
  op.contract = std::move(Contract::compile(kHalves).value());
  op.impls.push_back({.id = "reference", .run = run_toy});
  const auto call = [&](const char* text) { return call_from_text(op, text, DeviceType::kCpu); };
  auto good = call("x=f32[2,3,8] y=f32[3,1] dim=1");
  ASSERT_TRUE(good.ok()) << good.status().message();
  EXPECT_EQ(describe(good.value().values[2].tensor), "f32[2,3,4]");
  EXPECT_EQ(op.contract.evaluate("size(x, dim)", good.value().scope).value(), 3);
  EXPECT_FALSE(call("x=f32[2,7] y=f32[1]").ok());
  EXPECT_FALSE(call("x=f32[2,8] y=f32[1] dim=2").ok());
  EXPECT_FALSE(call("x=f32[2,8] y=f32[3,8]").ok());
}

TEST(Contract, ErrorsNameOpArgumentValueAndRule) {
  const std::pair<const char*, const char*> rows[] = {
      {"x=f16[2,8] packed=u8[5,4]", "toy: x has dtype f16, expected bf16|f32"},
      {"x=f32[2,8] packed=u8[5,3]", "toy: packed is u8[5,3], expected u8[5,4] = [N, K/2]"},
      {"x=f32[2,8] packed=u8[5]", "toy: packed is u8[5], expected shape [N, K/2]"},
      {"x=f32[2,6] packed=u8[5,3]", "toy: K must be whole groups (needs K % group == 0"},
      {"x=f32[2,8] packed=u8[5,4] scale=f32[3,1]",
       "toy: scale is f32[3,1], expected f32[2,1] = [*M, 1] (mode=row)"},
      {"x=f32[2,8] packed=u8[5,4] scale=f32[2,1] scale_out=f32",
       "toy: scale_out is given, but belongs to a call only when !has(scale)"},
      {"x=none packed=u8[5,4]", "toy: x is missing: input"},
      {"x=f32[2,8] paked=u8[5,4]", "no argument or dimension 'paked'; did you mean 'packed'?"},
      {"x=f32[2,8] packed=u8[5,4] mode=column", "expected one of row|tensor"},
      {"x=f33[2,8]", "no dtype 'f33'"},
      {"x=f32[1,1,1,1,1,1,1,1,1]", "expected up to 8 whole numbers"},
  };
  for (auto [text, message] : rows) {
    EXPECT_NE(error_of(text).find(message), std::string::npos) << text << "\n" << error_of(text);
  }
}

struct Buffers {
  Op op = toy();
  float memory[64] = {};
  uint8_t codes[32] = {};
  TextCall text = std::move(
      call_from_text(op, "x=f32[2,8] packed=u8[8,4] mode=tensor", DeviceType::kCpu).value());
  Buffers() {
    text.values[0].tensor.data = memory;
    text.values[1].tensor.data = codes;
    text.values[3].tensor.data = memory + 16;
    text.values[4].tensor.data = memory + 40;
  }
};

TEST(Contract, OutputsMayNotOverlap) {
  Buffers b;
  EXPECT_TRUE(run(b.op, b.text.call).ok());
  b.text.values[3].tensor.data = b.memory + 15;  // one element into x
  const Status status = run(b.op, b.text.call);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("out overlaps x in memory"), std::string::npos);
  b.text.values[3].tensor.data = b.memory;  // exactly x: in place
  EXPECT_TRUE(run(b.op, b.text.call).ok());
  b.text.values[4].tensor.data = b.memory + 8;
  EXPECT_FALSE(run(b.op, b.text.call).ok());
}

TEST(Contract, OutputsBesideTheInputInEachRowAreTaken) {
  Buffers b;
  TensorView& x = b.text.values[0].tensor;
  TensorView& out = b.text.values[3].tensor;
  x.strides[0] = out.strides[0] = 16;  // rows of x and out take turns
  out.data = b.memory + 8;
  EXPECT_TRUE(run(b.op, b.text.call).ok()) << run(b.op, b.text.call).message();
  out.data = b.memory + 7;
  EXPECT_NE(run(b.op, b.text.call).message().find("out overlaps x in memory"), std::string::npos);
}

TEST(Contract, OutputsNeedMemoryForEachElement) {
  for (int64_t stride : {0, 1, 7}) {
    Buffers b;
    b.text.values[3].tensor.strides[0] = stride;
    const Status status = run(b.op, b.text.call);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << stride;
    EXPECT_NE(status.message().find("out has several elements in the same memory"),
              std::string::npos)
        << status.message();
  }
}

TEST(Contract, DtypeOfAnOutputFollowsTheArgumentThatItIsLike) {
  static constexpr Arg kLike[] = {
      input("x", "bf16|f32|i32", "*M", "input"),
      output("out", "=x|bf16|f16|f32", "*M", "result"),
  };
  static constexpr OpSpec kLikeSpec{.name = "like", .doc = "", .source = "", .args = kLike};
  Op op;
  op.spec = &kLikeSpec;
  op.contract = std::move(Contract::compile(kLikeSpec).value());
  op.impls.push_back({.id = "reference", .run = run_toy});
  const auto dtype = [&](const char* text) {
    return call_from_text(op, text, DeviceType::kCpu).value().values[1].tensor.dtype;
  };
  EXPECT_EQ(dtype("x=f32[3]"), DType::kF32);
  EXPECT_EQ(dtype("x=bf16[3]"), DType::kBF16);
  EXPECT_EQ(dtype("x=f32[3] out=f16"), DType::kF16);
  EXPECT_EQ(dtype("x=i32[3]"), DType::kBF16);  // not allowed for out: the first that is
}

TEST(Dispatch, NullDataIsRefusedByRunButNotByChoose) {
  Buffers b;
  b.text.values[1].tensor.data = nullptr;
  EXPECT_TRUE(choose(b.op, b.text.call).ok());
  EXPECT_EQ(run(b.op, b.text.call).code(), Code::kInvalidArgument);
}

TEST(Dispatch, PartsOfACallTakeWhatTheirWorkspaceSufficesFor) {
  Buffers b;
  static bool greedy_ran;
  const Impl greedy{.id = "cpu/greedy",
                    .run =
                        [](const Call&) {
                          greedy_ran = true;
                          return Status();
                        },
                    .workspace = "1000"};
  b.op.impls.insert(b.op.impls.begin(), greedy);
  greedy_ran = false;
  EXPECT_NE(run(b.op, b.text.call).message().find("needs 1000"), std::string::npos);
  EXPECT_TRUE(run_within(b.op, b.text.call).ok());
  EXPECT_FALSE(greedy_ran);
  std::vector<char> workspace(1000);
  b.text.call.workspace = workspace.data();
  b.text.call.workspace_bytes = 1000;
  EXPECT_TRUE(run_within(b.op, b.text.call).ok());
  EXPECT_TRUE(greedy_ran);
}

TEST(Dispatch, AnOpMayPreferAnImplementationByTheCallsShape) {
  Op op = toy();
  static OpSpec spec = *op.spec;
  spec.name = "toy_that_prefers";
  op.spec = &spec;
  op.impls.insert(op.impls.begin(), {Impl{.id = "cpu/first", .run = run_toy},
                                     Impl{.id = "cpu/wide", .run = run_toy}});
  static bool loaded = false;
  if (!loaded) {
    advise({"toy_that_prefers",
            [](const Call& call, const Machine&) {
              return call.tensor(0).shape[1] > 8 ? "cpu/wide" : nullptr;
            },
            [](const Call&, const Machine&, std::string_view impl) {
              return "by " + std::string(impl.substr(4));
            }});
    loaded = true;
  }
  auto narrow = call_from_text(op, "x=f32[2,8] packed=u8[8,4]", DeviceType::kCpu);
  auto wide = call_from_text(op, "x=f32[2,16] packed=u8[8,8]", DeviceType::kCpu);
  ASSERT_TRUE(narrow.ok() && wide.ok());
  EXPECT_STREQ(choose(op, narrow.value().call).value().impl->id, "cpu/first");
  EXPECT_STREQ(choose(op, wide.value().call).value().impl->id, "cpu/wide");
  EXPECT_STREQ(choose(op, wide.value().call, "cpu/first").value().impl->id, "cpu/first");
  const auto verdicts = candidates(op, wide.value().call);
  EXPECT_STREQ(verdicts[0].impl->id, "cpu/wide");
  EXPECT_EQ(verdicts[0].plan, "by wide");
  EXPECT_STREQ(verdicts[1].impl->id, "cpu/first");
}

TEST(CallText, AMatrixMayLieTransposed) {
  auto call = call_from_text(toy(), "x=f32.mT[2,8] packed=u8[8,4]", DeviceType::kCpu);
  ASSERT_TRUE(call.ok()) << call.status().message();
  EXPECT_EQ(call.value().call.tensor(0).strides[0], 1);
  EXPECT_EQ(call.value().call.tensor(0).strides[1], 2);
  EXPECT_NE(error_of("x=f32.mT[2,2,8] packed=u8[8,4]").find("for matrices"), std::string::npos);
}

TEST(Dispatch, ForcedImplementationThatCannotRunIsAnError) {
  Op op = toy();
  const Impl picky{.id = "cpu/picky",
                   .refuses = [](const Call&, const Machine&) -> std::string { return "never"; },
                   .run = run_toy};
  const Impl newer{.id = "cuda/newer",
                   .device = DeviceType::kCuda,
                   .min_compute_capability = 90,
                   .run = run_toy};
  op.impls.insert(op.impls.begin(), {newer, picky});
  auto call = call_from_text(op, "x=f32[2,8] packed=u8[8,4]", DeviceType::kCpu);
  ASSERT_TRUE(call.ok());
  EXPECT_STREQ(choose(op, call.value().call).value().impl->id, "reference");
  const auto forced = choose(op, call.value().call, "cpu/picky");
  EXPECT_EQ(forced.status().code(), Code::kUnsupported);
  EXPECT_NE(forced.status().message().find("never"), std::string::npos);
  EXPECT_EQ(choose(op, call.value().call, "cpu/nothing").status().code(), Code::kInvalidArgument);

  // The verdicts are a pure function of call and machine.
  auto on_gpu = call_from_text(op, "x=f32[2,8] packed=u8[8,4]", DeviceType::kCuda);
  ASSERT_TRUE(on_gpu.ok());
  EXPECT_NE(candidates(op, on_gpu.value().call, {.compute_capability = 80})[0].refusal, "");
  EXPECT_EQ(candidates(op, on_gpu.value().call, {.compute_capability = 90})[0].refusal, "");
}

TEST(Dispatch, AsksTheProbeForTheDeviceOfTheCall) {
  Op op = toy();
  const Impl newer{.id = "cuda/newer",
                   .device = DeviceType::kCuda,
                   .min_compute_capability = 90,
                   .run = run_toy};
  op.impls.insert(op.impls.begin(), newer);
  auto call = call_from_text(op, "x=f32[2,8] packed=u8[8,4]", DeviceType::kCuda);
  ASSERT_TRUE(call.ok());
  const auto on_device = [&](int32_t index) {
    for (Value& value : call.value().values) value.tensor.device.index = index;
    return choose(op, call.value().call);
  };
  set_cuda_probe([](int32_t device) { return device == 3 ? 90 : 80; });
  EXPECT_EQ(on_device(2).status().code(), Code::kUnsupported);
  ASSERT_TRUE(on_device(3).ok());
  EXPECT_STREQ(on_device(3).value().impl->id, "cuda/newer");
  // Remembered choices are of one device.
  EXPECT_FALSE(on_device(2).ok());
  EXPECT_EQ(machine_for({DeviceType::kCuda, 3}).compute_capability, 90);
  EXPECT_EQ(machine_for({DeviceType::kCpu, 3}).compute_capability, 0);
  set_cuda_probe(nullptr);
}

constexpr Arg kListArgs[] = {
    list_of(input("x", "f32", "M, K", "inputs")),
    list_of(output("out", "=x", "K, M", "transposes")),
};
constexpr OpSpec kListSpec{
    .name = "toy_list", .doc = "", .source = "", .args = kListArgs, .flops = "M*K"};

struct ListCall {
  Contract contract = std::move(Contract::compile(kListSpec).value());
  float memory[64] = {};
  std::vector<TensorView> x, out;
  Value values[2];
  Call call;
  ListCall() {
    const int64_t a[] = {2, 3}, b[] = {4, 1}, at[] = {3, 2}, bt[] = {1, 4};
    x = {make_view(memory, DType::kF32, 2, a), make_view(memory + 6, DType::kF32, 2, b)};
    out = {make_view(memory + 20, DType::kF32, 2, at), make_view(memory + 26, DType::kF32, 2, bt)};
    call.spec = &kListSpec;
    call.args = values;
  }
  Status check(Scope& scope) {
    values[0] = {.present = true, .tensor = {}, .list = x};
    values[1] = {.present = true, .tensor = {}, .list = out};
    return contract.check(call, scope);
  }
};

TEST(Contract, ListsAreCheckedPositionByPosition) {
  ListCall c;
  Scope scope;
  ASSERT_TRUE(c.check(scope).ok()) << c.check(scope).message();
  EXPECT_EQ(c.contract.evaluate("M*K", scope).value(), 6 + 4);
  EXPECT_EQ(c.contract.bytes(scope).value(), 20 * 4);

  c.out[1].shape[1] = 3;
  Status status = c.check(scope);
  EXPECT_NE(status.message().find("out is f32[1,3], expected f32[1,4]"), std::string::npos);
  EXPECT_NE(status.message().find("position 1"), std::string::npos);
  c.out[1].shape[1] = 4;

  c.out[1].data = c.memory + 25;  // one element into the first output
  EXPECT_NE(c.check(scope).message().find("overlaps a tensor of out"), std::string::npos);
  c.out[1].data = c.memory + 9;
  EXPECT_NE(c.check(scope).message().find("overlaps a tensor of x"), std::string::npos);
  c.out[1].data = c.memory + 26;

  c.x.pop_back();
  EXPECT_NE(c.check(scope).message().find("2 tensors, the other lists 1"), std::string::npos);
  c.x.clear();
  EXPECT_NE(c.check(scope).message().find("x has no tensors"), std::string::npos);
}

TEST(Contract, ListsLieOnOneDevice) {
  ListCall c;
  Scope scope;
  c.x[1].device = c.out[1].device = {DeviceType::kCuda, 0};
  EXPECT_NE(c.check(scope).message().find("x has tensors on several devices"), std::string::npos);
}

TEST(Contract, OutputsOfListsAreInferredPositionByPosition) {
  ListCall c;
  Scope scope;
  ASSERT_TRUE(c.check(scope).ok());
  c.values[1] = {};
  std::vector<std::vector<TensorView>> lists;
  ASSERT_TRUE(c.contract.infer_outputs(c.call, scope, lists).ok());
  ASSERT_EQ(c.call.args[1].list.size(), 2u);
  EXPECT_EQ(describe(c.call.args[1].list[0]), "f32[3,2]");
  EXPECT_EQ(describe(c.call.args[1].list[1]), "f32[1,4]");
}

// A shape after a reduction over any set of dimensions.
constexpr Arg kReducedArgs[] = {
    input("d", "f32", "reduced(*M, dims, keepdim)", "one value for each set, before what it is of"),
    input("x", "f32", "*M", "input"),
    output("out", "f32", "reduced(*M, dims, keepdim)", "one value for each set"),
    int_attr("dims", -1, "a bit for each reduced dimension"),
    bool_attr("keepdim", false, "keep them"),
};
constexpr OpSpec kReduced{.name = "reduced", .doc = "", .source = "", .args = kReducedArgs};

std::string reduced_shape(const char* text) {
  Op op;
  op.spec = &kReduced;
  op.contract = std::move(Contract::compile(kReduced).value());
  op.impls.push_back({.id = "reference", .run = run_toy});
  auto call = call_from_text(op, text, DeviceType::kCpu);
  return call.ok() ? describe(call.value().values[2].tensor) : call.status().message();
}

TEST(Contract, ShapesAfterReductions) {
  EXPECT_EQ(reduced_shape("M=2x3x5 dims=2"), "f32[2,5]");
  EXPECT_EQ(reduced_shape("M=2x3x5 dims=5"), "f32[3]");
  EXPECT_EQ(reduced_shape("M=2x3x5 dims=5 keepdim=true"), "f32[1,3,1]");
  EXPECT_EQ(reduced_shape("M=2x3x5 dims=0"), "f32[2,3,5]");
  EXPECT_EQ(reduced_shape("M=2x3x5"), "f32[]");
  EXPECT_EQ(reduced_shape("M="), "f32[]");
  EXPECT_EQ(reduced_shape("M=2x3x5 keepdim=true"), "f32[1,1,1]");
  EXPECT_EQ(reduced_shape("M=2x0 dims=2"), "f32[2]");
  EXPECT_EQ(reduced_shape("x=f32[4,6] d=f32[4] dims=2"), "f32[4]");
  EXPECT_NE(reduced_shape("x=f32[4,6] d=f32[6] dims=2").find("d is f32[6], expected f32[4]"),
            std::string::npos);
  EXPECT_NE(reduced_shape("M=2x3 dims=4").find("expected a bit for each of 2"), std::string::npos);
  EXPECT_NE(reduced_shape("M=2x3 dims=-2").find("dims is -2"), std::string::npos);
}

TEST(Table, EveryOpIsComplete) {
  ASSERT_FALSE(all_ops().empty());
  for (const Op& op : all_ops()) {
    const OpSpec& spec = *op.spec;
    EXPECT_EQ(find_op(spec.name), &op);
    EXPECT_STREQ(op.reference().id, "reference") << spec.name;
    EXPECT_GT(std::string(spec.doc).size(), 10u) << spec.name;
    EXPECT_GT(std::string(spec.source).size(), 5u) << spec.name;
    EXPECT_TRUE(spec.backward.op[0] != 0 || spec.backward.why_not[0] != 0) << spec.name;
    for (const Arg& arg : spec.args) EXPECT_TRUE(arg.doc[0]) << spec.name << "." << arg.name;
    unsigned tags = 0;
    for (const Case& c : spec.cases) {
      tags |= c.tags;
      auto call = call_from_text(op, c.text, DeviceType::kCpu);
      ASSERT_TRUE(call.ok()) << spec.name << ": " << c.text << ": " << call.status().message();
      EXPECT_TRUE(op.contract.evaluate(spec.flops, call.value().scope).ok()) << spec.name;
      EXPECT_TRUE(op.contract.bytes(call.value().scope).ok()) << spec.name;
      for (const Impl& impl : op.impls) {
        EXPECT_TRUE(op.contract.evaluate(impl.workspace, call.value().scope).ok()) << impl.id;
      }
    }
    EXPECT_TRUE((tags & kSmoke) && (tags & kEdge)) << spec.name << " lacks smoke or edge cases";
  }
}

}  // namespace
}  // namespace pestle
