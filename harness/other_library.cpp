#include "harness/other_library.h"

#include <dlfcn.h>

#include <vector>

#include "core/text.h"
#include "harness/c_tensor.h"
#include "pestle/pestle.h"

namespace pestle::harness {
namespace {

// An Impl's function knows nothing else.
struct Library {
  const Op* op = nullptr;
  Memory* memory = nullptr;
  const pestle_op* handle = nullptr;
  decltype(&pestle_call) call = nullptr;
  decltype(&pestle_choose) choose = nullptr;
  decltype(&pestle_last_error) last_error = nullptr;
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
  std::string id;
  Impl impl;
};
Library g;

// A call's arguments as the C ABI takes them.
struct CArguments {
  std::vector<pestle_tensor> tensors;
  std::vector<std::string> labels;
  std::vector<pestle_arg> args;

  explicit CArguments(const Call& call)
      : tensors(call.args.size()), labels(call.args.size()), args(call.args.size()) {
    for (size_t i = 0; i < args.size(); ++i) {
      const Arg& arg = g.op->spec->args[i];
      const Value& value = call.args[i];
      args[i].kind = PESTLE_ABSENT;
      if (arg.role != Role::kAttribute) {
        if (value.present) set_tensor(i, value.tensor);
      } else if (arg.kind == Kind::kFloat) {
        args[i].kind = PESTLE_FLOAT;
        args[i].value.f = value.f;
      } else if (arg.kind == Kind::kChoice) {
        labels[i] = choice_label(arg.choices, value.i);
        args[i].kind = PESTLE_CHOICE;
        args[i].value.choice = labels[i].c_str();
      } else {
        args[i].kind = arg.kind == Kind::kBool ? PESTLE_BOOL_VALUE : PESTLE_INT;
        args[i].value.i = value.i;
      }
    }
  }

 private:
  void set_tensor(size_t i, const TensorView& t) {
    tensors[i] = c_tensor(t);
    args[i].kind = PESTLE_TENSOR;
    args[i].value.tensor = &tensors[i];
  }
};

Status run_other(const Call& call) {
  const CArguments c(call);
  pestle_call_options options{};
  options.size = sizeof(options);
  options.stream = call.stream;
  const auto said = [](const char* what) {
    return Status{Code::kUnsupported, g.id + what + g.last_error()};
  };
  const char* chosen = nullptr;
  int64_t bytes = 0;
  if (g.choose(g.handle, c.args.data(), c.args.size(), &options, &chosen, &bytes) != PESTLE_OK) {
    return said(" takes no such call: ");
  }
  if (bytes > g.workspace_bytes) {
    g.memory->release(g.workspace, g.workspace_bytes);
    g.workspace = g.memory->allocate(bytes);
    g.workspace_bytes = bytes;
    if (g.workspace == nullptr) return {Code::kOutOfMemory, g.id + ": no memory for its workspace"};
  }
  options.workspace = g.workspace;
  options.workspace_bytes = g.workspace_bytes;
  return g.call(g.handle, c.args.data(), c.args.size(), &options) == PESTLE_OK ? Status()
                                                                               : said(": ");
}

template <class F>
bool find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

bool names_library(const std::string& name) { return name.ends_with(".so"); }

Result<const Impl*> impl_of_library(const Op& op, const std::string& path, Memory& memory) {
  for (const Arg& arg : op.spec->args) {
    if (arg.kind == Kind::kTensorList) return unsupported("lists of tensors have no A/B yet");
  }
  // Its symbols stay its own: this program has functions of the same names.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (library == nullptr) return Status{Code::kIoError, dlerror()};
  decltype(&pestle_find_op) find_op = nullptr;
  if (!find(library, "pestle_find_op", find_op) || !find(library, "pestle_call", g.call) ||
      !find(library, "pestle_choose", g.choose) ||
      !find(library, "pestle_last_error", g.last_error)) {
    return Status{Code::kIoError, path + " is no build of this library"};
  }
  if (g.workspace != nullptr) g.memory->release(g.workspace, g.workspace_bytes);
  g.workspace = nullptr;
  g.workspace_bytes = 0;
  g.op = &op;
  g.memory = &memory;
  g.handle = find_op(op.spec->name);
  if (g.handle == nullptr) return unsupported(path + " has no op " + op.spec->name);
  g.id = path;
  g.impl = {.id = g.id.c_str(), .device = memory.device().type, .run = run_other};
  return &g.impl;
}

}  // namespace pestle::harness
