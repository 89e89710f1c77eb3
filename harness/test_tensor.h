// A tensor as the checks hand it to an op: laid out in an awkward way on purpose, between guard
// bands, filled with a pattern that no result can be mistaken for.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "harness/memory.h"

namespace pestle::harness {

enum class Layout : int {
  kContiguous,
  kOffset,      // contiguous, starts one element after an aligned address
  kUnaligned,   // contiguous, starts one byte after an aligned address
  kPadded,      // rows further apart than they are long
  kStrided,     // every second element of padded rows
  kTransposed,  // the first dimension runs fastest
  kReversed,    // negative strides
};
inline constexpr int kLayouts = 7;
std::string_view layout_name(Layout layout);

class TestTensor {
 public:
  // Memory for a tensor of `shape`'s dtype and dimensions; its strides are not looked at.
  static Result<TestTensor> make(Memory& memory, const TensorView& shape, Layout layout);

  // What the op sees.
  const TensorView& view() const { return view_; }
  // The same elements on the host. Changes reach the op by upload(), its results by download().
  const TensorView& host_view() const { return host_view_; }
  void upload();
  void download();
  // The guards alone, where there are no gaps between the elements; else everything.
  void download_guards();
  // The guards, and the elements whose indices are among `rows` in every dimension (an empty list
  // stands for all); else everything. What is hashed then lies where the op sees it.
  void download_rows(const std::vector<int64_t> (&rows)[kMaxRank]);
  // The whole allocation where the op sees it.
  Region region() const { return {device_.get(), bytes_}; }

  // Every byte, guards and gaps included, of the image on the host; or where the op sees them, and
  // the image is what download() brings.
  void poison(uint8_t byte);
  void poison_in_place(uint8_t byte);
  // Elements in row-major order. `contiguous` may be this tensor's own image when it is contiguous.
  void write(const void* contiguous);
  // The elements in row-major order: the image itself if it is contiguous, else gathered to
  // scratch.
  const void* read(std::vector<uint8_t>& scratch) const;
  uint64_t hash_elements() const;
  // Of every byte as the op sees them, guards included; small ones come to the host for it, unless
  // they were uploaded just now.
  uint64_t hash_in_place(bool uploaded = false);

  // Overwrites the elements with the poison and returns the offset from the first element, in
  // bytes, of a byte that is not an element and not the poison any more; `found` says if any.
  struct Stray {
    bool found = false;
    int64_t offset = 0;
    bool in_guard = false;  // before the first or after the last element, else in a gap
  };
  Stray erase_and_find_stray(uint8_t byte);

 private:
  struct Release {
    Memory* memory;
    int64_t bytes;
    void operator()(void* p) const { memory->release(p, bytes); }
  };
  std::unique_ptr<void, Release> device_{nullptr, {}};
  std::unique_ptr<void, Release> image_{nullptr, {}};  // null when the device is host visible
  Memory* memory_ = nullptr;
  int64_t bytes_ = 0;
  bool partial_ = false;  // the image holds no more than download_rows brought
  TensorView view_;
  TensorView host_view_;

  bool has_guards_only() const { return image_ && is_contiguous(host_view_) && numel(view_) > 0; }
  void bring(int64_t from, int64_t bytes);
  uint8_t* host_bytes() const {
    return static_cast<uint8_t*>(image_ ? image_.get() : device_.get());
  }
};

// Copies elements between a view and row-major order, by all threads.
void gather(const TensorView& from, void* contiguous);
void scatter(const void* contiguous, const TensorView& to);

// 64 bits that depend on every byte and its place. Same for any thread count.
uint64_t hash_bytes(const void* data, int64_t bytes);

}  // namespace pestle::harness
