// What a call through the C ABI comes to - its arguments read, checked and chosen for - remembered
// per thread: calls of a model differ in their data and little else.
#pragma once

#include <array>
#include <vector>

#include "core/dispatch.h"
#include "pestle/pestle.h"

namespace pestle {

// Everything in a call that its plan depends on, as words: all but data, exact addresses, floats,
// stream and workspace.
class CallKey {
 public:
  CallKey(const Op& op, const pestle_arg* args, size_t count, const pestle_call_options* options);
  // False for what has no plan: lists, a forced implementation, very many dimensions, and what
  // reading the arguments would refuse.
  bool ok() const { return ok_; }
  std::span<const uint64_t> words() const { return {words_, size_}; }
  uint64_t hash() const;

 private:
  static constexpr size_t kWords = 192;
  static constexpr size_t kTensorWords = 2 + 2 * kMaxRank;
  uint64_t* add(uint64_t* out, const pestle_arg& arg);
  uint64_t* add_tensor(uint64_t* out, const pestle_tensor* tensor);
  uint64_t* add_label(uint64_t* out, const char* label);

  uint64_t words_[kWords];
  size_t size_ = 0;
  bool ok_ = true;
};

class CallPlan {
 public:
  bool is_of(const CallKey& key) const;
  // Of a call that has just run well; `args` as the caller gave them.
  void remember(const Op& op, const CallKey& key, const Call& call, const Choice& choice,
                std::span<const pestle_arg> args);
  // The same call with this data, these floats, stream and workspace.
  Status run(const pestle_arg* args, const pestle_call_options* options);
  // What that would run, if the contract allows this data.
  Result<Choice> choose(const pestle_arg* args);

 private:
  struct Tensor {
    size_t arg = 0;
    bool is_output = false;
    ByteRange reach;  // what it covers, from its data
    ByteRange range;  // in this call
  };
  Call call_with(const pestle_arg* args);
  Status check_overlaps(const Call& call) const;

  const Op* op_ = nullptr;
  std::vector<uint64_t> words_;
  std::vector<Value> values_;
  std::vector<Tensor> tensors_;
  std::vector<size_t> floats_;  // that the caller gives
  Choice choice_;
};

// The place of a call's plan in this thread's memory; direct mapped, so it may hold another's.
CallPlan& plan_place(const CallKey& key);

}  // namespace pestle
