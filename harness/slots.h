// The tensors of a call one by one: arguments in order, each position of a list by itself.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/op.h"

namespace pestle::harness {

struct Slot {
  size_t arg = 0;
  size_t position = 0;  // in a list
  bool in_list = false;
};

// Of the tensors that are there.
inline std::vector<Slot> slots_of(const OpSpec& spec, std::span<const Value> values) {
  std::vector<Slot> slots;
  for (size_t i = 0; i < values.size(); ++i) {
    if (spec.args[i].role == Role::kAttribute || !values[i].present) continue;
    const bool is_list = spec.args[i].kind == Kind::kTensorList;
    const size_t count = is_list ? values[i].list.size() : 1;
    for (size_t position = 0; position < count; ++position) slots.push_back({i, position, is_list});
  }
  return slots;
}

inline const TensorView& tensor_at(std::span<const Value> values, const Slot& slot) {
  return slot.in_list ? values[slot.arg].list[slot.position] : values[slot.arg].tensor;
}

// "q", or "q[3]" in a list.
inline std::string slot_name(const OpSpec& spec, const Slot& slot) {
  const std::string name = spec.args[slot.arg].name;
  return slot.in_list ? name + "[" + std::to_string(slot.position) + "]" : name;
}

// Values whose lists are memory of their own, so that their tensors can be changed.
class OwnValues {
 public:
  OwnValues() = default;
  explicit OwnValues(std::span<const Value> from)
      : values_(from.begin(), from.end()), lists_(from.size()) {
    for (size_t i = 0; i < values_.size(); ++i) {
      lists_[i].assign(from[i].list.begin(), from[i].list.end());
      values_[i].list = lists_[i];
    }
  }
  // Moved vectors keep their elements where they are, which the lists view.
  OwnValues(OwnValues&&) = default;
  OwnValues& operator=(OwnValues&&) = default;

  std::span<Value> span() { return values_; }
  std::span<const Value> span() const { return values_; }
  const Value& operator[](size_t arg) const { return values_[arg]; }
  size_t size() const { return values_.size(); }
  TensorView& at(const Slot& slot) {
    return slot.in_list ? lists_[slot.arg][slot.position] : values_[slot.arg].tensor;
  }

 private:
  std::vector<Value> values_;
  std::vector<std::vector<TensorView>> lists_;
};

}  // namespace pestle::harness
