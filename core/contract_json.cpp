#include "core/contract_json.h"

#include <nlohmann/json.hpp>

#include "core/codes.h"
#include "core/text.h"

namespace pestle {
namespace {

using Json = nlohmann::ordered_json;

const char* kind_name(Kind kind) {
  switch (kind) {
    case Kind::kTensor: return "tensor";
    case Kind::kTensorList: return "tensor_list";
    case Kind::kInt: return "int";
    case Kind::kFloat: return "float";
    case Kind::kBool: return "bool";
    case Kind::kChoice: return "choice";
  }
  return "?";
}

Json default_json(const Arg& arg) {
  if (arg.kind == Kind::kFloat) return arg.default_value;
  if (arg.kind == Kind::kBool) return arg.default_value != 0;
  const auto index = static_cast<int64_t>(arg.default_value);
  if (arg.kind == Kind::kChoice) return std::string(choice_label(arg.choices, index));
  return index;
}

Json tensor_json(const Arg& arg) {
  Json json = {{"dtypes", arg.dtypes}, {"shape", arg.shape}};
  if (arg.by[0]) json["by"] = arg.by;
  if (arg.present_if[0]) json["present_if"] = arg.present_if;
  if (arg.alias[0]) json["in_place_of"] = arg.alias;
  if (arg.role != Role::kOutput) return json;
  if (arg.bound.exact) {
    json["bound"] = "exact";
    if (has_codes_rule(arg)) json["codes_by"] = arg.bound.k;
  } else {
    json["bound"] = {{"ulp", 1}, {"c", arg.bound.c}, {"k", arg.bound.k}};
  }
  return json;
}

Json arg_json(const Arg& arg) {
  const char* role = arg.role == Role::kInput    ? "input"
                     : arg.role == Role::kOutput ? "output"
                                                 : "attribute";
  Json json = {{"name", arg.name}, {"kind", kind_name(arg.kind)}, {"role", role}};
  if (arg.role != Role::kAttribute) json.update(tensor_json(arg));
  if (arg.role == Role::kAttribute) json["default"] = default_json(arg);
  if (arg.kind == Kind::kChoice) json["choices"] = split(arg.choices, '|');
  json["optional"] = arg.is_optional;
  json["doc"] = arg.doc;
  return json;
}

Json tags_json(unsigned tags) {
  Json names = Json::array();
  for (auto [tag, name] :
       {std::pair{kSmoke, "smoke"}, {kEdge, "edge"}, {kBar, "bar"}, {kHuge, "huge"}}) {
    if (tags & tag) names.push_back(name);
  }
  return names;
}

const char* dist_name(Dist dist) {
  switch (dist) {
    case Dist::kNormal: return "normal";
    case Dist::kOutliers: return "outliers";
    case Dist::kZeros: return "zeros";
    case Dist::kSubnormal: return "subnormal";
    case Dist::kOffset: return "offset";
    case Dist::kConstant: return "constant";
    case Dist::kSpecial: return "special";
    case Dist::kBytes: return "bytes";
  }
  return "?";
}

}  // namespace

nlohmann::ordered_json contract_json(const Op& op) {
  const OpSpec& spec = *op.spec;
  Json json = {{"name", spec.name}, {"doc", spec.doc}, {"source", spec.source}};
  json["args"] = Json::array();
  for (const Arg& arg : spec.args) json["args"].push_back(arg_json(arg));
  json["constraints"] = Json::array();
  for (const Constraint& c : spec.constraints) {
    json["constraints"].push_back({{"condition", c.condition}, {"sentence", c.sentence}});
  }
  json["flops"] = spec.flops;
  json["bytes"] = spec.bytes[0] ? spec.bytes : "every present tensor once";
  if (spec.backward.op[0]) {
    json["backward"] = {
        {"op", spec.backward.op}, {"call", spec.backward.call}, {"gives", spec.backward.gives}};
    if (spec.backward.why_not[0]) json["backward"]["why_not"] = spec.backward.why_not;
  } else {
    json["backward"] = {{"op", nullptr}, {"why_not", spec.backward.why_not}};
  }
  json["implementations"] = Json::array();
  for (const Impl& impl : op.impls) {
    json["implementations"].push_back({{"id", impl.id},
                                       {"device", impl.device == DeviceType::kCpu ? "cpu" : "cuda"},
                                       {"min_compute_capability", impl.min_compute_capability},
                                       {"workspace_bytes", impl.workspace}});
  }
  json["cases"] = Json::array();
  for (const Case& c : spec.cases) {
    json["cases"].push_back(
        {{"text", c.text}, {"tags", tags_json(c.tags)}, {"data", dist_name(c.dist)}});
  }
  return json;
}

}  // namespace pestle
