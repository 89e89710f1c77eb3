#include "ops/copy/strided_copy.h"

#include <cstring>

#include "backends/cpu/parallel.h"

namespace pestle::ops {
namespace {

constexpr int64_t kTaskBytes = int64_t{1} << 17;  // worth another thread
constexpr int64_t kLine = 64;                     // bytes of a cache line

// Where index `index` of the outer dimensions (all but two of them) begins.
struct Outer {
  const CopyPlan& plan;
  int skipped[2];  // dimensions that are walked inside

  int64_t count() const {
    int64_t product = 1;
    for (int d = 0; d < plan.rank; ++d) product *= is_skipped(d) ? 1 : plan.shape[d];
    return product;
  }
  void place(int64_t index, const char*& from, char*& to) const {
    from = plan.from;
    to = plan.to;
    for (int d = plan.rank - 1; d >= 0; --d) {
      if (is_skipped(d)) continue;
      from += index % plan.shape[d] * plan.from_stride[d];
      to += index % plan.shape[d] * plan.to_stride[d];
      index /= plan.shape[d];
    }
  }
  bool is_skipped(int d) const { return d == skipped[0] || d == skipped[1]; }
};

void copy_rows(const CopyPlan& plan) {
  const int last = plan.rank - 1;
  const int64_t bytes = (plan.rank == 0 ? 1 : plan.shape[last]) * plan.from_bytes;
  const Outer outer{plan, {last, last}};
  // Long rows go in pieces, short ones several to a task.
  const int64_t pieces = (bytes + kTaskBytes - 1) / kTaskBytes;
  const int64_t grain = std::max<int64_t>(1, kTaskBytes / bytes);
  cpu::parallel_for(outer.count() * pieces, grain, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const char* from;
      char* to;
      outer.place(task / pieces, from, to);
      const int64_t start = task % pieces * kTaskBytes;
      std::memcpy(to + start, from + start,
                  static_cast<size_t>(std::min(kTaskBytes, bytes - start)));
    }
  });
}

constexpr int64_t kTileLines = 2;  // of x, in a tile's row

// A line of elements at steps of `by` bytes.
template <class T>
void copy_line(const char* from, int64_t from_by, char* to, int64_t to_by, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, from + i * from_by, sizeof(T));
    std::memcpy(to + i * to_by, &value, sizeof(T));
  }
}

// By way of a small copy: x's rows may lie so that their lines fall into the same few places of the
// first cache, and would be read once for each element.
template <class T>
void copy_tile(const char* from, char* to, int64_t rows, int64_t columns, const int64_t from_by[2],
               const int64_t to_by[2]) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(T));
  constexpr int64_t kSide = kTileLines * kLine / kBytes;
  if (rows == 1) return copy_line<T>(from, from_by[1], to, to_by[1], columns);
  T tile[kSide * kSide];
  auto* bytes = reinterpret_cast<char*>(tile);
  for (int64_t c = 0; c < columns; ++c) {
    const char* x = from + c * from_by[1];
    char* line = bytes + c * kSide * kBytes;
    if (from_by[0] == kBytes) {
      std::memcpy(line, x, static_cast<size_t>(rows * kBytes));
    } else {
      copy_line<T>(x, from_by[0], line, kBytes, rows);
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    char* out = to + r * to_by[0];
    if (to_by[1] == kBytes) {
      copy_line<T>(bytes + r * kBytes, kSide * kBytes, out, kBytes, columns);
    } else {
      copy_line<T>(bytes + r * kBytes, kSide * kBytes, out, to_by[1], columns);
    }
  }
}

using TileFunction = void (*)(const char*, char*, int64_t, int64_t, const int64_t*, const int64_t*);

TileFunction tile_function(int bytes) {
  switch (bytes) {
    case 1: return copy_tile<uint8_t>;
    case 2: return copy_tile<uint16_t>;
    case 4: return copy_tile<uint32_t>;
    default: return copy_tile<uint64_t>;
  }
}

// Dimension `across` is where x's elements are nearest, the last one where the output's are.
void copy_tiles(const CopyPlan& plan, int across) {
  const int last = plan.rank - 1;
  const int64_t rows = across == last ? 1 : plan.shape[across];
  const int64_t columns = plan.shape[last];
  const int64_t side = kTileLines * kLine / plan.from_bytes;
  const int64_t tile_rows = std::min(side, rows);
  const int64_t tile_columns = across == last ? kTaskBytes / plan.from_bytes : side;
  const int64_t down = (rows + tile_rows - 1) / tile_rows;
  const int64_t over = (columns + tile_columns - 1) / tile_columns;
  const int64_t from_by[2] = {plan.from_stride[across], plan.from_stride[last]};
  const int64_t to_by[2] = {plan.to_stride[across], plan.to_stride[last]};
  const Outer outer{plan, {across, last}};
  const TileFunction copy = tile_function(plan.from_bytes);
  const int64_t tile_bytes = tile_rows * std::min(tile_columns, columns) * plan.from_bytes;
  const int64_t grain = std::max<int64_t>(1, kTaskBytes / tile_bytes);
  cpu::parallel_for(outer.count() * down * over, grain, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const char* from;
      char* to;
      outer.place(task / (down * over), from, to);
      const int64_t row = task / over % down * tile_rows;
      const int64_t column = task % over * tile_columns;
      copy(from + row * from_by[0] + column * from_by[1], to + row * to_by[0] + column * to_by[1],
           std::min(tile_rows, rows - row), std::min(tile_columns, columns - column), from_by,
           to_by);
    }
  });
}

}  // namespace

void strided_copy(const CopyPlan& plan) {
  if (plan.elements == 0) return;
  if (plan.is_dense_row()) return copy_rows(plan);
  int across = plan.rank - 1;
  for (int d = 0; d < plan.rank; ++d) {
    if (std::llabs(plan.from_stride[d]) < std::llabs(plan.from_stride[across])) across = d;
  }
  copy_tiles(plan, across);
}

}  // namespace pestle::ops
