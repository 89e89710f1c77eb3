// Expected results of cases that are too big for the reference to compute everything.
#include "core/dispatch.h"
#include "harness/data.h"
#include "harness/sample.h"
#include "harness/trial.h"

namespace pestle::harness {

Status Trial::run_best_on_host(std::string& how) {
  auto placed = place(host_memory(), Layout::kContiguous, false, false);
  PESTLE_TRY(placed.status());
  Placed& p = placed.value();
  reset(p, 0);
  auto choice = choose(*op_, p.call);
  PESTLE_TRY(choice.status());
  PESTLE_TRY(place_workspace(host_memory(), choice.value().workspace_bytes, p));
  PESTLE_TRY(choice.value().impl->run(p.call));
  keep_outputs(p, false, &Truth::Output::values);
  how = std::string("exact outputs by ") + choice.value().impl->id;
  return {};
}

Status Trial::sample_bounded(std::string& how) {
  std::vector<std::vector<uint8_t>> inputs(call_.values.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (op_->spec->args[i].role != Role::kInput || !call_.values[i].present) continue;
    const TensorView& shape = call_.values[i].tensor;
    inputs[i].resize(static_cast<size_t>(size_bytes(shape)));
    fill_input({.arg = i}, shape, inputs[i].data());
  }
  auto sampled = sample_call(*op_, text_, std::move(inputs), seed_);
  PESTLE_TRY(sampled.status());
  const SampledCall& sample = sampled.value();
  auto values = run_reference_on(*op_, sample.text, sample.inputs, false);
  PESTLE_TRY(values.status());
  auto magnitudes = run_reference_on(*op_, sample.text, sample.inputs, true);
  PESTLE_TRY(magnitudes.status());
  for (size_t s = 0; s < slots_.size(); ++s) {
    const size_t i = slots_[s].arg;
    if (!is_bounded_output(i)) continue;
    Truth::Output& truth = truth_.outputs[s];
    truth.values = std::move(values.value()[i]);
    truth.magnitude = std::move(magnitudes.value()[i]);
    truth.sampled = true;
    std::copy(std::begin(sample.rows[i].of), std::end(sample.rows[i].of), std::begin(truth.rows));
  }
  how += (how.empty() ? "" : "; ") + std::string("bounded outputs by float64 on sampled rows");
  return {};
}

Status Trial::compute_truth_of_big_case(std::string& how, const std::function<bool()>& whole_fits) {
  if (with_output_) PESTLE_TRY(with_output_->compute_truth_of_big_case(how, whole_fits));
  how.clear();
  bool bounded = false;
  bool exact = false;
  PESTLE_TRY(read_bounds(bounded));
  for (size_t i = 0; i < call_.values.size(); ++i)
    exact |= is_output(i) && !is_bounded_output(i) && !is_codes(i);
  if (bounded) {
    const Status sampled = sample_bounded(how);
    if (sampled.code() == Code::kUnsupported) {
      if (!whole_fits()) return {Code::kOutOfMemory, sampled.message()};
      how = "everything by the reference: " + sampled.message();
      return compute_truth();
    }
    PESTLE_TRY(sampled);
  }
  if (!exact) return {};
  std::string host;
  PESTLE_TRY(run_best_on_host(host));
  how = how.empty() ? host : host + "; " + how;
  return {};
}

}  // namespace pestle::harness
