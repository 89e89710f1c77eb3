#include "core/dispatch.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace pestle {
namespace {

// What a choice depends on, as words: everything in the call but the data and exact addresses.
struct Key {
  static constexpr int kWords = 160;
  std::array<uint64_t, kWords> words;
  int size = 0;
  uint64_t hash = 0;
  bool fits = true;

  // Four chains side by side: one would wait for a multiplication a word.
  void finish(const uint64_t* end) {
    size = static_cast<int>(end - words.data());
    const int whole = (size + 3) / 4 * 4;
    for (int i = size; i < whole; ++i) words[static_cast<size_t>(i)] = 0;
    uint64_t lanes[4] = {1, 2, 3, static_cast<uint64_t>(size)};
    for (size_t i = 0; i < static_cast<size_t>(whole); i += 4) {
      for (size_t lane = 0; lane < 4; ++lane) {
        lanes[lane] = (std::rotl(lanes[lane], 29) ^ words[i + lane]) * 0x9E3779B97F4A7C15u;
      }
    }
    for (uint64_t lane : lanes) hash = (std::rotl(hash, 29) ^ lane) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
  }
  bool operator==(const Key& other) const {
    return size == other.size && hash == other.hash &&
           std::memcmp(words.data(), other.words.data(), static_cast<size_t>(size) * 8) == 0;
  }
};

constexpr int kTensorWords = 1 + 2 * kMaxRank;

// Writes at most kTensorWords and returns their end. The cursor is a local of the caller: kept in
// the key, every word would wait for the last one's store.
uint64_t* add_tensor(uint64_t* out, const TensorView& tensor) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.data);
  const auto alignment = static_cast<uint64_t>(std::countr_zero(address | 256));
  *out++ = static_cast<uint64_t>(tensor.dtype) | static_cast<uint64_t>(tensor.rank) << 8 |
           static_cast<uint64_t>(tensor.device.type) << 16 | alignment << 24 |
           static_cast<uint64_t>(tensor.device.index) << 32;
  for (int d = 0; d < tensor.rank; ++d) {
    *out++ = static_cast<uint64_t>(tensor.shape[d]);
    *out++ = static_cast<uint64_t>(tensor.strides[d]);
  }
  return out;
}

Key make_key(const Op& op, const Call& call) {
  Key key;
  uint64_t* out = key.words.data();
  const uint64_t* end = out + Key::kWords;
  *out++ = reinterpret_cast<uintptr_t>(&op);
  *out++ = isa_generation();
  for (const Value& value : call.args) {
    const auto tensors =
        static_cast<int64_t>(value.list.empty() ? value.present : value.list.size());
    if (end - out < 2 + tensors * kTensorWords) {
      key.fits = false;
      break;
    }
    *out++ = value.present | static_cast<uint64_t>(value.list.size()) << 1;
    *out++ = static_cast<uint64_t>(value.i);
    if (value.present && value.list.empty()) out = add_tensor(out, value.tensor);
    for (const TensorView& item : value.list) out = add_tensor(out, item);
  }
  key.finish(out);
  return key;
}

// The same for calls that Key is too small for, those with long lists: compared word by word.
struct LongMemory {
  static constexpr size_t kEntries = 16;
  struct Entry {
    std::vector<uint64_t> words;
    Choice choice;
  };
  std::array<Entry, kEntries> entries;
  std::vector<uint64_t> words;  // of the call that is asked about; kept for its memory

  Entry& find(const Op& op, const Call& call) {
    size_t most = 2;
    for (const Value& value : call.args) most += 2 + (1 + value.list.size()) * kTensorWords;
    words.resize(most);
    uint64_t* out = words.data();
    *out++ = reinterpret_cast<uintptr_t>(&op);
    *out++ = isa_generation();
    for (const Value& value : call.args) {
      *out++ = value.present | static_cast<uint64_t>(value.list.size()) << 1;
      *out++ = static_cast<uint64_t>(value.i);
      if (value.present && value.list.empty()) out = add_tensor(out, value.tensor);
      for (const TensorView& item : value.list) out = add_tensor(out, item);
    }
    words.resize(static_cast<size_t>(out - words.data()));
    uint64_t hash = words.size();
    for (uint64_t word : words) hash = (std::rotl(hash, 29) ^ word) * 0x9E3779B97F4A7C15u;
    return entries[(hash ^ hash >> 32) % kEntries];
  }
};

// Direct mapped; a collision only costs a fresh choice.
struct Memory {
  static constexpr size_t kEntries = 64;
  struct Entry {
    Key key;
    Choice choice;
  };
  std::array<Entry, kEntries> entries;
};

Device device_of(const Op& op, const Call& call) {
  for (size_t i = 0; i < call.args.size(); ++i) {
    const Value& value = call.args[i];
    if (!value.present || op.spec->args[i].role == Role::kAttribute) continue;
    return value.list.empty() ? value.tensor.device : value.list[0].device;
  }
  return {};
}

std::string refusal_of(const Op& op, const Impl& impl, const Call& call, const Machine& machine,
                       DeviceType device) {
  if (impl.device != device) {
    if (impl.device != DeviceType::kCpu) return "runs on CUDA tensors, these are on the CPU";
    return std::string("runs on CPU tensors, these are on a CUDA device") +
           (op.has_cuda ? "" : ", for which the op has no implementation yet");
  }
  if (impl.min_compute_capability > machine.compute_capability) {
    return "needs compute capability " + std::to_string(impl.min_compute_capability) +
           ", the device has " + std::to_string(machine.compute_capability);
  }
  return impl.refuses ? impl.refuses(call, machine) : "";
}

std::vector<Advice>& advices() {
  static std::vector<Advice> all;  // filled at start-up, then immutable
  return all;
}

// The op's implementations, the one that it prefers for this call first.
std::vector<const Impl*> in_order(const Op& op, const Call& call, const Machine& machine) {
  std::vector<const Impl*> impls;
  for (const Impl& impl : op.impls) impls.push_back(&impl);
  const Advice* advice = advice_of(op);
  const char* first = advice && advice->prefer ? advice->prefer(call, machine) : nullptr;
  if (first == nullptr) return impls;
  std::stable_partition(impls.begin(), impls.end(),
                        [&](const Impl* impl) { return std::string_view(impl->id) == first; });
  return impls;
}

// Views without memory are for asking, not for running.
Status check_memory(const Op& op, const Call& call) {
  for (size_t i = 0; i < call.args.size(); ++i) {
    const Value& value = call.args[i];
    if (!value.present) continue;
    bool missing = op.spec->args[i].kind == Kind::kTensor && value.tensor.data == nullptr &&
                   numel(value.tensor) > 0;
    for (const TensorView& item : value.list) missing |= item.data == nullptr && numel(item) > 0;
    if (missing) {
      return invalid_argument(std::string(op.spec->name) + ": " + op.spec->args[i].name +
                              " has elements but its data pointer is NULL");
    }
  }
  return {};
}

Result<Choice> choose_fresh(const Op& op, const Call& call, std::string_view forced) {
  Scope scope;
  PESTLE_TRY(op.contract.check(call, scope));
  std::string reasons;
  const Device device = device_of(op, call);
  const Machine machine = machine_for(device);
  for (const Impl* impl : in_order(op, call, machine)) {
    if (!forced.empty() && forced != impl->id) continue;
    const std::string refusal = refusal_of(op, *impl, call, machine, device.type);
    if (refusal.empty()) {
      auto bytes = op.contract.evaluate(impl->workspace, scope);
      PESTLE_TRY(bytes.status());
      return Choice{impl, bytes.value()};
    }
    reasons += std::string("\n  ") + impl->id + ": " + refusal;
  }
  if (!forced.empty() && reasons.empty()) {
    return invalid_argument(std::string(op.spec->name) + ": no implementation '" +
                            std::string(forced) + "'; `pestle ops " + op.spec->name +
                            "` lists them");
  }
  return unsupported(std::string(op.spec->name) +
                     (forced.empty() ? ": no implementation takes this call:"
                                     : ": the forced implementation refuses this call:") +
                     reasons);
}

}  // namespace

bool advise(const Advice& advice) {
  advices().push_back(advice);
  return true;
}

const Advice* advice_of(const Op& op) {
  for (const Advice& advice : advices()) {
    if (std::string_view(op.spec->name) == advice.op) return &advice;
  }
  return nullptr;
}

std::vector<Candidate> candidates(const Op& op, const Call& call, const Machine& machine) {
  std::vector<Candidate> result;
  const DeviceType device = device_of(op, call).type;
  const Advice* advice = advice_of(op);
  for (const Impl* impl : in_order(op, call, machine)) {
    Candidate candidate{impl, refusal_of(op, *impl, call, machine, device), ""};
    if (candidate.refusal.empty() && advice && advice->plan)
      candidate.plan = advice->plan(call, machine, impl->id);
    result.push_back(std::move(candidate));
  }
  return result;
}

std::vector<Candidate> candidates(const Op& op, const Call& call) {
  return candidates(op, call, machine_for(device_of(op, call)));
}

namespace {

Result<Choice> choose_long(const Op& op, const Call& call) {
  thread_local LongMemory memory;
  LongMemory::Entry& entry = memory.find(op, call);
  if (entry.choice.impl != nullptr && entry.words == memory.words) {
    PESTLE_TRY(op.contract.check_overlaps(call));
    return entry.choice;
  }
  auto choice = choose_fresh(op, call, {});
  if (choice.ok()) entry = {memory.words, choice.value()};
  return choice;
}

}  // namespace

Result<Choice> choose(const Op& op, const Call& call, std::string_view forced) {
  if (!forced.empty()) return choose_fresh(op, call, forced);
  thread_local Memory memory;
  const Key key = make_key(op, call);
  if (!key.fits) return choose_long(op, call);
  Memory::Entry& entry = memory.entries[key.hash % Memory::kEntries];
  if (entry.choice.impl != nullptr && entry.key == key) {
    PESTLE_TRY(op.contract.check_overlaps(call));
    return entry.choice;
  }
  auto choice = choose_fresh(op, call, forced);
  if (choice.ok()) entry = {key, choice.value()};
  return choice;
}

Status check_workspace(const Op& op, const Call& call, const Choice& choice) {
  if (call.workspace_bytes >= choice.workspace_bytes) return {};
  return invalid_argument(std::string(op.spec->name) + ": workspace has " +
                          std::to_string(call.workspace_bytes) + " bytes, " + choice.impl->id +
                          " needs " + std::to_string(choice.workspace_bytes));
}

Status run(const Op& op, Call& call, const Choice& choice) {
  PESTLE_TRY(check_workspace(op, call, choice));
  PESTLE_TRY(check_memory(op, call));
  return choice.impl->run(call);
}

Status run(const Op& op, Call& call, std::string_view forced) {
  auto choice = choose(op, call, forced);
  PESTLE_TRY(choice.status());
  return run(op, call, choice.value());
}

Status run_within(const Op& op, Call& call) {
  auto best = choose(op, call);
  PESTLE_TRY(best.status());
  if (best.value().workspace_bytes <= call.workspace_bytes) return run(op, call, best.value());
  for (const Candidate& candidate : candidates(op, call)) {
    if (!candidate.refusal.empty()) continue;
    auto choice = choose(op, call, candidate.impl->id);
    PESTLE_TRY(choice.status());
    if (choice.value().workspace_bytes <= call.workspace_bytes)
      return run(op, call, choice.value());
  }
  return check_workspace(op, call, best.value());
}

Status run_reference(const Op& op, Call& call, bool sum_magnitudes) {
  std::vector<size_t> bounded;
  for (size_t i = 0; i < call.args.size(); ++i) {
    Value& value = call.args[i];
    const Arg& arg = op.spec->args[i];
    if (arg.role != Role::kOutput || arg.bound.exact || !value.present) continue;
    if (value.tensor.dtype != DType::kF64) {
      return invalid_argument(std::string(op.spec->name) + ": " + arg.name +
                              " is bounded by the contract: the reference fills an f64 tensor");
    }
    bounded.push_back(i);
  }
  // The contract is checked as of a call, whose bounded outputs are of the contract's dtypes.
  for (size_t i : bounded) call.args[i].tensor.dtype = op.contract.allowed_dtypes(call, i)[0];
  Scope scope;
  PESTLE_TRY(op.contract.check(call, scope));
  for (size_t i : bounded) call.args[i].tensor.dtype = DType::kF64;
  if (device_of(op, call).type != DeviceType::kCpu) {
    return unsupported(std::string(op.spec->name) + ": the reference runs on host memory");
  }
  PESTLE_TRY(check_memory(op, call));
  auto bytes = op.contract.evaluate(op.reference().workspace, scope);
  PESTLE_TRY(bytes.status());
  std::vector<uint64_t> workspace(static_cast<size_t>(bytes.value() / 8 + 1));
  call.workspace = workspace.data();
  call.workspace_bytes = bytes.value();
  call.sum_magnitudes = sum_magnitudes;
  return op.reference().run(call);
}

}  // namespace pestle
