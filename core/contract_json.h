// The contract of one op as JSON: what `pestle ops NAME --json`, the C ABI and the bindings read.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "core/op_table.h"

namespace pestle {

nlohmann::ordered_json contract_json(const Op& op);

}  // namespace pestle
