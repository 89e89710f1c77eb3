// Which of an op's kernels a product on tensor cores goes to, and how it says so (core/dispatch.h's
// Advice): the rule of matmul_ways.h, a tuner's choice before it.
#pragma once

#include "core/dispatch.h"
#include "ops/common/matmul_cublas.h"
#include "ops/common/scaled_product.cuh"

namespace pestle::ops {

// The op's implementations by way; null: it has none.
struct ProductIds {
  const char* few_rows;
  const char* tile;
  const char* library;

  const char* of(ProductWay way) const {
    return way == ProductWay::kFewRows ? few_rows : way == ProductWay::kTile ? tile : library;
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
  for (const ProductWay way : {ProductWay::kFewRows, ProductWay::kTile, ProductWay::kLibrary}) {
    if (ids.of(way) == nullptr || impl != ids.of(way)) continue;
    ProductMeans only = p.means;
    only.few_rows &= way == ProductWay::kFewRows;
    only.library &= way == ProductWay::kLibrary;
    const ProductChoice* tuned = tuned_for(p);
    ProductChoice choice = choose_way(p.key, only, tuned && tuned->way == way ? tuned : nullptr);
    if (choice.way != way) choice = {way};
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
    if (!needs_halves(p.key.sums) || columns % 128 == 0) add(ProductWay::kTile, columns);
  }
  for (int i = 0; p.means.library && i < kCublasAlgorithms; ++i) add(ProductWay::kLibrary, i);
  return ways;
}

// Which of cuBLASLt's algorithms.
inline int algorithm_for(const Call& call, const ProductKey& key) {
  const int device = cuda::device_index(call);
  const ProductChoice* tuned =
      tuned_choice(key, cuda::compute_capability(device), cuda::multiprocessors(device));
  const bool its =
      tuned && tuned->way == ProductWay::kLibrary && tuned->version == cublas_version();
  return its ? tuned->variant : 0;
}

// ---- products of 8-bit floats with decode scales ------------------------------------------------

inline CublasEpilogue cublas_epilogue(const Call& call, const ScaledArgs& args, const Operands& o) {
  CublasEpilogue e;
  const int bias = args.alpha + 1, residual = args.alpha + 2;
  if (call.has(bias)) e.bias = &call.tensor(bias);
  if (call.has(residual)) e.residual = &o.residual;
  e.scale_a = call.tensor(args.scale_a).as<float>();
  e.scale_b = call.tensor(args.scale_b).as<float>();
  e.scale_rows = granularity_of(call, args) == Granularity::kRow;
  return e;
}

inline std::string refuse_cublas_scaled(const Call& call, const ScaledArgs& args) {
  if (call.integer(args.alpha + 3) != 0) return "cuBLASLt has not the contract's activations";
  if (call.has(args.alpha)) return "takes no alpha";
  for (const int i : {args.scale_a, args.scale_b}) {
    const TensorView& scale = call.tensor(i);
    if (!is_contiguous(scale) || reinterpret_cast<uintptr_t>(scale.data) % 16 != 0)
      return "scales must be dense and begin at multiples of 16 bytes";
  }
  Operands o;
  read_scaled(call, args, &o);
  return refuse_cublas(o, cublas_epilogue(call, args, o));
}

inline Status run_cublas_scaled(const Call& call, const char* name, const ScaledArgs& args,
                                ProductSums sums) {
  Operands o;
  const std::string why = read_scaled(call, args, &o);
  if (!why.empty()) return unsupported(why);
  return run_cublas(call, name, o, cublas_epilogue(call, args, o),
                    algorithm_for(call, key_of(o, sums)));
}

}  // namespace pestle::ops
