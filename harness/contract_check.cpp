// Calls that break a contract, derived from the contract itself.
#include <algorithm>
#include <string>

#include "core/call_text.h"
#include "core/dispatch.h"
#include "core/text.h"
#include "harness/check.h"

namespace pestle::harness {
namespace {

class ContractCheck {
 public:
  ContractCheck(const Op& op, const Case& row, CheckReport& report)
      : op_(op), spec_(*op.spec), row_(row), report_(report) {}

  void run() {
    for (size_t i = 0; i < spec_.args.size(); ++i) {
      const Arg& arg = spec_.args[i];
      if (!begin()) return;
      if (arg.kind == Kind::kChoice) {
        expect(i, "choice number 99", [&](Value& value) { value.i = 99; });
      }
      if (arg.role == Role::kAttribute) continue;
      if (call_.values[i].present && arg.kind == Kind::kTensorList)
        break_list(i);
      else if (call_.values[i].present)
        break_tensor(i);
      else if (arg.present_if[0])
        unwanted(i);
    }
  }

 private:
  // Each of these at the last position.
  void break_list(size_t i) {
    const Arg& arg = spec_.args[i];
    const auto breaks = [&](const std::string& what, auto&& change, bool names_arg = true) {
      expect(i, what, [&](Value&) { change(call_.lists[i].back()); }, names_arg);
    };
    const TensorView last = call_.lists[i].back();
    breaks("a wrong dtype", [](TensorView& t) { t.dtype = DType::kNone; });
    for (int d = 0; d < last.rank; ++d) {
      breaks("a negative dimension", [=](TensorView& t) { t.shape[d] = -1; }, false);
      if (arg.role == Role::kOutput)
        breaks("a dimension too large", [=](TensorView& t) { ++t.shape[d]; });
    }
    breaks(
        "a tensor on another device", [](TensorView& t) { t.device = {DeviceType::kCuda, 7}; },
        false);
    expect(i, "no tensors", [&](Value& v) { v.list = {}; });
    if (call_.lists[i].size() > 1) {
      const auto fewer = [&](Value& v) { v.list = v.list.first(v.list.size() - 1); };
      expect(i, "fewer tensors than the other lists", fewer, false);
    }
    if (!arg.is_optional || arg.present_if[0]) {
      expect(i, "nothing", [](Value& v) { v.present = false; });
    }
    if (arg.role != Role::kOutput || numel(last) == 0) return;
    for (size_t other = 0; other < call_.lists.size(); ++other) {
      if (call_.lists[other].empty() || numel(call_.lists[other][0]) == 0) continue;
      if (other == i && call_.lists[i].size() == 1) continue;
      breaks(
          std::string("memory of ") + spec_.args[other].name,
          [&](TensorView& t) { t.data = call_.lists[other][0].data; }, false);
    }
  }

  void break_tensor(size_t i) {
    const Arg& arg = spec_.args[i];
    const TensorView tensor = call_.values[i].tensor;
    expect(i, "a wrong dtype", [](Value& v) { v.tensor.dtype = DType::kNone; });
    const auto allowed = op_.contract.allowed_dtypes(call_.call, i);
    for (DType other : {DType::kI64, DType::kBool, DType::kF64}) {
      if (std::find(allowed.begin(), allowed.end(), other) != allowed.end()) continue;
      expect(i, "a wrong dtype", [=](Value& v) { v.tensor.dtype = other; });
      break;
    }
    if (tensor.rank > 0 && !is_pack_only(arg)) {
      expect(i, "rank 0", [](Value& v) { v.tensor.rank = 0; });
    }
    for (int d = 0; d < tensor.rank; ++d) {
      expect(i, "a negative dimension", [=](Value& v) { v.tensor.shape[d] = -1; }, false);
      if (arg.role != Role::kOutput) continue;
      expect(i, "a dimension too large", [=](Value& v) { ++v.tensor.shape[d]; });
      if (tensor.shape[d] > 0) {
        expect(i, "a dimension too small", [=](Value& v) { --v.tensor.shape[d]; });
      }
    }
    if (!arg.is_optional || arg.present_if[0]) {
      expect(i, "nothing", [](Value& v) { v.present = false; });
    }
    if (arg.role == Role::kOutput) overlaps(i);
  }

  // Not through the text, which would infer what is wrong right again.
  void overlaps(size_t out) {
    for (size_t other = 0; other < spec_.args.size(); ++other) {
      const Arg& arg = spec_.args[other];
      if (other == out || arg.role == Role::kAttribute || !begin()) continue;
      if (!call_.values[other].present) continue;
      const TensorView& a = call_.values[out].tensor;
      const TensorView& b = call_.values[other].tensor;
      if (numel(a) == 0 || numel(b) == 0) continue;
      // One byte in: never the view that an in-place form may be given.
      void* address = size_bytes(b) > 1 ? static_cast<char*>(b.data) + 1 : b.data;
      if (size_bytes(b) == 1 && spec_.args[out].alias == std::string_view(arg.name)) continue;
      expect(std::min(out, arg.role == Role::kOutput ? other : out),
             std::string("memory of ") + arg.name + " as " + spec_.args[out].name,
             [&](Value&) { call_.values[out].tensor.data = address; });
    }
  }

  // Given although the contract's condition says that it is no part of this call.
  void unwanted(size_t i) {
    if (spec_.args[i].kind == Kind::kTensorList) {
      const size_t from = call_.lists.size() - 1;
      size_t given = 0;
      while (given < from && call_.lists[given].empty()) ++given;
      expect(i, std::string("it although not ") + spec_.args[i].present_if, [&](Value& value) {
        value.present = true;
        value.list = call_.lists[given];
      });
      return;
    }
    const DType dtype = op_.contract.allowed_dtypes(call_.call, i)[0];
    expect(i, std::string("it although not ") + spec_.args[i].present_if, [&](Value& value) {
      value.present = true;
      value.tensor.dtype = dtype;
      value.tensor.data = place();
    });
  }

  // A fresh, valid call; addresses are made up, since nothing is run.
  bool begin() {
    auto call = call_from_text(op_, row_.text, DeviceType::kCpu);
    if (!call.ok()) {
      fail("the first case is not a call: " + call.status().message());
      return false;
    }
    call_ = std::move(call.value());
    next_ = 0;
    distance_ = 4096;
    for (size_t i = 0; i < spec_.args.size(); ++i) {
      if (spec_.args[i].role == Role::kAttribute || !call_.values[i].present) continue;
      distance_ += static_cast<uintptr_t>(size_bytes(call_.values[i].tensor));
    }
    for (const auto& list : call_.lists) {
      for (const TensorView& t : list) distance_ += static_cast<uintptr_t>(size_bytes(t));
    }
    for (size_t i = 0; i < spec_.args.size(); ++i) {
      if (spec_.args[i].role == Role::kAttribute || !call_.values[i].present) continue;
      call_.values[i].tensor.data = place();
    }
    for (auto& list : call_.lists) {
      for (TensorView& t : list) t.data = place();
    }
    return true;
  }
  // So far apart that any tensor put where another lies overlaps that one only.
  void* place() { return reinterpret_cast<void*>(next_ += 2 * distance_); }

  // "*S" alone: any rank is right.
  bool is_pack_only(const Arg& arg) const {
    for (std::string_view part : split(arg.shape, ';')) {
      const size_t colon = part.find(':');
      if (colon != std::string_view::npos) part.remove_prefix(colon + 1);
      part = trim(part);
      if (part.starts_with('*') && part.find(',') == std::string_view::npos) return true;
    }
    return false;
  }

  template <class Break>
  void expect(size_t arg, const std::string& what, Break&& break_it, bool names_arg = true) {
    if (!begin()) return;
    break_it(call_.values[arg]);
    const std::string name = spec_.args[arg].name;
    auto choice = choose(op_, call_.call);
    ++report_.by_tag["contract"].run;
    const std::string prefix = std::string(spec_.name) + ": " + (names_arg ? name + " " : "");
    if (choice.ok()) {
      fail(name + " given " + what + " is accepted");
    } else if (choice.status().code() != Code::kInvalidArgument) {
      fail(name + " given " + what + " is " + std::string(code_name(choice.status().code())) +
           ", expected invalid_argument: " + choice.status().message());
    } else if (!choice.status().message().starts_with(prefix)) {
      fail(name + " given " + what + ": the error does not start with '" + prefix +
           "': " + choice.status().message());
    }
  }

  void fail(const std::string& what) {
    ++report_.by_tag["contract"].failed;
    report_.failures.push_back({spec_.name, "contract", std::string("'") + row_.text + "'", what,
                                std::string("pestle check ") + spec_.name});
  }

  const Op& op_;
  const OpSpec& spec_;
  const Case& row_;
  CheckReport& report_;
  TextCall call_;
  uintptr_t next_ = 0;
  uintptr_t distance_ = 0;
};

}  // namespace

void check_contract(const Op& op, CheckReport& report) {
  for (const Case& row : op.spec->cases) {
    if (!(row.tags & kSmoke)) continue;
    ContractCheck(op, row, report).run();
  }
}

}  // namespace pestle::harness
