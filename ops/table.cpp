// Builds the table from ops.def. The only file that expands it.
#include <cstdio>
#include <cstdlib>

#include "backends/cuda/host/runtime.h"
#include "core/op_table.h"
#include "core/tuned.h"

// Functions that an op's folder defines; those of an unticked column are never referenced.
#define PESTLE_OP(family, name, has_cpu, has_cuda) \
  namespace pestle::ops::name {                    \
  OpReference reference();                         \
  std::span<const Impl> cpu();                     \
  std::span<const Impl> cuda();                    \
  }
#include "ops/ops.def"
#undef PESTLE_OP

namespace pestle {
namespace {

using ImplList = std::span<const Impl> (*)();

#define PESTLE_IF_0(function) nullptr
#define PESTLE_IF_1(function) function
#ifdef PESTLE_WITH_CUDA
#define PESTLE_CUDA_IF_0(function) nullptr
#define PESTLE_CUDA_IF_1(function) function
#else
#define PESTLE_CUDA_IF_0(function) nullptr
#define PESTLE_CUDA_IF_1(function) nullptr
#endif

struct Row {
  const char* family;
  OpReference (*reference)();
  ImplList cpu;
  ImplList cuda;
  bool has_cuda;
};

constexpr Row kRows[] = {
#define PESTLE_OP(family, name, has_cpu, has_cuda)                     \
  {#family, ops::name::reference, PESTLE_IF_##has_cpu(ops::name::cpu), \
   PESTLE_CUDA_IF_##has_cuda(ops::name::cuda), static_cast<bool>(has_cuda)},
#include "ops/ops.def"
#undef PESTLE_OP
};

Op build(const Row& row) {
  const OpReference reference = row.reference();
  Op op;
  op.spec = reference.spec;
  op.family = row.family;
  op.has_cuda = row.has_cuda;
  auto contract = Contract::compile(*op.spec);
  if (!contract.ok()) {
    // A contract that does not parse is a defect of this build, caught by the table's own test.
    std::fprintf(stderr, "pestle: %s\n", contract.status().message().c_str());
    std::abort();
  }
  op.contract = std::move(contract.value());
  for (ImplList list : {row.cuda, row.cpu}) {
    if (list == nullptr) continue;
    for (const Impl& impl : list()) op.impls.push_back(impl);
  }
  op.impls.push_back(reference.impl);
  return op;
}

const std::vector<Op>& table() {
  static const std::vector<Op> ops = [] {
    std::vector<Op> built;
    set_cuda_probe(cuda::compute_capability);
    for (const Row& row : kRows) built.push_back(build(row));
    load_tuned_of_environment();
    return built;
  }();
  return ops;
}

}  // namespace

std::span<const Op> all_ops() { return table(); }

const Op* find_op(std::string_view name) {
  for (const Op& op : table()) {
    if (name == op.spec->name) return &op;
  }
  return nullptr;
}

}  // namespace pestle
