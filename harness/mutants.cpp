#include "harness/mutants.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <span>

#include "formats/float_bits.h"
#include "harness/data.h"
#include "harness/slots.h"

namespace pestle::harness {
namespace {

// What the mutated implementation is made of. One at a time: an Impl's function knows nothing else.
struct Current {
  const Op* op = nullptr;
  const Impl* impl = nullptr;
  Memory* memory = nullptr;
  Status (*mutant)(const Call&) = nullptr;
  bool applied = false;  // did it ever change anything?
  int calls = 0;
  std::map<std::string, std::vector<uint8_t>> kept = {};
};
Current g;

Status run_real(const Call& call) {
  const Status status = g.impl->run(call);
  g.memory->synchronize();
  return status;
}

std::vector<uint8_t> read(const void* address, int64_t bytes) {
  std::vector<uint8_t> data(static_cast<size_t>(bytes));
  if (bytes > 0) g.memory->to_host(data.data(), address, bytes);
  return data;
}

void write(void* address, const std::vector<uint8_t>& data) {
  if (!data.empty()) g.memory->to_device(address, data.data(), static_cast<int64_t>(data.size()));
}

const TensorView& tensor(const Call& call, const Slot& slot) { return tensor_at(call.args, slot); }

std::vector<Slot> tensors(const Call& call, Role role) {
  std::vector<Slot> found;
  for (const Slot& slot : slots_of(*g.op->spec, call.args)) {
    if (g.op->spec->args[slot.arg].role == role && numel(tensor(call, slot)) > 0) {
      found.push_back(slot);
    }
  }
  return found;
}

uint8_t* element(const TensorView& t, int64_t index) {
  int64_t offset = 0;
  for (int d = t.rank - 1; d >= 0; --d) {
    offset += index % t.shape[d] * t.strides[d];
    index /= t.shape[d];
  }
  return t.as<uint8_t>() + offset * dtype_bytes(t.dtype);
}

bool shares_memory(const Call& call, const TensorView& t, Role role) {
  const ByteRange own = byte_range(t);
  for (const Slot& i : tensors(call, role)) {
    const ByteRange other = byte_range(tensor(call, i));
    if (own.begin < other.end && other.begin < own.end) return true;
  }
  return false;
}

// ---- the mutants --------------------------------------------------------------------------------

Status no_op(const Call& call) {
  g.applied |= !tensors(call, Role::kOutput).empty();
  return {};
}

// Gives what the first call of these shapes gave.
Status stale_buffer(const Call& call) {
  std::string key;
  const auto outputs = tensors(call, Role::kOutput);
  for (const Value& value : call.args) {
    key += value.present ? describe(value.tensor) + std::to_string(value.i) + ' ' : "- ";
    for (const TensorView& item : value.list) key += describe(item) + ' ';
  }
  PESTLE_TRY(run_real(call));
  for (const Slot& i : outputs) {
    const TensorView& t = tensor(call, i);
    if (!is_contiguous(t)) continue;
    const auto [found, fresh] =
        g.kept.emplace(key + slot_name(*g.op->spec, i), std::vector<uint8_t>());
    if (fresh) {
      found->second = read(t.data, size_bytes(t));
    } else {
      g.applied |= found->second != read(t.data, size_bytes(t));
      write(t.data, found->second);
    }
  }
  return {};
}

Status off_by_one_tail(const Call& call) {
  std::vector<std::pair<Slot, std::vector<uint8_t>>> before;
  for (const Slot& i : tensors(call, Role::kOutput)) {
    const TensorView& t = tensor(call, i);
    before.emplace_back(i, read(element(t, numel(t) - 1), dtype_bytes(t.dtype)));
    g.applied = true;
  }
  PESTLE_TRY(run_real(call));
  for (const auto& [i, bytes] : before) {
    const TensorView& t = tensor(call, i);
    write(element(t, numel(t) - 1), bytes);
  }
  return {};
}

// Of the highest byte of the first element in which it changes anything.
Status swapped_nibble(const Call& call) {
  PESTLE_TRY(run_real(call));
  for (const Slot& i : tensors(call, Role::kOutput)) {
    const TensorView& t = tensor(call, i);
    const int64_t last = dtype_bytes(t.dtype) - 1;
    for (int64_t e = 0; e < std::min<int64_t>(numel(t), 64); ++e) {
      std::vector<uint8_t> byte = read(element(t, e) + last, 1);
      const auto swapped = static_cast<uint8_t>(byte[0] << 4 | byte[0] >> 4);
      if (swapped == byte[0]) continue;
      write(element(t, e) + last, {swapped});
      g.applied = true;
      return {};
    }
  }
  return {};
}

// Runs on a copy of one input, changed.
template <class Change>
Status with_input(const Call& call, const Slot& slot, Change&& change) {
  const TensorView t = tensor(call, slot);
  const int64_t bytes = size_bytes(t);
  std::vector<uint8_t> data = read(t.data, bytes);
  const std::vector<uint8_t> before = data;
  change(data);
  if (data == before) return run_real(call);
  void* copy = g.memory->allocate(bytes);
  write(copy, data);
  OwnValues values(call.args);
  values.at(slot).data = copy;
  Call changed = call;
  changed.args = values.span();
  const Status status = run_real(changed);
  g.memory->release(copy, bytes);
  g.applied = true;
  return status;
}

// Each column's scale is its neighbour's.
Status wrong_scale_column(const Call& call) {
  const auto rotate = [](const TensorView& t) {
    return [&t](std::vector<uint8_t>& data) {
      std::rotate(data.begin(), data.begin() + dtype_bytes(t.dtype), data.end());
    };
  };
  const auto is_scale = [&](const Slot& i) {
    const TensorView& t = tensor(call, i);
    return numel(t) > 1 && is_contiguous(t) &&
           meaning_of(g.op->spec->args[i.arg], t.dtype) == Meaning::kScales;
  };
  for (const Slot& i : tensors(call, Role::kInput)) {
    if (is_scale(i)) return with_input(call, i, rotate(tensor(call, i)));
  }
  PESTLE_TRY(run_real(call));
  for (const Slot& i : tensors(call, Role::kOutput)) {
    if (!is_scale(i)) continue;
    const TensorView& t = tensor(call, i);
    std::vector<uint8_t> data = read(t.data, size_bytes(t));
    const std::vector<uint8_t> before = data;
    rotate(t)(data);
    write(t.data, data);
    g.applied |= data != before;
  }
  return {};
}

// NaN is read as 0.
Status swallowed_nan(const Call& call) {
  for (const Slot& i : tensors(call, Role::kInput)) {
    const TensorView& t = tensor(call, i);
    const bool wide = t.dtype == DType::kF32;
    const bool float_like = wide || t.dtype == DType::kBF16 || t.dtype == DType::kF16;
    if (!float_like || !is_contiguous(t) || shares_memory(call, t, Role::kOutput)) continue;
    return with_input(call, i, [&](std::vector<uint8_t>& data) {
      for (size_t at = 0; at < data.size(); at += wide ? 4 : 2) {
        uint32_t bits = 0;
        std::memcpy(&bits, &data[at], wide ? 4 : 2);
        const float value = wide ? formats::f32_from_bits(bits)
                            : t.dtype == DType::kBF16
                                ? formats::f32_from_bf16(static_cast<uint16_t>(bits))
                                : formats::f32_from_f16(static_cast<uint16_t>(bits));
        if (std::isnan(value)) std::memset(&data[at], 0, wide ? 4 : 2);
      }
    });
  }
  return run_real(call);
}

// Now and then an element holds what it would if its threads had not waited for one another.
Status missing_barrier(const Call& call) {
  PESTLE_TRY(run_real(call));
  if (++g.calls % 7 != 0) return {};
  for (const Slot& i : tensors(call, Role::kOutput)) {
    const TensorView& t = tensor(call, i);
    std::vector<uint8_t> bytes = read(element(t, numel(t) / 2), dtype_bytes(t.dtype));
    bytes.back() ^= 0x11;
    write(element(t, numel(t) / 2), bytes);
    g.applied = true;
    return {};
  }
  return {};
}

Status write_past_the_end(const Call& call) {
  PESTLE_TRY(run_real(call));
  for (const Slot& i : tensors(call, Role::kOutput)) {
    auto* end = reinterpret_cast<uint8_t*>(byte_range(tensor(call, i)).end);
    write(end, {static_cast<uint8_t>(~read(end, 1)[0])});
    g.applied = true;
    return {};
  }
  return {};
}

Status input_overwritten(const Call& call) {
  PESTLE_TRY(run_real(call));
  for (const Slot& i : tensors(call, Role::kInput)) {
    const TensorView& t = tensor(call, i);
    if (shares_memory(call, t, Role::kOutput)) continue;
    write(t.data, {static_cast<uint8_t>(~read(t.data, 1)[0])});
    g.applied = true;
    return {};
  }
  return {};
}

struct Mutant {
  const char* name;
  Status (*run)(const Call&);
};
constexpr Mutant kMutants[] = {
    {"no-op", no_op},
    {"stale buffer", stale_buffer},
    {"off-by-one tail", off_by_one_tail},
    {"swapped nibble", swapped_nibble},
    {"wrong scale column", wrong_scale_column},
    {"swallowed NaN", swallowed_nan},
    {"missing barrier", missing_barrier},
    {"write past the end", write_past_the_end},
    {"input overwritten", input_overwritten},
};

Status run_current(const Call& call) { return g.mutant(call); }

}  // namespace

std::vector<std::string> mutant_names() {
  std::vector<std::string> names;
  for (const Mutant& mutant : kMutants) names.emplace_back(mutant.name);
  return names;
}

namespace {

std::vector<MutantVerdict> verdicts_on(const Op& op, const Impl& impl, const CheckOptions& options,
                                       Memory& memory) {
  std::vector<MutantVerdict> verdicts;
  for (const Mutant& mutant : kMutants) {
    g = {.op = &op, .impl = &impl, .memory = &memory, .mutant = mutant.run};
    Op mutated = op;
    mutated.impls = {impl, op.reference()};
    mutated.impls[0].run = run_current;
    CheckOptions quick = options;
    quick.impl = impl.id;
    quick.launch = launch_name(Launch::kDefault);  // a graph would record the device's part only
    quick.few_variants = true;
    quick.until_failure = true;
    CheckReport report;
    check_op(mutated, quick, report);
    MutantVerdict verdict{op.spec->name, impl.id, mutant.name, g.applied, !report.ok(), ""};
    if (verdict.caught) verdict.by = report.failures[0].what;
    verdicts.push_back(verdict);
  }
  g = {};
  return verdicts;
}

}  // namespace

// Of the first implementation there that takes any of the cases.
std::vector<MutantVerdict> check_mutants(const Op& op, const CheckOptions& options) {
  std::vector<MutantVerdict> verdicts;
  Memory& memory = options.memory != nullptr ? *options.memory : host_memory();
  for (const Impl& impl : std::span(op.impls).first(op.impls.size() - 1)) {
    if (impl.device != memory.device().type) continue;
    if (!options.impl.empty() && options.impl != impl.id) continue;
    verdicts = verdicts_on(op, impl, options, memory);
    const auto applies = [](const MutantVerdict& verdict) { return verdict.applies; };
    if (std::any_of(verdicts.begin(), verdicts.end(), applies)) break;
  }
  return verdicts;
}

}  // namespace pestle::harness
