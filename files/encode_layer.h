// One layer through its codec: chunks of rows on all cores, each encoded, decoded and compared
// slice by slice while it is in the cache, then written.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "files/codec.h"
#include "files/model.h"
#include "files/quantize_options.h"

namespace pestle::files {

// Bytes of a field at an offset in it. Called from any thread.
using PieceSink = std::function<Status(int field, uint64_t offset, std::span<const std::byte>)>;

struct EncodeHooks {
  PieceSink sink;                         // empty: only the error is wanted
  std::function<void(uint64_t)> advance;  // source bytes done
  const std::atomic<bool>* cancel = nullptr;
};

struct EncodeResult {
  ErrorSums sums;
  std::optional<double> amax_noise;  // with mse_scales, for formats whose scales can be searched
};

// kCorruptFile with the element's place when a weight is NaN or infinite.
Result<EncodeResult> encode_layer(const ModelTensor& tensor, const LayerLayout& layout,
                                  bool mse_scales, const EncodeHooks& hooks);

// The rows that one chunk takes; the same for every thread count.
int64_t chunk_rows(const Codec& codec);

// Room for the source, the pieces and the decoded values of one chunk, kept by each thread.
class ChunkBuffers {
 public:
  static ChunkBuffers& of_thread();
  // Gives every view without memory its own, all aligned to 64 bytes.
  void attach(FieldViews& views, size_t fields);
  TensorView decoded(int64_t rows, int64_t k);
  void* source(size_t bytes) { return source_.reserve(bytes); }
  void* rearranged(size_t bytes) { return rearranged_.reserve(bytes); }

 private:
  struct Buffer {
    std::unique_ptr<std::byte[]> data;
    size_t size = 0;
    void* reserve(size_t bytes);
  };
  std::array<Buffer, formats::kMaxFormatFields> fields_;
  Buffer decoded_;
  Buffer rearranged_;
  Buffer source_;
};

}  // namespace pestle::files
