// Registers every form of every op with torch when the library is loaded, by walking the table.
#include <array>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "pestle/pestle.h"
#include "python/csrc/dtypes.h"
#include "python/csrc/forms.h"
#include "python/csrc/kernel.h"
#include "python/csrc/torch_abi.h"

namespace pestle::torch {
namespace {

struct Registry {
  std::vector<Form> forms;
  std::vector<std::pair<std::string, std::string>> unbound;  // op, why
  std::string error;
};

Registry& registry() {
  static Registry* one = new Registry;  // torch may call until the process ends
  return *one;
}

void call_form(size_t index, StableIValue* stack, uint64_t inputs, uint64_t outputs) {
  const Status status = run_form(registry().forms[index], stack, inputs, outputs);
  // The one place that throws: torch turns it into the caller's RuntimeError. The status is in
  // front, so that Python can tell what kind of error it is.
  if (!status.ok()) {
    throw std::runtime_error("[pestle " + std::string(code_name(status.code())) + "] " +
                             status.message());
  }
}

// torch's boxed kernels carry no data of their own, so there is one function per place in the
// table.
template <size_t Index>
void trampoline(StableIValue* stack, uint64_t inputs, uint64_t outputs) {
  call_form(Index, stack, inputs, outputs);
}

constexpr size_t kMaxForms = 1024;

template <size_t... Index>
constexpr std::array<BoxedKernel, sizeof...(Index)> trampolines(std::index_sequence<Index...>) {
  return {trampoline<Index>...};
}
constexpr auto kTrampolines = trampolines(std::make_index_sequence<kMaxForms>());

std::string define(const Registry& table) {
  const TorchAbi& abi = torch_abi();
  LibraryHandle library = nullptr;  // kept: deleting it would take the ops away
  if (abi.aoti_torch_library_init_fragment("pestle", __FILE__, __LINE__, &library) != 0) {
    return "torch could not open the namespace pestle";
  }
  for (const Form& form : table.forms) {
    if (abi.aoti_torch_library_def(library, form.schema.c_str()) != 0) {
      return "torch refuses the schema " + form.schema;
    }
  }
  return "";
}

std::string implement(const Registry& table, const char* key) {
  const TorchAbi& abi = torch_abi();
  LibraryHandle library = nullptr;
  if (abi.aoti_torch_library_init_impl("pestle", key, __FILE__, __LINE__, &library) != 0) {
    return std::string("torch could not open the namespace pestle for ") + key;
  }
  for (size_t i = 0; i < table.forms.size(); ++i) {
    const char* name = table.forms[i].name.c_str();
    if (abi.torch_library_impl(library, name, kTrampolines[i], kTargetVersion) != 0) {
      return std::string("torch refuses a kernel for ") + name;
    }
  }
  return "";
}

// Without torch in the process the table is there all the same, for tools/wheel_pure.sh.
std::string register_all(Registry& table) {
  for (const Op& op : all_ops()) {
    std::string why_not;
    for (Form& form : forms_of(op, why_not)) table.forms.push_back(std::move(form));
    if (!why_not.empty()) table.unbound.emplace_back(op.spec->name, why_not);
  }
  if (table.forms.size() > kMaxForms) return "more forms than kMaxForms";
  std::string error = load_torch_abi();
  if (!error.empty()) return error;
  load_dtypes();
  error = define(table);
  for (const char* key : {"CPU", "CUDA"}) {
    if (error.empty()) error = implement(table, key);
  }
  return error;
}

struct AtLoad {
  AtLoad() {
    try {
      registry().error = register_all(registry());
    } catch (const std::exception& error) {
      registry().error = error.what();
    }
  }
};
const AtLoad at_load;

}  // namespace
}  // namespace pestle::torch

extern "C" {

// "" when the ops are registered, else why they are not.
PESTLE_API const char* pestle_torch_error(void) { return pestle::torch::registry().error.c_str(); }

// The registered forms as JSON; free it with pestle_free.
PESTLE_API char* pestle_torch_forms(void) {
  const auto& table = pestle::torch::registry();
  const std::string text = pestle::torch::forms_json(table.forms, table.unbound);
  char* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy != nullptr) std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

}  // extern "C"
