#include "harness/trial.h"

#include <algorithm>
#include <cstring>

#include "core/dispatch.h"
#include "harness/data.h"

namespace pestle::harness {
namespace {

// Two patterns, so that a byte which was never written can't look right twice.
constexpr uint8_t kPoison = 0xA5;
constexpr uint8_t kOtherPoison = 0x5B;

TensorView workspace_shape(int64_t bytes) { return make_view(nullptr, DType::kU8, 1, &bytes); }

}  // namespace

Result<Trial> Trial::make(const Op& op, const Case& row, uint64_t seed, Memory& memory) {
  Trial trial;
  trial.op_ = &op;
  trial.dist_ = row.dist;
  trial.seed_ = seed;
  trial.memory_ = &memory;
  auto call = call_from_text(op, row.text, memory.device().type);
  PESTLE_TRY(call.status());
  trial.call_ = std::move(call.value());
  for (const Arg& arg : op.spec->args) {
    if (arg.kind == Kind::kTensorList) {
      return unsupported(std::string(op.spec->name) + ": " + arg.name +
                         " is a list of tensors, which cases can't describe yet");
    }
  }
  return trial;
}

bool Trial::is_output(size_t arg) const {
  return op_->spec->args[arg].role == Role::kOutput && call_.values[arg].present;
}

bool Trial::is_bounded_output(size_t arg) const {
  return is_output(arg) && !op_->spec->args[arg].bound.exact;
}

int64_t Trial::memory_needed() const {
  int64_t total = 0;
  for (size_t i = 0; i < call_.values.size(); ++i) {
    if (op_->spec->args[i].role == Role::kAttribute || !call_.values[i].present) continue;
    const TensorView& t = call_.values[i].tensor;
    // The tensor itself; for outputs the truth, and a float64 copy while it is computed.
    total += size_bytes(t);
    if (is_bounded_output(i))
      total += numel(t) * 8 * 3;
    else if (is_output(i))
      total += size_bytes(t);
  }
  return total;
}

bool Trial::can_run_in_place() const {
  bool any = false;
  for (size_t i = 0; i < call_.values.size(); ++i) {
    const Arg& arg = op_->spec->args[i];
    if (!is_output(i) || !arg.alias[0]) continue;
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

Result<Trial::Placed> Trial::place(Layout layout, bool in_place, bool bounded_as_f64) const {
  Placed placed;
  placed.values = call_.values;
  placed.owner.assign(placed.values.size(), -1);
  for (size_t i = 0; i < placed.values.size(); ++i) {
    const Arg& arg = op_->spec->args[i];
    Value& value = placed.values[i];
    if (arg.role == Role::kAttribute || !value.present) continue;
    if (in_place && is_output(i) && arg.alias[0]) {
      const auto input = static_cast<size_t>(find_arg(*op_->spec, arg.alias));
      placed.owner[i] = placed.owner[input];  // contracts list inputs before their outputs
    } else {
      TensorView shape = value.tensor;
      if (bounded_as_f64 && is_bounded_output(i)) shape.dtype = DType::kF64;
      auto tensor = TestTensor::make(*memory_, shape, layout);
      PESTLE_TRY(tensor.status());
      placed.owner[i] = static_cast<int>(placed.tensors.size());
      placed.tensors.push_back(std::move(tensor.value()));
    }
    if (placed.owner[i] < 0) {
      return Status{Code::kInternal, std::string(op_->spec->name) + ": " + arg.name +
                                         " comes before the input that it may replace"};
    }
    value.tensor = placed.tensors[static_cast<size_t>(placed.owner[i])].view();
  }
  placed.call = call_.call;
  placed.call.args = placed.values;
  return placed;
}

// Poison everywhere, then fresh inputs.
void Trial::reset(Placed& placed, uint8_t poison) const {
  for (TestTensor& tensor : placed.tensors) tensor.poison(poison);
  for (size_t i = 0; i < placed.values.size(); ++i) {
    const Arg& arg = op_->spec->args[i];
    if (arg.role != Role::kInput || !placed.values[i].present) continue;
    TestTensor& tensor = placed.tensors[static_cast<size_t>(placed.owner[i])];
    const TensorView& view = tensor.host_view();
    const bool direct = is_contiguous(view);
    std::vector<uint8_t> scratch(direct ? 0 : static_cast<size_t>(size_bytes(view)));
    void* elements = direct ? view.data : scratch.data();
    fill(elements, view.dtype, numel(view), meaning_of(arg, view.dtype), dist_,
         seed_ + (static_cast<uint64_t>(i) + 1) * 1000 * kSpecialFlavours);
    tensor.write(elements);
  }
  for (TestTensor& tensor : placed.tensors) tensor.upload();
}

Status Trial::run_reference(bool magnitudes) {
  auto placed = place(Layout::kContiguous, false, true);
  PESTLE_TRY(placed.status());
  Placed& p = placed.value();
  reset(p, kPoison);
  p.call.sum_magnitudes = magnitudes;
  auto workspace_bytes = op_->contract.evaluate(op_->reference().workspace, call_.scope);
  PESTLE_TRY(workspace_bytes.status());
  auto workspace =
      TestTensor::make(*memory_, workspace_shape(workspace_bytes.value()), Layout::kContiguous);
  PESTLE_TRY(workspace.status());
  p.call.workspace = workspace.value().view().data;
  p.call.workspace_bytes = workspace_bytes.value();
  PESTLE_TRY(op_->reference().run(p.call));
  for (size_t i = 0; i < p.values.size(); ++i) {
    if (!is_output(i) || (magnitudes && !is_bounded_output(i))) continue;
    TestTensor& tensor = p.tensors[static_cast<size_t>(p.owner[i])];
    tensor.download();
    std::vector<uint8_t> scratch;
    const auto* elements = static_cast<const uint8_t*>(tensor.read(scratch));
    auto& kept = magnitudes ? truth_.outputs[i].magnitude : truth_.outputs[i].values;
    kept.assign(elements, elements + size_bytes(tensor.host_view()));
  }
  return {};
}

Status Trial::compute_truth() {
  truth_.outputs.resize(call_.values.size());
  bool bounded = false;
  for (size_t i = 0; i < call_.values.size(); ++i) {
    if (!is_bounded_output(i)) continue;
    const Bound& bound = op_->spec->args[i].bound;
    auto k = op_->contract.evaluate(bound.k, call_.scope);
    PESTLE_TRY(k.status());
    truth_.outputs[i].c = bound.c;
    truth_.outputs[i].k = k.value();
    bounded = true;
  }
  PESTLE_TRY(run_reference(false));
  return bounded ? run_reference(true) : Status();
}

void Trial::compare(const Placed& placed, Outcome& outcome) const {
  for (size_t i = 0; i < placed.values.size(); ++i) {
    if (!is_output(i)) continue;
    const TestTensor& tensor = placed.tensors[static_cast<size_t>(placed.owner[i])];
    const Truth::Output& truth = truth_.outputs[i];
    std::vector<uint8_t> scratch;
    const void* got = tensor.read(scratch);
    const char* name = op_->spec->args[i].name;
    const auto* values = reinterpret_cast<const double*>(truth.values.data());
    const auto* magnitude = reinterpret_cast<const double*>(truth.magnitude.data());
    const Comparison result =
        is_bounded_output(i)
            ? compare_bounded(name, tensor.view(), got, values, magnitude, truth.c, truth.k)
            : compare_exact(name, tensor.view(), got, truth.values.data());
    outcome.worst_bound = std::max(outcome.worst_bound, result.worst);
    if (!result.ok()) outcome.faults.push_back(result.what);
  }
}

uint64_t Trial::run_once(Placed& placed, const Impl& impl, uint8_t poison, Outcome& outcome) {
  reset(placed, poison);
  auto choice = choose(*op_, placed.call, impl.id);
  if (!choice.ok()) {
    if (choice.status().code() == Code::kUnsupported) {
      outcome.refused = true;
      outcome.reason = choice.status().message();
    } else {
      outcome.faults.push_back("a call within the contract was not accepted: " +
                               choice.status().message());
    }
    return 0;
  }
  auto workspace = TestTensor::make(*memory_, workspace_shape(choice.value().workspace_bytes),
                                    Layout::kContiguous);
  if (!workspace.ok()) {
    outcome.faults.push_back(workspace.status().message());
    return 0;
  }
  workspace.value().poison(poison);
  workspace.value().upload();
  placed.call.workspace = workspace.value().view().data;
  placed.call.workspace_bytes = choice.value().workspace_bytes;

  std::vector<bool> written(placed.tensors.size(), false);
  for (size_t i = 0; i < placed.values.size(); ++i) {
    if (is_output(i)) written[static_cast<size_t>(placed.owner[i])] = true;
  }
  std::vector<uint64_t> before(placed.tensors.size());
  for (size_t t = 0; t < before.size(); ++t) {
    if (!written[t]) before[t] = placed.tensors[t].hash_everything();
  }
  const Status status = impl.run(placed.call);
  for (TestTensor& tensor : placed.tensors) tensor.download();
  workspace.value().download();
  if (!status.ok()) {
    outcome.faults.push_back("returned " + std::string(code_name(status.code())) + ": " +
                             status.message());
    return 0;
  }

  uint64_t hash = 0;
  if (workspace.value().erase_and_find_stray(poison).found) {
    outcome.faults.push_back("wrote outside its workspace of " +
                             std::to_string(choice.value().workspace_bytes) + " bytes");
  }
  compare(placed, outcome);
  for (size_t i = 0; i < placed.values.size(); ++i) {
    if (placed.owner[i] < 0) continue;
    const auto t = static_cast<size_t>(placed.owner[i]);
    TestTensor& tensor = placed.tensors[t];
    const char* name = op_->spec->args[i].name;
    if (!written[t]) {
      if (tensor.hash_everything() == before[t]) continue;
      outcome.faults.push_back(std::string("input ") + name + " was changed");
    } else if (is_output(i)) {
      hash = hash * 31 + tensor.hash_elements();
      const TestTensor::Stray stray = tensor.erase_and_find_stray(poison);
      if (!stray.found) continue;
      outcome.faults.push_back(
          std::string("wrote ") + (stray.in_guard ? "outside " : "between the elements of ") +
          name + ", at byte " + std::to_string(stray.offset) + " from its first element");
    }
  }
  return hash;
}

Trial::Outcome Trial::run(const Impl& impl, const Variant& variant) {
  Outcome outcome;
  auto placed = place(variant.layout, variant.in_place, false);
  if (!placed.ok()) {
    outcome.faults.push_back(placed.status().message());
    return outcome;
  }
  outcome.hash = run_once(placed.value(), impl, kPoison, outcome);
  if (outcome.refused || !outcome.faults.empty()) return outcome;
  const uint64_t again = run_once(placed.value(), impl, kOtherPoison, outcome);
  if (outcome.faults.empty() && again != outcome.hash) {
    outcome.faults.push_back("two runs on the same inputs gave different bits");
  }
  return outcome;
}

}  // namespace pestle::harness
