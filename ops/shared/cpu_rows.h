// What the CPU's fast paths share: rows of tensors, and splitting them over the cores.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>

#include "backends/cpu/parallel.h"
#include "core/op.h"
#include "ops/shared/element.h"

namespace pestle::ops {

// Elements that are worth handing to another thread.
inline constexpr int64_t kPieceElements = int64_t{1} << 16;

// Why a fast path refuses this tensor, or empty: elements of a row must be neighbours.
inline std::string refuse_strided_row(const char* name, const TensorView& t) {
  if (t.rank == 0 || t.shape[t.rank - 1] <= 1 || t.strides[t.rank - 1] == 1) return {};
  return std::string(name) + " has stride " + std::to_string(t.strides[t.rank - 1]) +
         " in its last dimension; the fast path needs 1";
}

inline std::string refuse_strided_rows(const Call& call, std::initializer_list<int> arguments) {
  for (int index : arguments) {
    if (!call.has(index)) continue;
    const char* name = call.spec->args[static_cast<size_t>(index)].name;
    if (std::string why = refuse_strided_row(name, call.tensor(index)); !why.empty()) return why;
  }
  return {};
}

// Rows of whole tensors: one long row where both tensors are contiguous, so that short rows cost
// nothing. Only for work that does not care where a row starts.
struct FlatRows {
  int64_t rows;
  int64_t length;
  FlatRows(int64_t row_count, int64_t row_length) : rows(row_count), length(row_length) {}
  FlatRows(const TensorView& a, const TensorView& b) : rows(row_count(a)), length(row_length(a)) {
    if (is_contiguous(a) && is_contiguous(b)) {
      length *= rows;
      rows = 1;
    }
  }
};

// body(row, begin, count) over pieces of all rows, none longer than kPieceElements.
template <class Body>
void parallel_pieces(const FlatRows& flat, Body&& body) {
  if (flat.rows <= 0 || flat.length <= 0) return;
  const int64_t per_row = (flat.length + kPieceElements - 1) / kPieceElements;
  const int64_t grain = std::max<int64_t>(1, kPieceElements / flat.length);
  cpu::parallel_for(flat.rows * per_row, grain, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t start = piece % per_row * kPieceElements;
      body(piece / per_row, start, std::min(kPieceElements, flat.length - start));
    }
  });
}

// body(begin, end) over ranges of rows.
template <class Body>
void parallel_rows(int64_t rows, int64_t length, Body&& body) {
  const int64_t grain = std::max<int64_t>(1, kPieceElements / std::max<int64_t>(1, length));
  cpu::parallel_for(rows, grain, [&](int64_t begin, int64_t end) { body(begin, end); });
}

}  // namespace pestle::ops
