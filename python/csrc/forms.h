// How an op of the table appears in PyTorch. A torch schema has a fixed number of outputs, so an op
// with an output that exists under a condition becomes one overload per truth of the condition;
// each of them has a functional form and one that fills given outputs, and an in-place form where
// every output may be an input's memory.
#pragma once

#include <string>
#include <vector>

#include "core/op_table.h"

namespace pestle::torch {

enum class SlotType : uint8_t {
  kTensor,
  kOptionalTensor,
  kTensorList,
  kOptionalTensorList,
  kInt,
  kFloat,
  kBool,
  kChoice,
  kOptionalDtype,  // of an output that the contract allows several dtypes for
};

// One argument of the torch schema.
struct Slot {
  SlotType type;
  int arg;                                    // index in the contract
  std::string name;                           // torch's
  std::vector<std::string_view> labels = {};  // kChoice
};

enum class FormKind : uint8_t { kFunctional, kOut, kInPlace };

// What a torch tensor may be taken for, beyond its own dtype and shape.
struct Lenience {
  // The dtype that uint8 stands for; kNone: only itself. Bytes are how files store these formats.
  DType from_bytes = DType::kNone;
  // A tensor without dimensions is taken as one of shape [1].
  bool lift_scalar = false;
};

struct Form {
  const Op* op = nullptr;
  FormKind kind = FormKind::kFunctional;
  std::string variant;  // "", or the name of the overload before any "_out"
  std::string name;     // "quantize.variant", without the namespace
  std::string schema;   // as torch parses it
  std::vector<Slot> slots;
  std::vector<int> outputs;        // contract indices of the variant's outputs
  std::vector<Value> defaults;     // one per contract argument
  std::vector<Lenience> lenience;  // likewise
  std::vector<int> aliases;        // kInPlace: per output, the input whose memory it is
  bool needs_workspace = false;    // some implementation asks for one
};

// All forms of an op; empty with a sentence in `why_not` if torch can't express the contract.
std::vector<Form> forms_of(const Op& op, std::string& why_not);

// {"forms": [{"op", "name", "variant", "kind", "schema", "arguments": [[type, contract's name,
// torch's]...], "outputs", "aliases"}...], "unbound": {op: why}}: what the Python half of the
// package walks.
std::string forms_json(const std::vector<Form>& forms,
                       const std::vector<std::pair<std::string, std::string>>& unbound);

}  // namespace pestle::torch
