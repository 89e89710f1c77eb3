#include "bindings/c/call_plan.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace pestle {

CallKey::CallKey(const Op& op, const pestle_arg* args, size_t count,
                 const pestle_call_options* options) {
  ok_ = count <= op.spec->args.size() && (args != nullptr || count == 0) &&
        (options == nullptr ||
         (options->size >= sizeof(pestle_call_options) && options->impl == nullptr));
  if (!ok_) return;
  uint64_t* out = words_;
  const uint64_t* const end = words_ + kWords;
  *out++ = reinterpret_cast<uintptr_t>(&op);
  *out++ = isa_generation() << 8 | count;
  for (size_t i = 0; i < count && ok_; ++i) {
    ok_ = end - out >= static_cast<ptrdiff_t>(kTensorWords);
    if (ok_) out = add(out, args[i]);
  }
  size_ = static_cast<size_t>(out - words_);
}

// Writes at most kTensorWords and returns their end: kept in the object, the cursor would be stored
// and loaded again for every word.
uint64_t* CallKey::add(uint64_t* out, const pestle_arg& arg) {
  *out++ = static_cast<uint64_t>(arg.kind);
  switch (arg.kind) {
    case PESTLE_ABSENT:
    case PESTLE_FLOAT: return out;
    case PESTLE_INT:
    case PESTLE_BOOL_VALUE: *out++ = static_cast<uint64_t>(arg.value.i); return out;
    case PESTLE_TENSOR: return add_tensor(out, arg.value.tensor);
    case PESTLE_CHOICE: return add_label(out, arg.value.choice);
    default: ok_ = false; return out;
  }
}

uint64_t* CallKey::add_tensor(uint64_t* out, const pestle_tensor* tensor) {
  if (tensor == nullptr || tensor->rank < 0 || tensor->rank > kMaxRank ||
      (tensor->rank > 0 && tensor->shape == nullptr)) {
    ok_ = false;
    return out;
  }
  // What an implementation may ask of memory (core/op.h): is it there, how is it aligned?
  const auto address = reinterpret_cast<uintptr_t>(tensor->data) + tensor->byte_offset;
  const auto alignment = static_cast<uint64_t>(std::countr_zero(address | 256));
  *out++ = static_cast<uint64_t>(static_cast<uint32_t>(tensor->dtype)) |
           static_cast<uint64_t>(static_cast<uint32_t>(tensor->device_index)) << 32;
  out[-2] |= static_cast<uint64_t>(static_cast<uint32_t>(tensor->device_type)) << 8 |
             static_cast<uint64_t>(tensor->rank) << 40 | alignment << 48 |
             uint64_t{tensor->data != nullptr} << 56 | uint64_t{address != 0} << 57 |
             uint64_t{tensor->strides != nullptr} << 58;
  for (int d = 0; d < tensor->rank; ++d) *out++ = static_cast<uint64_t>(tensor->shape[d]);
  if (tensor->strides == nullptr) return out;
  for (int d = 0; d < tensor->rank; ++d) *out++ = static_cast<uint64_t>(tensor->strides[d]);
  return out;
}

// By its letters: what lies at the address may change.
uint64_t* CallKey::add_label(uint64_t* out, const char* label) {
  constexpr size_t kLongest = 31;
  const size_t length = label == nullptr ? kLongest + 1 : strnlen(label, kLongest + 1);
  ok_ = length <= kLongest;
  if (!ok_) return out;
  for (size_t i = 0; i <= length; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, label + i, std::min<size_t>(8, length - i));
    *out++ = word;
  }
  return out;
}

uint64_t CallKey::hash() const {
  // Two chains side by side: one would wait for a multiplication a word.
  uint64_t a = 1, b = size_;
  size_t i = 0;
  for (; i + 2 <= size_; i += 2) {
    a = (std::rotl(a, 29) ^ words_[i]) * 0x9E3779B97F4A7C15u;
    b = (std::rotl(b, 29) ^ words_[i + 1]) * 0x9E3779B97F4A7C15u;
  }
  if (i < size_) a = (std::rotl(a, 29) ^ words_[i]) * 0x9E3779B97F4A7C15u;
  a = (std::rotl(a, 29) ^ b) * 0x9E3779B97F4A7C15u;
  return a ^ a >> 32;
}

bool CallPlan::is_of(const CallKey& key) const {
  const std::span<const uint64_t> words = key.words();
  return words_.size() == words.size() &&
         std::memcmp(words_.data(), words.data(), words.size_bytes()) == 0;
}

void CallPlan::remember(const Op& op, const CallKey& key, const Call& call, const Choice& choice,
                        std::span<const pestle_arg> args) {
  words_.clear();  // no plan, should memory end below
  op_ = &op;
  choice_ = choice;
  values_.assign(call.args.begin(), call.args.end());
  tensors_.clear();
  floats_.clear();
  for (size_t i = 0; i < values_.size(); ++i) {
    if (i < args.size() && args[i].kind == PESTLE_FLOAT) floats_.push_back(i);
    if (op.spec->args[i].kind != Kind::kTensor || !values_[i].present) continue;
    const TensorView& tensor = values_[i].tensor;
    const auto base = reinterpret_cast<uintptr_t>(tensor.data);
    const ByteRange range = byte_range(tensor);
    tensors_.push_back(
        {i, op.spec->args[i].role == Role::kOutput, {range.begin - base, range.end - base}, range});
  }
  words_.assign(key.words().begin(), key.words().end());
}

// Ranges that meet are rare: the contract says what is allowed.
Status CallPlan::check_overlaps(const Call& call) const {
  for (const Tensor& out : tensors_) {
    if (!out.is_output) continue;
    for (const Tensor& other : tensors_) {
      if (&other == &out) continue;
      if (out.range.begin < other.range.end && other.range.begin < out.range.end) {
        return op_->contract.check_overlaps(call);
      }
    }
  }
  return {};
}

Call CallPlan::call_with(const pestle_arg* args) {
  for (Tensor& tensor : tensors_) {
    const pestle_tensor& given = *args[tensor.arg].value.tensor;
    char* data = static_cast<char*>(given.data) + given.byte_offset;
    values_[tensor.arg].tensor.data = data;
    const auto base = reinterpret_cast<uintptr_t>(data);
    tensor.range = {base + tensor.reach.begin, base + tensor.reach.end};
  }
  for (size_t i : floats_) values_[i].f = args[i].value.f;
  Call call;
  call.spec = op_->spec;
  call.args = values_;
  return call;
}

Result<Choice> CallPlan::choose(const pestle_arg* args) {
  PESTLE_TRY(check_overlaps(call_with(args)));
  return choice_;
}

Status CallPlan::run(const pestle_arg* args, const pestle_call_options* options) {
  Call call = call_with(args);
  if (options != nullptr) {
    call.stream = options->stream;
    call.workspace = options->workspace;
    call.workspace_bytes = options->workspace_bytes;
  }
  PESTLE_TRY(check_overlaps(call));
  PESTLE_TRY(check_workspace(*op_, call, choice_));
  return choice_.impl->run(call);
}

CallPlan& plan_place(const CallKey& key) {
  constexpr size_t kPlans = 64;
  thread_local std::array<CallPlan, kPlans> plans;
  return plans[key.hash() % kPlans];
}

}  // namespace pestle
