// Sweeps: every op that memory bounds, over many shapes and kinds of data. What there is to sweep
// follows from the contracts' bar cases. Names no op.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/op_table.h"
#include "harness/bench.h"
#include "harness/data.h"

namespace pestle::harness {

// A case with places for extents: "S={rows}x{width} x=f32", "N={rows} B={width/32*34}". In braces:
// rows, width and numbers, with * and / from left to right; what does not divide is no call.
struct SweepForm {
  const Op* op = nullptr;
  std::string text;
};

// Is it memory that bounds the op? Products have bars of their own.
bool is_sweepable(const Op& op);
// The op's bar cases with their first two extents as rows and width; each form once.
std::vector<SweepForm> sweep_forms(const Op& op);
std::optional<std::string> text_at(std::string_view form, int64_t rows, int64_t width);
// What bars are stated for: "gradient", "rotated", "quantised" (codes of values) or "plain".
std::string sweep_class(const Op& op, const TextCall& call);

struct SweepOptions {
  BenchOptions bench;
  std::vector<int64_t> rows = {256, 1024, 4096, 16384, 32768};
  std::vector<int64_t> widths = {1000, 1024, 1536, 2048,  3072,  3584,  4096,  4097,  5120,  6144,
                                 7168, 8192, 9216, 10240, 11008, 11009, 12288, 13824, 16384, 18944};
  int64_t largest_bytes = int64_t{4} << 30;  // of a call; larger ones are left out
  double budget_seconds = 0;                 // 0: to the end
};

// One op at one form and shape, with each kind of data that makes a difference.
struct SweepPoint {
  std::string op, form, case_text, impl, bound_class;
  int64_t rows = 0, width = 0;
  int64_t bytes = 0;
  bool graph = false;
  bool results_agree = true;
  std::map<std::string, double> us, copy_us;  // by data
};

struct SweepCounts {
  int64_t points = 0;  // that the sweep has in all
  int64_t measured = 0;
  int64_t known = 0;      // before, see run_sweep
  int64_t not_calls = 0;  // that the contract does not allow at this shape, or too large ones
  int64_t left = 0;       // when the budget was used up
  std::map<std::string, int64_t> refused;  // sentences of implementations
};

// Visits shapes so that any first part of the sweep is spread over all of it: each form at one
// shape, then each at another. `known` says which points need not be measured; `memory` is a CUDA
// device's, or null for the CPU.
Result<SweepCounts> run_sweep(
    const std::vector<SweepForm>& forms, const SweepOptions& options, Memory* memory,
    const std::function<bool(const SweepForm&, int64_t rows, int64_t width)>& known,
    const std::function<void(const SweepPoint&, const SweepCounts&)>& report);

}  // namespace pestle::harness
