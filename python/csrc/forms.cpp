#include "python/csrc/forms.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "core/call_text.h"
#include "core/text.h"

namespace pestle::torch {
namespace {

// A condition that decides over outputs, and the truth that one variant gives it.
struct Switch {
  std::string condition;
  bool by_default = false;  // with no optional input, all attributes at their defaults
  int presence_of = -1;     // the input it asks for: "has(x2)", "!has(scale)"
  int attribute = -1;       // the choice it compares: "mode == asymmetric"
  std::string label;
  std::string name;  // of the overload in which it is not as by default
};

Switch read_switch(const OpSpec& spec, const Arg& output, bool by_default) {
  Switch result;
  result.condition = output.present_if;
  result.by_default = by_default;
  const std::string_view text = trim(output.present_if);
  std::string_view inner = text.starts_with('!') ? trim(text.substr(1)) : text;
  if (inner.starts_with("has(") && inner.ends_with(')')) {
    inner = trim(inner.substr(4, inner.size() - 5));
    result.presence_of = find_arg(spec, inner);
    result.name = inner;
    return result;
  }
  const size_t equals = text.find("==");
  if (equals != std::string_view::npos) {
    const int attribute = find_arg(spec, trim(text.substr(0, equals)));
    const std::string_view label = trim(text.substr(equals + 2));
    if (attribute >= 0 && choice_index(spec.args[attribute].choices, label) >= 0) {
      result.attribute = attribute;
      result.label = result.name = label;
      return result;
    }
  }
  result.name = std::string("with_") + output.name;
  // Torch takes an overload whose name ends in _out for one that writes into an argument.
  if (result.name.ends_with("_out")) result.name += "put";
  return result;
}

std::vector<Value> default_values(const Op& op) {
  std::vector<Value> values(op.spec->args.size());
  set_default_attributes(*op.spec, values);
  return values;
}

std::vector<Switch> switches_of(const Op& op) {
  std::vector<Value> values = default_values(op);
  const Call call{.spec = op.spec, .args = values};
  std::vector<Switch> result;
  for (size_t i = 0; i < op.spec->args.size(); ++i) {
    const Arg& arg = op.spec->args[i];
    if (arg.role != Role::kOutput || !arg.present_if[0]) continue;
    const bool known = std::any_of(result.begin(), result.end(),
                                   [&](const Switch& s) { return s.condition == arg.present_if; });
    if (!known) result.push_back(read_switch(*op.spec, arg, op.contract.wanted(call, i)));
  }
  return result;
}

// A variant: bit s of `flipped` says that switch s is not as by default.
class FormWriter {
 public:
  FormWriter(const Op& op, const std::vector<Switch>& switches, unsigned flipped, FormKind kind)
      : op_(op), spec_(*op.spec), switches_(switches), flipped_(flipped) {
    form_.op = &op;
    form_.kind = kind;
    form_.defaults = default_values(op);
    apply_switches();
    for (size_t i = 0; i < spec_.args.size(); ++i) form_.lenience.push_back(lenience_of(i));
    form_.needs_workspace = std::any_of(op.impls.begin(), op.impls.end(), [](const Impl& impl) {
      return std::string_view(impl.workspace) != "0";
    });
  }

  bool has_no_output() const { return form_.outputs.empty(); }

  bool every_output_is_in_place() const {
    return std::all_of(form_.outputs.begin(), form_.outputs.end(),
                       [&](int output) { return spec_.args[output].alias[0] != 0; });
  }

  Form write() {
    if (form_.kind == FormKind::kInPlace) {
      for (int output : form_.outputs) {
        form_.aliases.push_back(find_arg(spec_, spec_.args[output].alias));
      }
    }
    for (bool optional : {false, true}) write_inputs(optional);
    keyword_only_ = true;
    write_attributes();
    if (form_.kind == FormKind::kOut) {
      for (int output : form_.outputs) {
        const Arg& arg = spec_.args[output];
        add(slot_type(arg, false), output, tensor_type(arg, true), "");
      }
    } else {
      write_dtypes();
    }
    form_.name = full_name();
    form_.schema = form_.name + "(" + arguments_ + ") -> " + returns();
    return std::move(form_);
  }

 private:
  bool holds(const Switch& s, size_t index) const {
    return s.by_default != ((flipped_ >> index & 1) != 0);
  }

  void apply_switches() {
    wanted_inputs_.assign(spec_.args.size(), 0);
    for (size_t s = 0; s < switches_.size(); ++s) {
      const bool is_flipped = flipped_ >> s & 1;
      const Switch& one = switches_[s];
      if (is_flipped) form_.variant += (form_.variant.empty() ? "" : "_") + one.name;
      if (one.presence_of >= 0) wanted_inputs_[one.presence_of] = is_flipped ? 1 : -1;
      if (is_flipped && one.attribute >= 0 && holds(one, s)) {
        form_.defaults[one.attribute].i =
            choice_index(spec_.args[one.attribute].choices, one.label);
      }
    }
    for (size_t i = 0; i < spec_.args.size(); ++i) {
      if (spec_.args[i].role == Role::kOutput && in_variant(spec_.args[i])) {
        form_.outputs.push_back(static_cast<int>(i));
      }
    }
  }

  bool in_variant(const Arg& output) const {
    for (size_t s = 0; s < switches_.size(); ++s) {
      if (switches_[s].condition == output.present_if) return holds(switches_[s], s);
    }
    return true;
  }

  Lenience lenience_of(size_t index) const {
    const Arg& arg = spec_.args[index];
    Lenience result;
    if (arg.role != Role::kInput) return result;
    int candidates = 0;
    for (std::string_view alternative : split(arg.dtypes, ';')) {
      const size_t colon = alternative.find(':');
      if (colon != std::string_view::npos) alternative = trim(alternative.substr(colon + 1));
      for (std::string_view name : split(alternative, '|')) {
        const DType dtype = dtype_from_name(name);
        if (dtype == DType::kU8) return lift(arg, {});
        if (dtype_info(dtype).is_float && dtype_bytes(dtype) == 1 && dtype != result.from_bytes) {
          result.from_bytes = dtype;
          ++candidates;
        }
      }
    }
    if (candidates != 1) result.from_bytes = DType::kNone;
    return lift(arg, result);
  }

  static Lenience lift(const Arg& arg, Lenience result) {
    for (std::string_view alternative : split(arg.shape, ';')) {
      const size_t colon = alternative.find(':');
      if (colon != std::string_view::npos) alternative = trim(alternative.substr(colon + 1));
      result.lift_scalar |= alternative == "1";
    }
    return result;
  }

  void write_inputs(bool optional) {
    for (size_t i = 0; i < spec_.args.size(); ++i) {
      const Arg& arg = spec_.args[i];
      if (arg.role != Role::kInput || wanted_inputs_[i] < 0) continue;
      const bool is_optional = arg.is_optional && wanted_inputs_[i] == 0;
      if (is_optional != optional) continue;
      const bool is_written = std::find(form_.aliases.begin(), form_.aliases.end(),
                                        static_cast<int>(i)) != form_.aliases.end();
      add(slot_type(arg, is_optional), static_cast<int>(i),
          tensor_type(arg, is_written) + (is_optional ? "?" : ""), is_optional ? "None" : "");
    }
  }

  void write_attributes() {
    for (size_t i = 0; i < spec_.args.size(); ++i) {
      const Arg& arg = spec_.args[i];
      const int index = static_cast<int>(i);
      const Value& value = form_.defaults[i];
      if (arg.role != Role::kAttribute) continue;
      switch (arg.kind) {
        // Symbolic, so that sizes and seeds may change without compiling again.
        case Kind::kInt: add(SlotType::kInt, index, "SymInt", std::to_string(value.i)); break;
        case Kind::kFloat: add(SlotType::kFloat, index, "float", number(value.f)); break;
        case Kind::kBool:
          add(SlotType::kBool, index, "bool", value.i != 0 ? "True" : "False");
          break;
        default:
          add(SlotType::kChoice, index, "str",
              '"' + std::string(choice_label(arg.choices, value.i)) + '"');
      }
    }
  }

  // Of any of its alternatives, whose labels another choice settles.
  static bool leaves_choice(std::string_view dtypes) {
    for (std::string_view alternative : split(dtypes, ';')) {
      const size_t colon = alternative.find(':');
      const size_t from = colon == std::string_view::npos ? 0 : colon;
      if (alternative.substr(from).find('|') != std::string_view::npos) return true;
    }
    return false;
  }

  void write_dtypes() {
    for (int output : form_.outputs) {
      const std::string_view dtypes = spec_.args[output].dtypes;
      // What an output in place is, its memory says.
      if (!leaves_choice(dtypes)) continue;
      if (form_.kind == FormKind::kInPlace && alias_says_dtype(output)) continue;
      add(SlotType::kOptionalDtype, output, "ScalarType?", "None",
          std::string(spec_.args[output].name) + "_dtype");
    }
  }

  // True if an input that `output` overwrites may only have dtypes that the output may have too.
  bool alias_says_dtype(int output) const {
    const Arg& alias = spec_.args[find_arg(spec_, spec_.args[output].alias)];
    const auto allowed = split(spec_.args[output].dtypes, '|');
    for (std::string_view dtype : split(alias.dtypes, '|')) {
      if (std::find(allowed.begin(), allowed.end(), dtype) == allowed.end()) return false;
    }
    return true;
  }

  static std::string number(double value) {
    char text[32];
    std::string result(text, std::to_chars(text, text + sizeof(text), value).ptr);
    if (result.find_first_of(".e") == std::string::npos) result += ".0";
    return result;
  }

  static SlotType slot_type(const Arg& arg, bool is_optional) {
    if (arg.kind == Kind::kTensorList)
      return is_optional ? SlotType::kOptionalTensorList : SlotType::kTensorList;
    return is_optional ? SlotType::kOptionalTensor : SlotType::kTensor;
  }

  std::string tensor_type(const Arg& arg, bool is_written) {
    const char* list = arg.kind == Kind::kTensorList ? "[]" : "";
    if (!is_written) return std::string("Tensor") + list;
    return std::string("Tensor(") + static_cast<char>('a' + written_++) + "!)" + list;
  }

  void add(SlotType type, int arg, const std::string& torch_type, const std::string& default_text,
           std::string name = "") {
    if (name.empty()) name = spec_.args[arg].name;
    // torch.compile turns forms that write into functional ones by a function with this parameter.
    if (form_.kind != FormKind::kFunctional && name == "mode") name = "mode_";
    if (!arguments_.empty()) arguments_ += ", ";
    if (keyword_only_ && !star_written_) {
      arguments_ += "*, ";
      star_written_ = true;
    }
    arguments_ += torch_type + " " + name + (default_text.empty() ? "" : "=" + default_text);
    form_.slots.push_back({type, arg, std::move(name)});
    if (type == SlotType::kChoice) form_.slots.back().labels = split(spec_.args[arg].choices, '|');
  }

  std::string full_name() const {
    std::string overload = form_.variant;
    if (form_.kind == FormKind::kOut) overload += overload.empty() ? "out" : "_out";
    return std::string(spec_.name) + (form_.kind == FormKind::kInPlace ? "_" : "") +
           (overload.empty() ? "" : "." + overload);
  }

  // Forms that write into given memory return nothing: torch can then make them functional itself.
  std::string returns() const {
    if (form_.kind != FormKind::kFunctional) return "()";
    std::string text;
    for (int output : form_.outputs) {
      const Arg& arg = spec_.args[output];
      text += (text.empty() ? "Tensor" : ", Tensor") +
              std::string(arg.kind == Kind::kTensorList ? "[] " : " ") + arg.name;
    }
    return "(" + text + ")";
  }

  const Op& op_;
  const OpSpec& spec_;
  const std::vector<Switch>& switches_;
  unsigned flipped_;
  Form form_;
  std::vector<int> wanted_inputs_;  // 1: required here, -1: not part of this variant, 0: as is
  std::string arguments_;
  bool keyword_only_ = false;
  bool star_written_ = false;
  int written_ = 0;
};

const char* kind_name(FormKind kind) {
  switch (kind) {
    case FormKind::kFunctional: return "functional";
    case FormKind::kOut: return "out";
    case FormKind::kInPlace: return "in_place";
  }
  return "?";
}

const char* type_name(SlotType type) {
  switch (type) {
    case SlotType::kTensor: return "tensor";
    case SlotType::kOptionalTensor: return "optional_tensor";
    case SlotType::kTensorList: return "tensor_list";
    case SlotType::kOptionalTensorList: return "optional_tensor_list";
    case SlotType::kInt: return "int";
    case SlotType::kFloat: return "float";
    case SlotType::kBool: return "bool";
    case SlotType::kChoice: return "choice";
    case SlotType::kOptionalDtype: return "dtype";
  }
  return "?";
}

nlohmann::ordered_json form_json(const Form& form) {
  using Json = nlohmann::ordered_json;
  const auto name_of = [&](int arg) { return form.op->spec->args[arg].name; };
  Json arguments = Json::array(), outputs = Json::array(), aliases = Json::array();
  for (const Slot& slot : form.slots) {
    arguments.push_back({type_name(slot.type), name_of(slot.arg), slot.name});
  }
  for (int output : form.outputs) outputs.push_back(name_of(output));
  for (int alias : form.aliases) aliases.push_back(name_of(alias));
  return {{"op", form.op->spec->name},    {"name", form.name},     {"variant", form.variant},
          {"kind", kind_name(form.kind)}, {"schema", form.schema}, {"arguments", arguments},
          {"outputs", outputs},           {"aliases", aliases}};
}

}  // namespace

std::vector<Form> forms_of(const Op& op, std::string& why_not) {
  // A position takes its single tensors from the call, but has no single one to give.
  for (const Arg& arg : op.spec->args) {
    if (!op.contract.has_lists() || arg.role != Role::kOutput || arg.kind == Kind::kTensorList)
      continue;
    why_not = std::string(arg.name) + " is a single output beside lists, which is not bound yet";
    return {};
  }
  const std::vector<Switch> switches = switches_of(op);
  std::vector<Form> forms;
  for (unsigned flipped = 0; flipped < 1U << switches.size(); ++flipped) {
    for (FormKind kind : {FormKind::kFunctional, FormKind::kOut, FormKind::kInPlace}) {
      FormWriter writer(op, switches, flipped, kind);
      if (writer.has_no_output()) continue;  // conditions that contradict each other
      if (kind == FormKind::kInPlace && !writer.every_output_is_in_place()) continue;
      forms.push_back(writer.write());
    }
  }
  return forms;
}

std::string forms_json(const std::vector<Form>& forms,
                       const std::vector<std::pair<std::string, std::string>>& unbound) {
  using Json = nlohmann::ordered_json;
  Json json = {{"forms", Json::array()}, {"unbound", Json::object()}};
  for (const Form& form : forms) json["forms"].push_back(form_json(form));
  for (const auto& [op, why] : unbound) json["unbound"][op] = why;
  return json.dump();
}

}  // namespace pestle::torch
