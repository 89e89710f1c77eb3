// The C ABI: translates views and statuses, catches everything, and names no op.
#include <cstdlib>
#include <cstring>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "backends/cpu/parallel.h"
#include "bindings/c/c_values.h"
#include "bindings/c/call_plan.h"
#include "core/build_info.h"
#include "core/contract_json.h"
#include "core/dispatch.h"
#include "core/json_text.h"
#include "files/file_job.h"
#include "files/tensor_file.h"
#include "pestle/pestle.h"

struct pestle_op : pestle::Op {};

namespace pestle {
namespace {

thread_local std::string t_last_error;

pestle_status report(const Status& status) {
  if (!status.ok()) t_last_error = status.message();
  return static_cast<pestle_status>(status.code());
}

// Runs `body`, turning anything thrown below (only the standard library's out of memory is
// expected) into a status.
template <class Body>
pestle_status guarded(Body&& body) noexcept {
  try {
    return report(body());
  } catch (const std::bad_alloc&) {
    return PESTLE_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    try {
      return report({Code::kInternal, error.what()});
    } catch (...) {
      return PESTLE_INTERNAL;
    }
  } catch (...) {
    return PESTLE_INTERNAL;
  }
}

Status read_file_tensors(const pestle_file_tensor* tensors, size_t count,
                         std::vector<files::MemoryTensor>& own) {
  if (count > 0 && tensors == nullptr) return invalid_argument("tensors is NULL");
  for (size_t i = 0; i < count; ++i) {
    const pestle_file_tensor& tensor = tensors[i];
    const bool has_shape = tensor.rank == 0 || (tensor.rank > 0 && tensor.shape != nullptr);
    if (tensor.name == nullptr || tensor.dtype == nullptr || !has_shape) {
      return invalid_argument("tensor " + std::to_string(i) + " lacks its name, dtype or shape");
    }
    const files::FileDType* dtype = files::file_dtype_from_name(tensor.dtype);
    if (dtype == nullptr) {
      return invalid_argument(std::string(tensor.name) + ": safetensors has no dtype " +
                              tensor.dtype);
    }
    own.push_back({tensor.name,
                   dtype,
                   {tensor.shape, tensor.shape + tensor.rank},
                   static_cast<std::byte*>(tensor.data)});
  }
  return {};
}

const Op* unwrap(const pestle_op* op) { return static_cast<const Op*>(op); }
const pestle_op* wrap(const Op* op) { return static_cast<const pestle_op*>(op); }

char* copy_text(const std::string& text) {
  char* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

files::JobProgress hook_of(pestle_progress progress, void* user) {
  if (progress == nullptr) return {};
  return [progress, user](const char* stage, uint64_t done, uint64_t total) {
    return progress(user, stage, done, total) == 0;
  };
}

Status require(bool condition, const char* what) {
  return condition ? Status() : invalid_argument(what);
}

// A call of a new kind; `plan`, if there may be one, is where it is remembered.
Status call_unplanned(const Op& op, std::span<const pestle_arg> args,
                      const pestle_call_options* options, const CallKey& key, CallPlan* plan) {
  CallValues values(op);
  PESTLE_TRY(values.read(args.data(), args.size()));
  PESTLE_TRY(values.read_options(options));
  const auto choice = choose(op, values.call(), values.forced());
  PESTLE_TRY(choice.status());
  PESTLE_TRY(run(op, values.call(), choice.value()));
  if (plan != nullptr) plan->remember(op, key, values.call(), choice.value(), args);
  return {};
}

Result<Choice> choose_unplanned(const Op& op, std::span<const pestle_arg> args,
                                const pestle_call_options* options) {
  CallValues values(op);
  PESTLE_TRY(values.read(args.data(), args.size()));
  PESTLE_TRY(values.read_options(options));
  return choose(op, values.call(), values.forced());
}

int32_t kind_number(Kind kind) {
  switch (kind) {
    case Kind::kTensor: return PESTLE_TENSOR;
    case Kind::kTensorList: return PESTLE_TENSOR_LIST;
    case Kind::kInt: return PESTLE_INT;
    case Kind::kFloat: return PESTLE_FLOAT;
    case Kind::kBool: return PESTLE_BOOL_VALUE;
    case Kind::kChoice: return PESTLE_CHOICE;
  }
  return PESTLE_ABSENT;
}

// Copies as much of `full` as the caller's struct has room for.
template <class Info>
Status fill_info(Info* info, const Info& full) {
  PESTLE_TRY(require(info != nullptr && info->size >= sizeof(uint32_t),
                     "info must be given with its size set"));
  const uint32_t size = info->size;
  std::memcpy(info, &full, size < sizeof(Info) ? size : sizeof(Info));
  info->size = size;
  return {};
}

}  // namespace
}  // namespace pestle

using namespace pestle;

uint32_t pestle_abi_version(void) { return PESTLE_ABI_VERSION; }
const char* pestle_version(void) { return pestle::build_version().data(); }
const char* pestle_status_name(pestle_status status) {
  return code_name(static_cast<Code>(status)).data();
}
const char* pestle_last_error(void) { return t_last_error.c_str(); }

void pestle_set_threads(int32_t count) { cpu::set_threads(count); }

pestle_status pestle_set_cpu_isa(const char* name) {
  return guarded([&]() -> Status {
    PESTLE_TRY(require(name != nullptr, "pestle_set_cpu_isa: name is NULL"));
    return set_isa(name);
  });
}

size_t pestle_op_count(void) { return all_ops().size(); }
const pestle_op* pestle_op_at(size_t index) {
  return index < all_ops().size() ? wrap(&all_ops()[index]) : nullptr;
}
const pestle_op* pestle_find_op(const char* name) {
  return name != nullptr ? wrap(find_op(name)) : nullptr;
}

pestle_status pestle_call(const pestle_op* op, const pestle_arg* args, size_t count,
                          const pestle_call_options* options) {
  return guarded([&]() -> Status {
    if (op == nullptr) return invalid_argument("pestle_call: op is NULL; look at pestle_find_op");
    const CallKey key(*unwrap(op), args, count, options);
    CallPlan* plan = key.ok() ? &plan_place(key) : nullptr;
    if (plan != nullptr && plan->is_of(key)) return plan->run(args, options);
    return call_unplanned(*unwrap(op), {args, count}, options, key, plan);
  });
}

pestle_status pestle_choose(const pestle_op* op, const pestle_arg* args, size_t count,
                            const pestle_call_options* options, const char** impl,
                            int64_t* workspace_bytes) {
  return guarded([&]() -> Status {
    PESTLE_TRY(require(op != nullptr, "pestle_choose: op is NULL; look at pestle_find_op"));
    const CallKey key(*unwrap(op), args, count, options);
    CallPlan* plan = key.ok() ? &plan_place(key) : nullptr;
    const auto choice = plan != nullptr && plan->is_of(key)
                            ? plan->choose(args)
                            : choose_unplanned(*unwrap(op), {args, count}, options);
    PESTLE_TRY(choice.status());
    if (impl != nullptr) *impl = choice.value().impl->id;
    if (workspace_bytes != nullptr) *workspace_bytes = choice.value().workspace_bytes;
    return {};
  });
}

pestle_status pestle_load_tuned(const char* path) {
  return guarded([&]() -> Status {
    PESTLE_TRY(require(path != nullptr, "pestle_load_tuned: path is NULL"));
    (void)all_ops();  // first what the environment names
    return load_tuned(path);
  });
}

pestle_status pestle_why(const pestle_op* op, const pestle_arg* args, size_t count, char** json) {
  return guarded([&]() -> Status {
    PESTLE_TRY(require(op != nullptr && json != nullptr, "pestle_why: op or json is NULL"));
    CallValues values(*unwrap(op));
    PESTLE_TRY(values.read(args, count));
    Scope scope;
    PESTLE_TRY(unwrap(op)->contract.check(values.call(), scope));
    auto list = nlohmann::ordered_json::array();
    for (const Candidate& one : candidates(*unwrap(op), values.call())) {
      list.push_back({{"id", one.impl->id},
                      {"takes_it", one.refusal.empty()},
                      {"reason", one.refusal},
                      {"plan", one.plan}});
    }
    *json = copy_text(print_json(list));
    return {};
  });
}

pestle_status pestle_reference(const pestle_op* op, const pestle_arg* args, size_t count,
                               int32_t sum_magnitudes) {
  return guarded([&]() -> Status {
    PESTLE_TRY(require(op != nullptr, "pestle_reference: op is NULL; look at pestle_find_op"));
    CallValues values(*unwrap(op));
    PESTLE_TRY(values.read(args, count));
    return run_reference(*unwrap(op), values.call(), sum_magnitudes != 0);
  });
}

const char* pestle_op_name(const pestle_op* op) { return op ? unwrap(op)->spec->name : ""; }
const char* pestle_op_doc(const pestle_op* op) { return op ? unwrap(op)->spec->doc : ""; }
size_t pestle_op_arg_count(const pestle_op* op) { return op ? unwrap(op)->spec->args.size() : 0; }
size_t pestle_op_impl_count(const pestle_op* op) { return op ? unwrap(op)->impls.size() : 0; }

pestle_status pestle_op_arg(const pestle_op* op, size_t index, pestle_arg_info* info) {
  return guarded([&]() -> Status {
    PESTLE_TRY(require(op != nullptr && index < unwrap(op)->spec->args.size(),
                       "pestle_op_arg: no such argument"));
    const Arg& arg = unwrap(op)->spec->args[index];
    return fill_info(info, {.size = 0,
                            .name = arg.name,
                            .kind = kind_number(arg.kind),
                            .is_output = arg.role == Role::kOutput,
                            .is_optional = arg.is_optional,
                            .dtypes = arg.dtypes,
                            .shape = arg.shape,
                            .by = arg.by,
                            .present_if = arg.present_if,
                            .alias = arg.alias,
                            .choices = arg.choices,
                            .default_value = arg.default_value,
                            .doc = arg.doc});
  });
}

pestle_status pestle_op_impl(const pestle_op* op, size_t index, pestle_impl_info* info) {
  return guarded([&]() -> Status {
    PESTLE_TRY(require(op != nullptr && index < unwrap(op)->impls.size(),
                       "pestle_op_impl: no such implementation"));
    const Impl& impl = unwrap(op)->impls[index];
    return fill_info(info, {.size = 0,
                            .id = impl.id,
                            .device_type = static_cast<int32_t>(impl.device),
                            .min_compute_capability = impl.min_compute_capability});
  });
}

pestle_status pestle_op_json(const pestle_op* op, char** json) {
  return guarded([&]() -> Status {
    PESTLE_TRY(require(op != nullptr && json != nullptr, "pestle_op_json: NULL argument"));
    *json = copy_text(print_json(contract_json(*unwrap(op)), 2));
    return {};
  });
}

void pestle_free(void* memory) { std::free(memory); }

pestle_status pestle_file(const char* verb, const char* options_json, pestle_progress progress,
                          void* user, char** report) {
  return guarded([&]() -> Status {
    PESTLE_TRY(require(verb != nullptr && options_json != nullptr, "pestle_file: NULL argument"));
    const auto text = files::run_file_job(verb, options_json, hook_of(progress, user));
    PESTLE_TRY(text.status());
    if (report != nullptr) *report = copy_text(text.value());
    return {};
  });
}

pestle_status pestle_save_tensors(const char* path, const pestle_file_tensor* tensors, size_t count,
                                  const char* options_json, pestle_progress progress, void* user) {
  return guarded([&]() -> Status {
    PESTLE_TRY(require(path != nullptr, "pestle_save_tensors: NULL argument"));
    std::vector<files::MemoryTensor> own;
    PESTLE_TRY(read_file_tensors(tensors, count, own));
    files::SaveOptions options;
    options.path = path;
    PESTLE_TRY(files::read_save_options(options_json == nullptr ? "" : options_json, options));
    return files::save_tensors(own, options, hook_of(progress, user));
  });
}

pestle_status pestle_list_tensors(const char* path, char** json) {
  return guarded([&]() -> Status {
    PESTLE_TRY(require(path != nullptr && json != nullptr, "pestle_list_tensors: NULL argument"));
    const auto text = files::list_tensors(path);
    PESTLE_TRY(text.status());
    *json = copy_text(text.value());
    return {};
  });
}

pestle_status pestle_load_tensors(const char* path, const pestle_file_tensor* tensors, size_t count,
                                  pestle_progress progress, void* user) {
  return guarded([&]() -> Status {
    PESTLE_TRY(require(path != nullptr, "pestle_load_tensors: NULL argument"));
    std::vector<files::MemoryTensor> own;
    PESTLE_TRY(read_file_tensors(tensors, count, own));
    return files::load_tensors(path, own, hook_of(progress, user));
  });
}
