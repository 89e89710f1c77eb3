// The C ABI: translates views and statuses, catches everything, and names no op.
#include <cstdlib>
#include <cstring>
#include <new>
#include <nlohmann/json.hpp>
#include <string>

#include "backends/cpu/parallel.h"
#include "bindings/c/c_values.h"
#include "core/build_info.h"
#include "core/contract_json.h"
#include "core/dispatch.h"
#include "files/file_job.h"
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

const Op* unwrap(const pestle_op* op) { return static_cast<const Op*>(op); }
const pestle_op* wrap(const Op* op) { return static_cast<const pestle_op*>(op); }

char* copy_text(const std::string& text) {
  char* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

Status require(bool condition, const char* what) {
  return condition ? Status() : invalid_argument(what);
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
    PESTLE_TRY(require(op != nullptr, "pestle_call: op is NULL; look at pestle_find_op"));
    CallValues values(*unwrap(op));
    PESTLE_TRY(values.read(args, count));
    PESTLE_TRY(values.read_options(options));
    return run(*unwrap(op), values.call(), values.forced());
  });
}

pestle_status pestle_choose(const pestle_op* op, const pestle_arg* args, size_t count,
                            const pestle_call_options* options, const char** impl,
                            int64_t* workspace_bytes) {
  return guarded([&]() -> Status {
    PESTLE_TRY(require(op != nullptr, "pestle_choose: op is NULL; look at pestle_find_op"));
    CallValues values(*unwrap(op));
    PESTLE_TRY(values.read(args, count));
    PESTLE_TRY(values.read_options(options));
    auto choice = choose(*unwrap(op), values.call(), values.forced());
    PESTLE_TRY(choice.status());
    if (impl != nullptr) *impl = choice.value().impl->id;
    if (workspace_bytes != nullptr) *workspace_bytes = choice.value().workspace_bytes;
    return {};
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
    *json = copy_text(contract_json(*unwrap(op)).dump(2));
    return {};
  });
}

void pestle_free(void* memory) { std::free(memory); }

pestle_status pestle_file(const char* verb, const char* options_json, pestle_progress progress,
                          void* user, char** report) {
  return guarded([&]() -> Status {
    PESTLE_TRY(require(verb != nullptr && options_json != nullptr, "pestle_file: NULL argument"));
    files::JobProgress hook;
    if (progress != nullptr) {
      hook = [&](const char* stage, uint64_t done, uint64_t total) {
        return progress(user, stage, done, total) == 0;
      };
    }
    const auto text = files::run_file_job(verb, options_json, hook);
    PESTLE_TRY(text.status());
    if (report != nullptr) *report = copy_text(text.value());
    return {};
  });
}
