// Which of an op's implementations a GEMM on tensor cores goes to, and how it says so
// (core/dispatch.h's Advice): the rule of gemm_choice.h, a tuner's choice before it.
#pragma once

#include "core/dispatch.h"
#include "ops/gemm/cublaslt/gemm_cublaslt.h"
#include "ops/gemm/epilogue/unfused_epilogue.h"

namespace pestle::ops {

// The op's implementations by path; null: it has none.
struct GemmIds {
  const char* gemv;
  const char* tile;
  const char* library;
  const char* split_k = nullptr;

  const char* of(GemmPath path) const {
    switch (path) {
      case GemmPath::kGemv: return gemv;
      case GemmPath::kTile: return tile;
      case GemmPath::kSplitK: return split_k;
      default: return library;
    }
  }
};

// A GEMM as its op sees it; `options` without what the machine is.
struct AdvisedGemm {
  GemmKey key;
  GemmOptions options;
};

// Of the call's device where it is such a machine; else an H200's.
inline int multiprocessors_for(const Call& call, const Machine& machine) {
  const int device = cuda::device_index(call);
  return cuda::compute_capability(device) == machine.compute_capability
             ? cuda::multiprocessors(device)
             : kMultiprocessorsOfH200;
}

// Why a call is not for split-K. `why`: what the kernel of whole tiles has against it; else `o`
// are its operands.
inline std::string refuse_split_k(const Call& call, const Machine& machine, const std::string& why,
                                  const Operands& o, GemmSums sums) {
  if (wants_pairs(call)) return "gated: pairs of columns are not made by split-K";
  if (!why.empty()) return why;
  const GemmKey key = key_of(o, sums);
  GemmOptions options{machine.compute_capability, multiprocessors_for(call, machine)};
  options.split_k = true;
  const GemmChoice* tuned = tuned_choice(key, options.compute_capability, options.multiprocessors);
  const GemmChoice choice =
      choose_path(key, options, tuned && tuned->path == GemmPath::kSplitK ? tuned : nullptr);
  return choice.path == GemmPath::kSplitK ? ""
                                          : "its tiles leave no wave that split-K would shorten";
}

inline void fill_machine(const Call& call, const Machine& machine, AdvisedGemm* p) {
  p->options.compute_capability = machine.compute_capability;
  p->options.multiprocessors = multiprocessors_for(call, machine);
  p->options.version = p->options.library ? cublas_version() : 0;
}

inline const GemmChoice* tuned_for(const AdvisedGemm& p) {
  return tuned_choice(p.key, p.options.compute_capability, p.options.multiprocessors);
}

inline const char* preferred(const GemmIds& ids, const AdvisedGemm& p) {
  return ids.of(choose_path(p.key, p.options, tuned_for(p)).path);
}

// How the implementation would run it.
inline std::string plan_of(const GemmIds& ids, const AdvisedGemm& p, std::string_view impl) {
  for (const GemmPath path :
       {GemmPath::kGemv, GemmPath::kSplitK, GemmPath::kTile, GemmPath::kLibrary}) {
    if (ids.of(path) == nullptr || impl != ids.of(path)) continue;
    if (path == GemmPath::kGemv && !p.options.gemv) continue;
    GemmOptions only = p.options;
    only.gemv &= path == GemmPath::kGemv;
    only.split_k &= path == GemmPath::kSplitK;
    only.library &= path == GemmPath::kLibrary;
    const GemmChoice* tuned = tuned_for(p);
    GemmChoice choice = choose_path(p.key, only, tuned && tuned->path == path ? tuned : nullptr);
    if (choice.path != path && path == GemmPath::kSplitK) continue;
    if (choice.path != path) choice = {path};
    if (path == GemmPath::kLibrary && !choice.tuned)
      choice.variant =
          std::min(measured_algorithm(p.key, p.options.version, p.options.multiprocessors),
                   p.options.algorithms - 1);
    return describe(choice, p.key, p.options.multiprocessors);
  }
  return "";
}

// All that a tuner may measure.
inline std::vector<TunedChoice> paths_of(const AdvisedGemm& p) {
  std::vector<TunedChoice> paths;
  const auto add = [&](GemmPath path, int variant) {
    paths.push_back(as_tuned(p.key, {path, variant}, p.options.version));
  };
  if (p.options.gemv) add(GemmPath::kGemv, 0);
  for (const int columns : {256, 192, 128}) {
    if (needs_halves(p.key.sums) && columns % 128 != 0) continue;
    add(GemmPath::kTile, columns);
    if (is_open({GemmPath::kSplitK, columns}, p.key, p.options)) add(GemmPath::kSplitK, columns);
  }
  for (int i = 0; p.options.library && i < p.options.algorithms; ++i) add(GemmPath::kLibrary, i);
  return paths;
}

// The three answers of an op's Advice, from how it reads a call: `kRead` says false of a call that
// is no such GEMM.
template <const GemmIds& kIds, bool (*kRead)(const Call&, const Machine&, AdvisedGemm*)>
struct GemmAdvice {
  static const char* prefer(const Call& call, const Machine& machine) {
    AdvisedGemm p;
    return kRead(call, machine, &p) ? preferred(kIds, p) : nullptr;
  }
  static std::string plan(const Call& call, const Machine& machine, std::string_view impl) {
    AdvisedGemm p;
    return kRead(call, machine, &p) ? plan_of(kIds, p, impl) : "";
  }
  static std::vector<TunedChoice> ways(const Call& call, const Machine& machine) {
    AdvisedGemm p;
    return kRead(call, machine, &p) ? paths_of(p) : std::vector<TunedChoice>();
  }
  static constexpr Advice of(const char* op) { return {op, prefer, plan, ways}; }
};

// Which of cuBLASLt's algorithms.
inline int algorithm_for(const Call& call, const GemmKey& key) {
  const int device = cuda::device_index(call);
  const GemmChoice* tuned =
      tuned_choice(key, cuda::compute_capability(device), cuda::multiprocessors(device));
  const int version = cublas_version();
  if (tuned && tuned->path == GemmPath::kLibrary && tuned->version == version)
    return tuned->variant;  // the last that there is where there are fewer
  return measured_algorithm(key, version, cuda::multiprocessors(device));
}

}  // namespace pestle::ops
