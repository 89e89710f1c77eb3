#include "harness/trial.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "core/dispatch.h"
#include "harness/data.h"
#include "harness/sample.h"

namespace pestle::harness {
namespace {

// Two patterns, so that a byte which was never written can't look right twice.
constexpr uint8_t kPoison = 0xA5;
constexpr uint8_t kOtherPoison = 0x5B;
// Two repeats at least; after so long no more: slow kernels on big cases.
constexpr double kSecondsOfRepeats = 2;
constexpr int64_t kKeptInput = int64_t{1} << 20;  // bytes
// Between the inputs' seeds; all inputs have the flavour of the case's seed.
constexpr uint64_t kSeedsApart = 3000;
constexpr uint64_t kPositionsApart = 1000000;  // of lists
static_assert(kSeedsApart % kSpecialFlavours == 0 && kPositionsApart % kSpecialFlavours == 0);

TensorView workspace_shape(int64_t bytes) { return make_view(nullptr, DType::kU8, 1, &bytes); }

}  // namespace

Result<Trial> Trial::make(const Op& op, const Case& row, uint64_t seed, Memory& memory) {
  Trial trial;
  trial.op_ = &op;
  trial.text_ = row.text;
  trial.dist_ = row.dist;
  trial.seed_ = seed;
  trial.memory_ = &memory;
  auto call = call_from_text(op, row.text, memory.device().type);
  PESTLE_TRY(call.status());
  trial.call_ = std::move(call.value());
  trial.slots_ = slots_of(*op.spec, trial.call_.values);
  for (const Slot& slot : trial.slots_) {
    const Arg& arg = op.spec->args[slot.arg];
    const TensorView& t = tensor_at(trial.call_.values, slot);
    const bool known = !trial.nan_args_.empty() && trial.nan_args_.back() == slot.arg;
    if (arg.role == Role::kInput && !known && are_values(meaning_of(arg, t.dtype))) {
      trial.nan_args_.push_back(slot.arg);
    }
  }
  PESTLE_TRY(trial.find_codes());
  return trial;
}

bool Trial::is_output(size_t arg) const {
  return op_->spec->args[arg].role == Role::kOutput && call_.values[arg].present;
}

bool Trial::is_bounded_output(size_t arg) const {
  return is_output(arg) && !op_->spec->args[arg].bound.exact;
}

int64_t Trial::memory_needed(bool sampled) const {
  int64_t total = 0;
  for (const Slot& slot : slots_) {
    const TensorView& t = tensor_at(call_.values, slot);
    // The tensor itself; for outputs the truth, and a float64 copy while it is computed, or for
    // inputs a copy that samples are taken from.
    total += size_bytes(t);
    if (is_bounded_output(slot.arg) && !sampled)
      total += numel(t) * 8 * 3;
    else if (is_output(slot.arg) != is_bounded_output(slot.arg) || sampled)
      total += size_bytes(t);
  }
  return total;
}

bool Trial::can_run_in_place() const {
  bool any = false;
  for (size_t i = 0; i < call_.values.size(); ++i) {
    const Arg& arg = op_->spec->args[i];
    if (!is_output(i) || !arg.alias[0] || arg.kind != Kind::kTensor) continue;
    const Value& other = call_.values[static_cast<size_t>(find_arg(*op_->spec, arg.alias))];
    const TensorView& t = call_.values[i].tensor;
    if (!other.present || other.tensor.dtype != t.dtype || other.tensor.rank != t.rank ||
        !std::equal(t.shape, t.shape + t.rank, other.tensor.shape)) {
      return false;
    }
    any = true;
  }
  return any;
}

int64_t Trial::device_memory_needed() const {
  int64_t total = 0;
  for (const Slot& slot : slots_) total += size_bytes(tensor_at(call_.values, slot));
  return total;
}

Result<Trial::Placed> Trial::place(Memory& memory, Layout layout, bool in_place,
                                   bool bounded_as_f64) const {
  Placed placed;
  placed.values = OwnValues(call_.values);
  for (const Slot& slot : slots_) {
    const Arg& arg = op_->spec->args[slot.arg];
    TensorView& view = placed.values.at(slot);
    if (in_place && is_output(slot.arg) && arg.alias[0]) {
      // Contracts list inputs before their outputs.
      const auto input = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& other) {
        return op_->spec->args[other.arg].name == std::string_view(arg.alias);
      });
      const auto at = static_cast<size_t>(input - slots_.begin());
      if (at >= placed.owner.size()) {
        return Status{Code::kInternal, std::string(op_->spec->name) + ": " + arg.name +
                                           " comes before the input that it may replace"};
      }
      placed.owner.push_back(placed.owner[at]);
    } else {
      TensorView shape = view;
      if (bounded_as_f64 && is_bounded_output(slot.arg)) shape.dtype = DType::kF64;
      auto tensor = TestTensor::make(memory, shape, layout);
      PESTLE_TRY(tensor.status());
      placed.owner.push_back(placed.tensors.size());
      placed.tensors.push_back(std::move(tensor.value()));
    }
    view = placed.tensors[placed.owner.back()].view();
  }
  placed.call = call_.call;
  placed.call.args = placed.values.span();
  return placed;
}

Status Trial::place_workspace(Memory& memory, int64_t bytes, Placed& placed) const {
  // Kept between runs: a recorded call knows its address.
  if (!placed.workspace || size_bytes(placed.workspace->view()) != bytes) {
    auto workspace = TestTensor::make(memory, workspace_shape(bytes), Layout::kContiguous);
    PESTLE_TRY(workspace.status());
    placed.workspace = std::make_unique<TestTensor>(std::move(workspace.value()));
  }
  placed.call.workspace = placed.workspace->view().data;
  placed.call.workspace_bytes = bytes;
  return {};
}

// In row-major order.
void Trial::fill_input(const Slot& slot, const TensorView& shape, void* elements) const {
  const Meaning meaning = meaning_of(op_->spec->args[slot.arg], shape.dtype);
  // One argument at a time has kNanFlavour's NaN: its sums would hide another's.
  const bool others = dist_ == Dist::kSpecial && seed_ % kSpecialFlavours == kNanFlavour &&
                      are_values(meaning) && !nan_args_.empty() &&
                      nan_args_[seed_ / kSpecialFlavours % nan_args_.size()] != slot.arg;
  fill(elements, shape.dtype, numel(shape), meaning, others ? Dist::kNormal : dist_,
       seed_ + (slot.arg + 1) * kSeedsApart + slot.position * kPositionsApart);
}

const TestTensor& Trial::tensor_of(const Placed& placed, size_t arg) const {
  size_t s = 0;
  while (slots_[s].arg != arg) ++s;
  return placed.tensors[placed.owner[s]];
}

// Poison everywhere, then fresh inputs. Large inputs that the last run may not have changed, and
// did not, are left as they are.
void Trial::reset(Placed& placed, uint8_t poison, bool again) const {
  const std::vector<bool> written = written_tensors(placed);
  std::vector<bool> holds_input(placed.tensors.size(), false);
  for (size_t s = 0; s < slots_.size(); ++s) {
    if (op_->spec->args[slots_[s].arg].role != Role::kInput) continue;
    const size_t t = placed.owner[s];
    TestTensor& tensor = placed.tensors[t];
    holds_input[t] = true;
    if (again && !written[t] && tensor.region().bytes > kKeptInput) continue;
    const TensorView& view = tensor.host_view();
    const bool direct = is_contiguous(view);
    std::vector<uint8_t> scratch(direct ? 0 : static_cast<size_t>(size_bytes(view)));
    void* elements = direct ? view.data : scratch.data();
    tensor.poison(poison);
    fill_input(slots_[s], view, elements);
    tensor.write(elements);
    tensor.upload();
  }
  for (size_t t = 0; t < placed.tensors.size(); ++t) {
    if (!holds_input[t]) placed.tensors[t].poison_in_place(poison);
  }
}

void Trial::keep_outputs(Placed& placed, bool bounded, std::vector<uint8_t> Truth::Output::*kept) {
  for (size_t s = 0; s < slots_.size(); ++s) {
    if (!is_output(slots_[s].arg) || is_bounded_output(slots_[s].arg) != bounded) continue;
    const TestTensor& tensor = placed.tensors[placed.owner[s]];
    std::vector<uint8_t> scratch;
    const auto* elements = static_cast<const uint8_t*>(tensor.read(scratch));
    (truth_.outputs[s].*kept).assign(elements, elements + size_bytes(tensor.host_view()));
  }
}

Status Trial::run_reference(bool magnitudes) {
  auto placed = place(host_memory(), Layout::kContiguous, false, true);
  PESTLE_TRY(placed.status());
  Placed& p = placed.value();
  reset(p, kPoison);
  p.call.sum_magnitudes = magnitudes;
  auto workspace_bytes = op_->contract.evaluate(op_->reference().workspace, call_.scope);
  PESTLE_TRY(workspace_bytes.status());
  PESTLE_TRY(place_workspace(host_memory(), workspace_bytes.value(), p));
  PESTLE_TRY(op_->reference().run(p.call));
  if (!magnitudes) keep_outputs(p, false, &Truth::Output::values);
  keep_outputs(p, true, magnitudes ? &Truth::Output::magnitude : &Truth::Output::values);
  return {};
}

Status Trial::read_bounds(bool& any) {
  truth_.outputs.resize(slots_.size());
  any = false;
  for (size_t s = 0; s < slots_.size(); ++s) {
    if (!is_bounded_output(slots_[s].arg)) continue;
    const Bound& bound = op_->spec->args[slots_[s].arg].bound;
    // Evaluated over all positions, k is their sum.
    if (slots_[s].in_list) return unsupported("lists of outputs with a bound are not compared yet");
    auto k = op_->contract.evaluate(bound.k, call_.scope);
    PESTLE_TRY(k.status());
    truth_.outputs[s].c = bound.c;
    truth_.outputs[s].k = k.value();
    any = true;
  }
  return {};
}

Status Trial::compute_truth() {
  if (with_output_) PESTLE_TRY(with_output_->compute_truth());
  bool bounded = false;
  PESTLE_TRY(read_bounds(bounded));
  PESTLE_TRY(run_reference(false));
  return bounded ? run_reference(true) : Status();
}

void Trial::compare(const Placed& placed, Outcome& outcome) const {
  for (size_t s = 0; s < slots_.size(); ++s) {
    const size_t i = slots_[s].arg;
    if (!is_output(i) || is_codes(i)) continue;
    const TestTensor& tensor = placed.tensors[placed.owner[s]];
    const Truth::Output& truth = truth_.outputs[s];
    std::vector<uint8_t> scratch;
    const void* got = tensor.read(scratch);
    const std::string own_name = slot_name(*op_->spec, slots_[s]);
    const char* name = own_name.c_str();
    const auto* values = reinterpret_cast<const double*>(truth.values.data());
    const auto* magnitude = reinterpret_cast<const double*>(truth.magnitude.data());
    Comparison result;
    if (truth.sampled) {
      TensorView shape = tensor.host_view();
      const std::vector<uint8_t> taken = take_rows(got, truth.rows, shape);
      result = compare_bounded(name, shape, taken.data(), values, magnitude, truth.c, truth.k);
      if (!result.ok()) result.what += ", counted within the sampled rows";
    } else if (is_bounded_output(i)) {
      result = compare_bounded(name, tensor.view(), got, values, magnitude, truth.c, truth.k);
    } else {
      result = compare_exact(name, tensor.view(), got, truth.values.data());
    }
    outcome.worst_bound = std::max(outcome.worst_bound, result.worst);
    if (!result.ok()) outcome.faults.push_back(result.what);
  }
}

std::vector<bool> Trial::written_tensors(const Placed& placed) const {
  std::vector<bool> written(placed.tensors.size(), false);
  for (size_t s = 0; s < slots_.size(); ++s) {
    if (is_output(slots_[s].arg)) written[placed.owner[s]] = true;
  }
  return written;
}

bool Trial::accepted(const Impl& impl, Placed& placed, int64_t& workspace_bytes,
                     Outcome& outcome) const {
  auto choice = choose(*op_, placed.call, impl.id);
  if (choice.ok()) {
    workspace_bytes = choice.value().workspace_bytes;
    return true;
  }
  outcome.refused = choice.status().code() == Code::kUnsupported;
  outcome.reason = choice.status().message();
  if (!outcome.refused) {
    outcome.faults.push_back("a call within the contract was not accepted: " + outcome.reason);
  }
  return false;
}

Status Trial::call_impl(const Impl& impl, Launch launch, Placed& placed) const {
  std::vector<Region> regions;
  for (const TestTensor& tensor : placed.tensors) regions.push_back(tensor.region());
  regions.push_back(placed.workspace->region());
  return memory_->call(launch, regions, placed.recording, [&](void* stream) {
    placed.call.stream = stream;
    return impl.run(placed.call);
  });
}

// What was written and may not have been.
void Trial::find_changes(Placed& placed, uint8_t poison, const std::vector<uint64_t>& before,
                         Outcome& outcome) {
  const std::vector<bool> written = written_tensors(placed);
  if (placed.workspace->erase_and_find_stray(poison).found) {
    outcome.faults.push_back("wrote outside its workspace of " +
                             std::to_string(placed.call.workspace_bytes) + " bytes");
  }
  for (size_t s = 0; s < slots_.size(); ++s) {
    const size_t t = placed.owner[s];
    TestTensor& tensor = placed.tensors[t];
    const std::string name = slot_name(*op_->spec, slots_[s]);
    if (!written[t]) {
      if (tensor.hash_in_place() == before[t]) continue;
      outcome.faults.push_back("input " + name + " was changed");
    } else if (is_output(slots_[s].arg)) {
      const TestTensor::Stray stray = tensor.erase_and_find_stray(poison);
      if (!stray.found) continue;
      outcome.faults.push_back(
          std::string("wrote ") + (stray.in_guard ? "outside " : "between the elements of ") +
          name + ", at byte " + std::to_string(stray.offset) + " from its first element");
    }
  }
}

// To the host: of the workspace its guards, of big outputs the rows that will be compared, unless
// all of the output is quantised there again.
void Trial::bring_results(Placed& placed) const {
  const bool whole = compares_codes();
  for (size_t s = 0; s < slots_.size(); ++s) {
    const size_t i = slots_[s].arg;
    if (!is_output(i)) continue;
    TestTensor& tensor = placed.tensors[placed.owner[s]];
    if (truth_.outputs[s].sampled && !is_codes(i) && !whole)
      tensor.download_rows(truth_.outputs[s].rows);
    else
      tensor.download();
  }
  placed.workspace->download_guards();
}

uint64_t Trial::run_once(Placed& placed, const Impl& impl, Launch launch, uint8_t poison,
                         Outcome& outcome) {
  int64_t workspace_bytes = 0;
  if (!accepted(impl, placed, workspace_bytes, outcome)) return 0;
  reset(placed, poison, poison == kOtherPoison);
  if (Status status = place_workspace(*memory_, workspace_bytes, placed); !status.ok()) {
    outcome.faults.push_back(status.message());
    return 0;
  }
  placed.workspace->poison_in_place(poison);

  const std::vector<bool> written = written_tensors(placed);
  std::vector<uint64_t> before(placed.tensors.size());
  for (size_t t = 0; t < before.size(); ++t) {
    if (!written[t]) before[t] = placed.tensors[t].hash_in_place(true);
  }
  const Status status = call_impl(impl, launch, placed);
  bring_results(placed);
  if (!status.ok()) {
    outcome.faults.push_back("returned " + std::string(code_name(status.code())) + ": " +
                             status.message());
    return 0;
  }
  compare(placed, outcome);
  compare_codes(placed, outcome);
  outcome.codes_hash = hash_codes(placed);
  uint64_t hash = 0;
  for (size_t s = 0; s < slots_.size(); ++s) {
    if (!is_output(slots_[s].arg)) continue;
    hash = hash * 31 + placed.tensors[placed.owner[s]].hash_elements();
  }
  find_changes(placed, poison, before, outcome);
  return bits_may_vary(placed.call) ? 0 : hash;
}

bool Trial::bits_may_vary(const Call& call) const {
  for (size_t i = 0; i < op_->spec->args.size(); ++i) {
    if (std::string_view(op_->spec->args[i].name) == "deterministic")
      return call.integer(static_cast<int>(i)) == 0;
  }
  return false;
}

Trial::Outcome Trial::run(const Impl& impl, const Variant& variant) {
  Outcome outcome;
  auto placed = place(*memory_, variant.layout, variant.in_place, false);
  if (!placed.ok()) {
    outcome.faults.push_back(placed.status().message());
    return outcome;
  }
  outcome.hash = run_once(placed.value(), impl, variant.launch, kPoison, outcome);
  if (outcome.refused || !outcome.faults.empty()) return outcome;
  const uint64_t again = run_once(placed.value(), impl, variant.launch, kOtherPoison, outcome);
  if (outcome.faults.empty() && again != outcome.hash) {
    outcome.faults.push_back("two runs on the same inputs gave different bits");
  }
  if (outcome.faults.empty()) run_with_kept_output(impl, variant, outcome);
  return outcome;
}

Trial::Outcome Trial::repeat(const Impl& impl, int runs) {
  Outcome outcome;
  auto made = place(*memory_, Layout::kContiguous, false, false);
  int64_t workspace_bytes = 0;
  if (!made.ok() || !accepted(impl, made.value(), workspace_bytes, outcome)) return outcome;
  Placed& placed = made.value();
  if (!place_workspace(*memory_, workspace_bytes, placed).ok()) return outcome;
  reset(placed, kPoison);
  const std::vector<bool> written = written_tensors(placed);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < runs; ++i) {
    for (size_t t = 0; t < written.size(); ++t) {
      const Region region = placed.tensors[t].region();
      if (written[t]) memory_->fill(region.memory, kPoison, region.bytes);
    }
    const Status status = call_impl(impl, Launch::kDefault, placed);
    if (!status.ok()) outcome.faults.push_back(status.message());
    uint64_t hash = 0;
    for (size_t t = 0; t < written.size(); ++t) {
      const Region region = placed.tensors[t].region();
      if (written[t]) hash = hash * 31 + memory_->hash(region.memory, region.bytes);
    }
    if (i == 0) outcome.hash = hash;
    if (hash != outcome.hash && !bits_may_vary(placed.call)) {
      outcome.faults.push_back("run " + std::to_string(i + 1) + " of " + std::to_string(runs) +
                               " on the same inputs gave other bits than the first");
    }
    if (!outcome.faults.empty()) return outcome;
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    if (i > 0 && spent.count() > kSecondsOfRepeats) break;
  }
  return outcome;
}

}  // namespace pestle::harness
