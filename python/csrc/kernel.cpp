#include "python/csrc/kernel.h"

#include <algorithm>

#include <memory>

#include "core/dispatch.h"
#include "python/csrc/dtypes.h"
#include "python/csrc/plan.h"
#include "python/csrc/stack.h"

namespace pestle::torch {
namespace {

class FormCall {
 public:
  explicit FormCall(const Form& form) : form_(form), spec_(*form.op->spec), print_(&form) {
    std::uninitialized_copy(form.defaults.begin(), form.defaults.end(), values_);
    call_.spec = &spec_;
    call_.args = std::span<Value>(values_, spec_.args.size());
  }

  // Every slot is taken off the stack, also those after a faulty one: they are owned here.
  Status take_inputs(const StableIValue* stack) {
    Status first;
    for (size_t s = 0; s < form_.slots.size(); ++s) {
      Status status = take(form_.slots[s], stack[s]);
      if (first.ok()) first = std::move(status);
    }
    return first;
  }

  Status run() {
    if (form_.kind != FormKind::kFunctional) return run_checked();
    Plan& plan = plan_place(print_);
    if (plan.is_of(print_)) return run_planned(plan);
    PESTLE_TRY(run_checked());
    return remember(plan);
  }

  void give_outputs(StableIValue* stack) {
    if (form_.kind != FormKind::kFunctional) return;
    for (size_t i = 0; i < form_.outputs.size(); ++i) {
      const auto output = static_cast<size_t>(form_.outputs[i]);
      stack[i] = is_list(output) ? give_list(lists_[output].owned)
                                 : stable_value(tensors_[output].release());
    }
  }

 private:
  // A list's tensors, and how the library sees them.
  struct List {
    std::vector<OwnedTensor> owned;
    std::vector<TensorView> views;
  };

  bool is_list(size_t arg) const { return spec_.args[arg].kind == Kind::kTensorList; }

  // Nothing is taken for granted: shapes, dtypes, rules, overlaps.
  Status run_checked() {
    PESTLE_TRY(prepare_outputs());
    DeviceScope scope;
    PESTLE_TRY(enter_device(scope));
    OwnedTensor workspace;
    if (form_.needs_workspace) PESTLE_TRY(allocate_workspace(workspace));
    return pestle::run(*form_.op, call_);
  }

  // A call like this one has been checked. Its outputs are memory of their own, so nothing
  // overlaps.
  Status run_planned(const Plan& plan) {
    bool is_aligned_as_before = true;
    size_t next = 0;
    for (int output : form_.outputs) {
      Value& value = values_[output];
      value.present = true;
      if (is_list(static_cast<size_t>(output))) {
        std::vector<TensorView>& views = lists_[static_cast<size_t>(output)].views;
        views.resize(list_length());
        for (size_t p = 0; p < views.size(); ++p) views[p] = plan.outputs[next + p].view;
        value.list = views;
      } else {
        value.tensor = plan.outputs[next].view;
      }
      PESTLE_TRY(allocate(output));
      const Status same = for_each_view(output, [&](const TensorView& view) -> Status {
        is_aligned_as_before &= Fingerprint::memory_word(view) == plan.outputs[next++].memory;
        return {};
      });
      PESTLE_TRY(same);
    }
    DeviceScope scope;
    PESTLE_TRY(enter_device(scope));
    OwnedTensor workspace;
    if (!is_aligned_as_before) {
      if (form_.needs_workspace) PESTLE_TRY(allocate_workspace(workspace));
      return pestle::run(*form_.op, call_);
    }
    PESTLE_TRY(allocate_workspace(workspace, plan.choice.workspace_bytes));
    return plan.choice.impl->run(call_);
  }

  Status remember(Plan& plan) {
    auto choice = choose(*form_.op, call_);
    PESTLE_TRY(choice.status());
    plan.words.assign(print_.words(), print_.words() + print_.size());
    plan.choice = choice.value();
    plan.outputs.clear();
    for (int output : form_.outputs) {
      PESTLE_TRY(for_each_view(output, [&](TensorView view) -> Status {
        const uint64_t memory = Fingerprint::memory_word(view);
        view.data = nullptr;
        plan.outputs.push_back({view, memory});
        return {};
      }));
    }
    return {};
  }

  template <class Visit>
  Status for_each_view(int arg, Visit&& visit) {
    if (!is_list(static_cast<size_t>(arg))) return visit(values_[arg].tensor);
    for (TensorView& view : lists_[static_cast<size_t>(arg)].views) PESTLE_TRY(visit(view));
    return {};
  }

  // Of the inputs: one length, or the contract has refused the call.
  size_t list_length() const {
    for (size_t i = 0; i < spec_.args.size(); ++i) {
      if (is_list(i) && spec_.args[i].role == Role::kInput && values_[i].present)
        return lists_[i].views.size();
    }
    return 0;
  }

  Status error(int arg, const std::string& what) const {
    return invalid_argument(std::string(spec_.name) + ": " + spec_.args[arg].name + " " + what);
  }

  Status take(const Slot& slot, StableIValue value) {
    Value& target = values_[slot.arg];
    switch (slot.type) {
      case SlotType::kTensor: return take_tensor(slot.arg, value);
      case SlotType::kOptionalTensor: {
        StableIValue inner = 0;
        if (open_optional(value, inner)) return take_tensor(slot.arg, inner);
        print_.add(0);
        return {};
      }
      case SlotType::kTensorList: return take_list(slot.arg, value);
      case SlotType::kOptionalTensorList: {
        StableIValue inner = 0;
        if (open_optional(value, inner)) return take_list(slot.arg, inner);
        print_.add(0);
        return {};
      }
      case SlotType::kInt: target.i = plain_value<int64_t>(value); break;
      case SlotType::kBool: target.i = plain_value<bool>(value); break;
      case SlotType::kFloat:
        target.f = plain_value<double>(value);
        print_.add(std::bit_cast<uint64_t>(target.f));
        return {};
      case SlotType::kChoice: PESTLE_TRY(take_choice(slot, OwnedString(value))); break;
      case SlotType::kOptionalDtype: return take_dtype(slot.arg, value);
    }
    print_.add(static_cast<uint64_t>(target.i));
    return {};
  }

  Status take_dtype(int arg, StableIValue value) {
    DType& dtype = values_[arg].tensor.dtype;
    StableIValue inner = 0;
    if (open_optional(value, inner)) {
      dtype = dtype_from_torch(plain_value<int32_t>(inner));
      if (dtype == DType::kNone) {
        return error(arg, "is asked for in a dtype that Pestle does not have");
      }
    }
    print_.add(static_cast<uint64_t>(dtype));
    return {};
  }

  Status take_choice(const Slot& slot, const OwnedString& label) {
    const auto found = std::find(slot.labels.begin(), slot.labels.end(), label.text());
    values_[slot.arg].i = found - slot.labels.begin();
    if (found != slot.labels.end()) return {};
    return error(slot.arg, "is '" + std::string(label.text()) + "', expected one of " +
                               spec_.args[slot.arg].choices);
  }

  Status take_tensor(int arg, StableIValue value) {
    tensors_[arg].reset(plain_value<TensorHandle>(value));
    values_[arg].present = true;
    PESTLE_TRY(view_of(arg, tensors_[arg].get(), values_[arg].tensor));
    print_.add_tensor(values_[arg].tensor);
    return {};
  }

  Status take_list(int arg, StableIValue value) {
    lists_.resize(spec_.args.size());
    List& list = lists_[static_cast<size_t>(arg)];
    list.owned = open_list(value);
    list.views.resize(list.owned.size());
    values_[arg].present = true;
    values_[arg].list = list.views;
    print_.make_room(list.views.size());
    print_.add(list.views.size());
    for (size_t i = 0; i < list.views.size(); ++i) {
      PESTLE_TRY(view_of(arg, list.owned[i].get(), list.views[i]));
      print_.add_tensor(list.views[i]);
    }
    return {};
  }

  // As few questions as will do: each is a call through the C ABI.
  Status view_of(int arg, TensorHandle tensor, TensorView& view) const {
    const TorchAbi& abi = torch_abi();
    int64_t rank = 0;
    int64_t *sizes = nullptr, *strides = nullptr;
    int32_t dtype = 0, type = 0, index = 0;
    abi.aoti_torch_get_dim(tensor, &rank);
    abi.aoti_torch_get_dtype(tensor, &dtype);
    abi.aoti_torch_get_device_type(tensor, &type);
    if (!is_torch_cpu(type)) abi.aoti_torch_get_device_index(tensor, &index);
    if (rank > kMaxRank) {
      return error(arg, "has " + std::to_string(rank) + " dimensions, expected at most 8");
    }
    view.rank = static_cast<int32_t>(rank);
    view.dtype = dtype_from_torch(dtype);
    if (view.dtype == DType::kNone) return error(arg, "has a dtype that Pestle does not have");
    if (!device_from_torch(type, index, view.device)) {
      return error(arg, "lies on a device that Pestle has no kernels for");
    }
    if (abi.aoti_torch_get_sizes(tensor, &sizes) != 0 ||
        abi.aoti_torch_get_strides(tensor, &strides) != 0 ||
        abi.aoti_torch_get_data_ptr(tensor, &view.data) != 0) {
      return error(
          arg, is_strided(tensor) ? "has no memory that can be read" : "is not a strided tensor");
    }
    std::copy(sizes, sizes + rank, view.shape);
    std::copy(strides, strides + rank, view.strides);
    apply_lenience(form_.lenience[static_cast<size_t>(arg)], view);
    return {};
  }

  static bool is_strided(TensorHandle tensor) {
    int32_t layout = 0;
    torch_abi().aoti_torch_get_layout(tensor, &layout);
    return layout == torch_abi().aoti_torch_layout_strided();
  }

  static void apply_lenience(const Lenience& lenience, TensorView& view) {
    if (view.dtype == DType::kU8 && lenience.from_bytes != DType::kNone) {
      view.dtype = lenience.from_bytes;
    }
    if (view.rank == 0 && lenience.lift_scalar) {
      view.rank = 1;
      view.shape[0] = view.strides[0] = 1;
    }
  }

  Status prepare_outputs() {
    if (form_.kind == FormKind::kOut) return {};
    if (form_.kind == FormKind::kInPlace) return alias_outputs();
    Scope scope;
    for (int output : form_.outputs) {
      const Arg& arg = spec_.args[output];
      values_[output].present = arg.is_optional && !arg.present_if[0];
    }
    PESTLE_TRY(infer_outputs(scope));
    PESTLE_TRY(check_variant());
    for (int output : form_.outputs) PESTLE_TRY(allocate(output));
    return {};
  }

  Status infer_outputs(Scope& scope) {
    const Contract& contract = form_.op->contract;
    if (!contract.has_lists()) return contract.infer_outputs(call_, scope);
    std::vector<std::vector<TensorView>> views;
    PESTLE_TRY(contract.infer_outputs(call_, scope, views));
    for (int output : form_.outputs) {
      lists_[static_cast<size_t>(output)].views = std::move(views[static_cast<size_t>(output)]);
      values_[output].list = lists_[static_cast<size_t>(output)].views;
    }
    return {};
  }

  // The number of outputs belongs to the overload; attributes may ask for another one.
  Status check_variant() const {
    for (size_t i = 0; i < spec_.args.size(); ++i) {
      if (spec_.args[i].role != Role::kOutput) continue;
      const bool is_mine = std::find(form_.outputs.begin(), form_.outputs.end(),
                                     static_cast<int>(i)) != form_.outputs.end();
      if (values_[i].present == is_mine) continue;
      return error(static_cast<int>(i),
                   std::string(is_mine ? "is an output of this overload, but not of this call"
                                       : "is an output of this call, but not of this overload") +
                       ": it is there when " + spec_.args[i].present_if +
                       "; call another overload of the op");
    }
    return {};
  }

  Status allocate(int output) {
    if (!is_list(static_cast<size_t>(output)))
      return allocate(output, values_[output].tensor, tensors_[output]);
    List& list = lists_[static_cast<size_t>(output)];
    list.owned.resize(list.views.size());
    for (size_t i = 0; i < list.views.size(); ++i) {
      PESTLE_TRY(allocate(output, list.views[i], list.owned[i]));
    }
    return {};
  }

  Status allocate(int output, TensorView& view, OwnedTensor& owned) {
    view.device = device();
    int64_t step = 1;  // torch counts a dimension of 0 as 1 in strides
    for (int d = view.rank - 1; d >= 0; --d) {
      view.strides[d] = step;
      step *= std::max<int64_t>(view.shape[d], 1);
    }
    TensorHandle handle = nullptr;
    if (torch_abi().aoti_torch_empty_strided(
            view.rank, view.shape, view.strides, dtype_to_torch(view.dtype),
            device_type_to_torch(view.device.type), view.device.index, &handle) != 0) {
      return {Code::kOutOfMemory, std::string(spec_.name) + ": torch could not allocate " +
                                      spec_.args[output].name + " = " + describe(view)};
    }
    owned.reset(handle);
    torch_abi().aoti_torch_get_data_ptr(handle, &view.data);
    return {};
  }

  Status alias_outputs() {
    for (size_t i = 0; i < form_.outputs.size(); ++i) {
      const int output = form_.outputs[i];
      const TensorView& input = values_[form_.aliases[i]].tensor;
      TensorView& view = values_[output].tensor;
      const DType asked = view.dtype;
      const auto allowed = form_.op->contract.allowed_dtypes(call_, static_cast<size_t>(output));
      const bool keeps = std::find(allowed.begin(), allowed.end(), input.dtype) != allowed.end();
      view = input;
      view.dtype = asked != DType::kNone ? asked : keeps ? input.dtype : allowed[0];
      values_[output].present = true;
    }
    return {};
  }

  Device device() const {
    for (size_t i = 0; i < spec_.args.size(); ++i) {
      const Value& value = values_[i];
      if (spec_.args[i].role == Role::kInput && value.present)
        return value.list.empty() ? value.tensor.device : value.list[0].device;
    }
    return {};
  }

  Status enter_device(DeviceScope& scope) {
    const Device on = device();
    if (on.type != DeviceType::kCuda) return {};
    if (!load_torch_cuda() || !scope.enter(on.index) ||
        torch_abi().aoti_torch_get_current_cuda_stream(on.index, &call_.stream) != 0) {
      return {Code::kDeviceError, std::string(spec_.name) + ": no CUDA stream from torch"};
    }
    return {};
  }

  Status allocate_workspace(OwnedTensor& workspace) {
    auto choice = choose(*form_.op, call_);
    PESTLE_TRY(choice.status());
    return allocate_workspace(workspace, choice.value().workspace_bytes);
  }

  Status allocate_workspace(OwnedTensor& workspace, int64_t bytes) {
    if (bytes == 0) return {};
    const int64_t one = 1;
    const Device on = device();
    TensorHandle handle = nullptr;
    if (torch_abi().aoti_torch_empty_strided(1, &bytes, &one, dtype_to_torch(DType::kU8),
                                             device_type_to_torch(on.type), on.index,
                                             &handle) != 0) {
      return {Code::kOutOfMemory, std::string(spec_.name) + ": torch could not allocate " +
                                      std::to_string(bytes) + " bytes of workspace"};
    }
    workspace.reset(handle);
    call_.workspace_bytes = bytes;
    torch_abi().aoti_torch_get_data_ptr(handle, &call_.workspace);
    return {};
  }

  const Form& form_;
  const OpSpec& spec_;
  union {
    Value values_[kMaxArgs];  // made for the arguments there are
  };
  Fingerprint print_;
  OwnedTensor tensors_[kMaxArgs];
  std::vector<List> lists_;  // by argument, if the op has any
  Call call_;
};

}  // namespace

Status run_form(const Form& form, StableIValue* stack, uint64_t inputs, uint64_t outputs) {
  const size_t returned = form.kind == FormKind::kFunctional ? form.outputs.size() : 0;
  if (inputs != form.slots.size() || outputs != returned) {
    return {Code::kInternal, form.name + ": torch calls with other arguments than its schema's"};
  }
  FormCall call(form);
  PESTLE_TRY(call.take_inputs(stack));
  PESTLE_TRY(call.run());
  call.give_outputs(stack);
  return {};
}

}  // namespace pestle::torch
