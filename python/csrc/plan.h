// What a call of a form comes to - shapes of its outputs, implementation, workspace - remembered
// per thread: calls of a model differ in their data and little else.
#pragma once

#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "core/dispatch.h"

namespace pestle::torch {

// Everything in a call that its plan depends on, as words: all but data and exact addresses.
class Fingerprint {
 public:
  explicit Fingerprint(const void* form) : begin_(words_), end_(words_) {
    add(reinterpret_cast<uintptr_t>(form));
    add(isa_generation());
  }
  Fingerprint(const Fingerprint&) = delete;
  Fingerprint& operator=(const Fingerprint&) = delete;
  // Before a list of so many tensors: beyond what calls of single tensors need.
  void make_room(size_t tensors) {
    std::vector<uint64_t> longer(size() + tensors * kTensorWords + kMaxWords);
    std::copy(begin_, end_, longer.begin());
    end_ = longer.data() + size();
    more_.swap(longer);
    begin_ = more_.data();
  }
  void add(uint64_t word) { *end_++ = word; }
  void add_tensor(const TensorView& tensor) {
    add(tensor_word(tensor));
    for (int d = 0; d < tensor.rank; ++d) {
      add(static_cast<uint64_t>(tensor.shape[d]));
      add(static_cast<uint64_t>(tensor.strides[d]));
    }
  }
  size_t size() const { return static_cast<size_t>(end_ - begin_); }
  const uint64_t* words() const { return begin_; }
  uint64_t hash() const {
    uint64_t hash = size();
    for (const uint64_t* word = begin_; word != end_; ++word) {
      hash = (std::rotl(hash, 29) ^ *word) * 0x9E3779B97F4A7C15u;
    }
    return hash ^ hash >> 32;
  }

  // What an implementation may ask of memory (core/op.h): whether it is there, and its alignment.
  static uint64_t memory_word(const TensorView& tensor) {
    const uint64_t most = tensor.device.type == DeviceType::kCpu ? 64 : 256;
    const auto address = reinterpret_cast<uintptr_t>(tensor.data);
    return static_cast<uint64_t>(std::countr_zero(address | most)) << 1 | (tensor.data != nullptr);
  }

 private:
  static uint64_t tensor_word(const TensorView& tensor) {
    return 1 | static_cast<uint64_t>(tensor.dtype) << 1 | static_cast<uint64_t>(tensor.rank) << 9 |
           static_cast<uint64_t>(tensor.device.type) << 17 | memory_word(tensor) << 25 |
           static_cast<uint64_t>(tensor.device.index) << 32;
  }

  // Form and instruction set; an argument that is no list is at most a tensor.
  static constexpr size_t kTensorWords = 1 + 2 * kMaxRank;
  static constexpr size_t kMaxWords = 2 + kMaxArgs * kTensorWords;
  uint64_t words_[kMaxWords];
  std::vector<uint64_t> more_;  // instead, once there are lists
  uint64_t* begin_;
  uint64_t* end_;
};

struct Plan {
  struct Output {
    TensorView view;  // without its data
    uint64_t memory = 0;
  };
  std::vector<uint64_t> words;
  Choice choice;
  std::vector<Output> outputs;  // of the form, each position of a list by itself

  bool is_of(const Fingerprint& call) const {
    return words.size() == call.size() &&
           std::memcmp(words.data(), call.words(), words.size() * sizeof(uint64_t)) == 0;
  }
};

// The place of a call's plan in this thread's memory; direct mapped, so it may hold another's.
inline Plan& plan_place(const Fingerprint& call) {
  constexpr size_t kPlans = 128;
  thread_local std::array<Plan, kPlans> plans;
  return plans[call.hash() % kPlans];
}

}  // namespace pestle::torch
