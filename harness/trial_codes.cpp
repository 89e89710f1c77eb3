// Outputs that are another op's codes of this op's own output (core/codes.h): that op
// says what they must be, from the output that the implementation under test gave.
#include <cstring>

#include "core/codes.h"
#include "core/dispatch.h"
#include "core/text.h"
#include "harness/trial.h"

namespace pestle::harness {
namespace {

// Beyond this many elements the best CPU implementation stands in for the reference.
constexpr int64_t kForReference = int64_t{1} << 20;

struct Pair {
  std::string_view name, value;
};

// "a=b c=d"
std::vector<Pair> pairs_of(std::string_view text) {
  std::vector<Pair> pairs;
  for (std::string_view item : split(text, ' ')) {
    const size_t equals = item.find('=');
    if (equals != std::string_view::npos) {
      pairs.push_back({item.substr(0, equals), item.substr(equals + 1)});
    }
  }
  return pairs;
}

// "bf16[8,4096]" with the leading dimensions made one.
std::string flat_text(const TensorView& t) {
  std::string text = std::string(dtype_name(t.dtype)) + "[";
  if (t.rank == 0) return text + "]";
  const int64_t last = t.shape[t.rank - 1];
  if (t.rank == 1) return text + std::to_string(last) + "]";
  int64_t lead = 1;
  for (int d = 0; d + 1 < t.rank; ++d) lead *= t.shape[d];
  return text + std::to_string(lead) + "," + std::to_string(last) + "]";
}

std::string attribute_text(const Arg& arg, const Value& value) {
  if (arg.kind == Kind::kChoice) return std::string(choice_label(arg.choices, value.i));
  if (arg.kind == Kind::kFloat) return std::to_string(value.f);
  return std::to_string(value.i);
}

}  // namespace

Status Trial::find_codes() {
  std::string_view keep;
  for (size_t i = 0; i < op_->spec->args.size(); ++i) {
    const Arg& arg = op_->spec->args[i];
    if (!has_codes_rule(arg) || !call_.values[i].present) continue;
    const Arg& by = op_->spec->args[static_cast<size_t>(find_arg(*op_->spec, arg.by))];
    const int64_t choice = call_.values[static_cast<size_t>(&by - &op_->spec->args[0])].i;
    const auto parts = split(arg.bound.k, ';');
    keep = parts[0];
    for (std::string_view part : parts) {
      const size_t colon = part.find(':');
      if (colon == std::string_view::npos) continue;
      if (trim(part.substr(0, colon)) == choice_label(by.choices, choice)) {
        codes_ = trim(part.substr(colon + 1));
      }
    }
    if (codes_.empty() || find_op(coder()) == nullptr) {
      return {Code::kInternal, std::string(arg.name) + ": its rule names no op for " +
                                   std::string(choice_label(by.choices, choice))};
    }
  }
  for (const Pair& pair : pairs_of(codes_)) {
    const int arg = find_arg(*op_->spec, pair.value);
    if (arg < 0 || op_->spec->args[static_cast<size_t>(arg)].role != Role::kOutput) continue;
    if (call_.values[static_cast<size_t>(arg)].present) continue;
    const std::string text = text_ + " " + std::string(keep) + "=1";
    auto made = make(*op_, {.text = text.c_str(), .dist = dist_}, seed_, *memory_);
    PESTLE_TRY(made.status());
    with_output_ = std::make_unique<Trial>(std::move(made.value()));
  }
  return {};
}

std::string Trial::coder() const { return codes_.substr(0, codes_.find(' ')); }

bool Trial::is_codes(size_t arg) const { return has_codes_rule(op_->spec->args[arg]); }

uint64_t Trial::hash_codes(const Placed& placed) const {
  uint64_t hash = 0;
  for (size_t i = 0; i < placed.values.size(); ++i) {
    if (!is_output(i) || !is_codes(i)) continue;
    hash = hash * 31 + tensor_of(placed, i).hash_elements();
  }
  return hash;
}

void Trial::compare_codes(const Placed& placed, Outcome& outcome) const {
  if (!compares_codes()) return;
  const auto fault = [&](const std::string& what) {
    outcome.faults.push_back(coder() + " of its own output: " + what);
  };
  const Op& other = *find_op(coder());
  std::string text;
  std::vector<std::vector<uint8_t>> memory(other.spec->args.size());
  for (const Pair& pair : pairs_of(codes_)) {
    const int own = find_arg(*op_->spec, pair.value);
    const auto at = static_cast<size_t>(own);
    std::string value(pair.value);
    if (own >= 0 && op_->spec->args[at].role == Role::kAttribute) {
      value = attribute_text(op_->spec->args[at], placed.values[at]);
    } else if (own >= 0) {
      if (!placed.values[at].present) continue;
      const TestTensor& tensor = tensor_of(placed, at);
      std::vector<uint8_t> scratch;
      const auto* data = static_cast<const uint8_t*>(tensor.read(scratch));
      memory[static_cast<size_t>(find_arg(*other.spec, pair.name))].assign(
          data, data + size_bytes(tensor.host_view()));
      value = flat_text(tensor.view());
    }
    text += std::string(text.empty() ? "" : " ") + std::string(pair.name) + "=" + value;
  }
  auto made = call_from_text(other, text, DeviceType::kCpu);
  if (!made.ok()) return fault(made.status().message());
  TextCall& call = made.value();
  int64_t most = 0;
  for (size_t i = 0; i < call.values.size(); ++i) {
    TensorView& t = call.values[i].tensor;
    if (other.spec->args[i].role == Role::kAttribute || !call.values[i].present) continue;
    most = std::max(most, numel(t));
    if (other.spec->args[i].role == Role::kOutput) {
      memory[i].resize(static_cast<size_t>(size_bytes(t)) + 1);
    }
    memory[i].resize(memory[i].size() + 1);  // an empty tensor has an address, too
    t.data = memory[i].data();
  }
  auto choice = choose(other, call.call, most <= kForReference ? other.reference().id : "");
  if (!choice.ok()) return fault(choice.status().message());
  std::vector<uint64_t> workspace(static_cast<size_t>(choice.value().workspace_bytes / 8 + 1));
  call.call.workspace = workspace.data();
  call.call.workspace_bytes = choice.value().workspace_bytes;
  const Status status = choice.value().impl->run(call.call);
  if (!status.ok()) return fault(status.message());
  for (size_t own = 0; own < placed.values.size(); ++own) {
    if (!is_output(own) || !is_codes(own)) continue;
    const char* name = op_->spec->args[own].name;
    const int theirs = find_arg(*other.spec, name);
    const TestTensor& tensor = tensor_of(placed, own);
    if (theirs < 0 || !call.values[static_cast<size_t>(theirs)].present ||
        size_bytes(call.values[static_cast<size_t>(theirs)].tensor) !=
            size_bytes(tensor.host_view())) {
      fault(std::string(name) + " has another size");
      continue;
    }
    std::vector<uint8_t> scratch;
    const Comparison result = compare_exact(name, tensor.host_view(), tensor.read(scratch),
                                            memory[static_cast<size_t>(theirs)].data());
    if (!result.ok()) fault(result.what);
  }
}

void Trial::run_with_kept_output(const Impl& impl, const Variant& variant, Outcome& outcome) {
  if (!with_output_) return;
  const Outcome kept = with_output_->run(impl, variant);
  const std::string with = " (with its output)";
  if (kept.refused) outcome.faults.push_back("refuses to give its output too: " + kept.reason);
  for (const std::string& fault : kept.faults) outcome.faults.push_back(fault + with);
  if (!kept.refused && kept.codes_hash != outcome.codes_hash) {
    outcome.faults.push_back("gives other codes when it gives its output too");
  }
}

}  // namespace pestle::harness
