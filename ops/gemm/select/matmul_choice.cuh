// Which of an op's kernels a product on tensor cores goes to, and how it says so (core/dispatch.h's
// Advice): the rule of matmul_ways.h, a tuner's choice before it.
#pragma once

#include "core/dispatch.h"
#include "ops/gemm/cublaslt/matmul_cublas.h"
#include "ops/gemm/epilogue/late_epilogue.h"

namespace pestle::ops {

// The op's implementations by way; null: it has none.
struct ProductIds {
  const char* few_rows;
  const char* tile;
  const char* library;
  const char* slices = nullptr;

  const char* of(ProductWay way) const {
    switch (way) {
      case ProductWay::kFewRows: return few_rows;
      case ProductWay::kTile: return tile;
      case ProductWay::kSlices: return slices;
      default: return library;
    }
  }
};

// A product as its op sees it; `means` without what the machine is.
struct AdvisedProduct {
  ProductKey key;
  ProductMeans means;
};

// Of the call's device where it is such a machine; else an H200's.
inline int multiprocessors_for(const Call& call, const Machine& machine) {
  const int device = cuda::device_index(call);
  return cuda::compute_capability(device) == machine.compute_capability
             ? cuda::multiprocessors(device)
             : kMultiprocessorsOfH200;
}

// Why a call is not for slices of k. `why`: what the kernel of whole tiles has against it; else `o`
// are its operands.
inline std::string refuse_slices(const Call& call, const Machine& machine, const std::string& why,
                                 const Operands& o, ProductSums sums) {
  if (wants_pairs(call)) return "gated: pairs of columns are not made in slices of k";
  if (!why.empty()) return why;
  const ProductKey key = key_of(o, sums);
  ProductMeans means{machine.compute_capability, multiprocessors_for(call, machine)};
  means.slices = true;
  const ProductChoice* tuned = tuned_choice(key, means.compute_capability, means.multiprocessors);
  const ProductChoice choice =
      choose_way(key, means, tuned && tuned->way == ProductWay::kSlices ? tuned : nullptr);
  return choice.way == ProductWay::kSlices
             ? ""
             : "its tiles leave no round that slices of k would shorten";
}

inline void fill_machine(const Call& call, const Machine& machine, AdvisedProduct* p) {
  p->means.compute_capability = machine.compute_capability;
  p->means.multiprocessors = multiprocessors_for(call, machine);
  p->means.version = p->means.library ? cublas_version() : 0;
}

inline const ProductChoice* tuned_for(const AdvisedProduct& p) {
  return tuned_choice(p.key, p.means.compute_capability, p.means.multiprocessors);
}

inline const char* preferred(const ProductIds& ids, const AdvisedProduct& p) {
  return ids.of(choose_way(p.key, p.means, tuned_for(p)).way);
}

// How the implementation would run it.
inline std::string plan_of(const ProductIds& ids, const AdvisedProduct& p, std::string_view impl) {
  for (const ProductWay way :
       {ProductWay::kFewRows, ProductWay::kSlices, ProductWay::kTile, ProductWay::kLibrary}) {
    if (ids.of(way) == nullptr || impl != ids.of(way)) continue;
    if (way == ProductWay::kFewRows && !p.means.few_rows) continue;
    ProductMeans only = p.means;
    only.few_rows &= way == ProductWay::kFewRows;
    only.slices &= way == ProductWay::kSlices;
    only.library &= way == ProductWay::kLibrary;
    const ProductChoice* tuned = tuned_for(p);
    ProductChoice choice = choose_way(p.key, only, tuned && tuned->way == way ? tuned : nullptr);
    if (choice.way != way && way == ProductWay::kSlices) continue;
    if (choice.way != way) choice = {way};
    if (way == ProductWay::kLibrary && !choice.tuned)
      choice.variant = std::min(measured_algorithm(p.key, p.means.version, p.means.multiprocessors),
                                p.means.algorithms - 1);
    return describe(choice, p.key, p.means.multiprocessors);
  }
  return "";
}

// All that a tuner may measure.
inline std::vector<TunedChoice> ways_of(const AdvisedProduct& p) {
  std::vector<TunedChoice> ways;
  const auto add = [&](ProductWay way, int variant) {
    ways.push_back(as_tuned(p.key, {way, variant}, p.means.version));
  };
  if (p.means.few_rows) add(ProductWay::kFewRows, 0);
  for (const int columns : {256, 192, 128}) {
    if (needs_halves(p.key.sums) && columns % 128 != 0) continue;
    add(ProductWay::kTile, columns);
    if (is_open({ProductWay::kSlices, columns}, p.key, p.means)) add(ProductWay::kSlices, columns);
  }
  for (int i = 0; p.means.library && i < p.means.algorithms; ++i) add(ProductWay::kLibrary, i);
  return ways;
}

// The three answers of an op's Advice, from how it reads a call: `kRead` says false of a call that
// is no such product.
template <const ProductIds& kIds, bool (*kRead)(const Call&, const Machine&, AdvisedProduct*)>
struct ProductAdvice {
  static const char* prefer(const Call& call, const Machine& machine) {
    AdvisedProduct p;
    return kRead(call, machine, &p) ? preferred(kIds, p) : nullptr;
  }
  static std::string plan(const Call& call, const Machine& machine, std::string_view impl) {
    AdvisedProduct p;
    return kRead(call, machine, &p) ? plan_of(kIds, p, impl) : "";
  }
  static std::vector<TunedChoice> ways(const Call& call, const Machine& machine) {
    AdvisedProduct p;
    return kRead(call, machine, &p) ? ways_of(p) : std::vector<TunedChoice>();
  }
  static constexpr Advice of(const char* op) { return {op, prefer, plan, ways}; }
};

// Which of cuBLASLt's algorithms.
inline int algorithm_for(const Call& call, const ProductKey& key) {
  const int device = cuda::device_index(call);
  const ProductChoice* tuned =
      tuned_choice(key, cuda::compute_capability(device), cuda::multiprocessors(device));
  const int version = cublas_version();
  if (tuned && tuned->way == ProductWay::kLibrary && tuned->version == version)
    return tuned->variant;  // the last that there is where there are fewer
  return measured_algorithm(key, version, cuda::multiprocessors(device));
}

}  // namespace pestle::ops
