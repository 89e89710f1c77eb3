#include "files/encode_layer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <vector>

#include "backends/cpu/parallel.h"
#include "files/finite.h"
#include "files/scale_search.h"
#include "files/text.h"

namespace pestle::files {
namespace {

constexpr int64_t kChunkElements = int64_t{128} << 10;
constexpr int64_t kSliceElements = int64_t{64} << 10;
constexpr uint32_t kInfinityBits = 0x7F800000u;

// Rows of the tensor, read into the thread's own memory, until its next read.
Result<TensorView> read_rows(const ModelTensor& tensor, int64_t row, int64_t rows) {
  const int64_t k = tensor.shape[1];
  const int64_t row_bytes = k * dtype_bytes(tensor.dtype);
  const auto bytes = static_cast<size_t>(rows * row_bytes);
  auto* data = static_cast<std::byte*>(ChunkBuffers::of_thread().source(bytes));
  PESTLE_TRY(tensor.data.read(static_cast<uint64_t>(row * row_bytes), {data, bytes}));
  const int64_t shape[] = {rows, k};
  return make_view(data, tensor.dtype, 2, shape);
}

TensorView slice_of(const TensorView& chunk, int64_t row, int64_t rows) {
  const int64_t shape[] = {rows, chunk.shape[1]};
  return make_view(chunk.as<std::byte>() + row * chunk.shape[1] * dtype_bytes(chunk.dtype),
                   chunk.dtype, 2, shape);
}

// Keeps the first error of several threads.
class FirstError {
 public:
  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }
  void set(Status status) {
    if (status.ok()) return;
    const std::lock_guard lock(mutex_);
    if (!stopped_.exchange(true)) status_ = std::move(status);
  }
  Status take() { return std::move(status_); }

 private:
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;
  Status status_;
};

class LayerEncoder {
 public:
  LayerEncoder(const ModelTensor& tensor, const Codec& codec, const EncodeHooks& hooks)
      : tensor_(tensor), codec_(codec), hooks_(hooks), rows_per_chunk_(chunk_rows(codec)) {}

  Result<EncodeResult> run(bool mse_scales) {
    EncodeResult result;
    const int searchable = mse_scales ? codec_.searchable_field() : -1;
    if (codec_.tensor_scale_field() >= 0) {
      PESTLE_TRY(find_tensor_scale());
      if (searchable >= 0) PESTLE_TRY(search_tensor_scale(result));
    }
    search_pieces_ = searchable >= 0 && !codec_.is_shared(searchable);
    PESTLE_TRY(write_tensor_scale());
    double amax_noise = 0;
    PESTLE_TRY(encode_chunks(hooks_.sink, result.sums, amax_noise));
    if (search_pieces_) result.amax_noise = amax_noise;
    return result;
  }

 private:
  int64_t chunks() const { return (tensor_.shape[0] + rows_per_chunk_ - 1) / rows_per_chunk_; }
  Result<TensorView> read_chunk(int64_t chunk) const {
    const int64_t row = chunk * rows_per_chunk_;
    return read_rows(tensor_, row, std::min(rows_per_chunk_, tensor_.shape[0] - row));
  }

  // body(chunk) -> Status, over all chunks, on all cores.
  template <class Body>
  Status for_each_chunk(const Body& body) {
    FirstError error;
    // One at a time from one counter, so that no thread is left with more than a chunk at the end.
    std::atomic<int64_t> next{0};
    cpu::parallel_for(std::min<int64_t>(chunks(), cpu::threads()), 1, [&](int64_t, int64_t) {
      for (int64_t chunk = next++; chunk < chunks() && !error.stopped(); chunk = next++) {
        if (hooks_.cancel != nullptr && hooks_.cancel->load(std::memory_order_relaxed)) {
          error.set(interrupted());
        } else {
          error.set(body(chunk));
        }
      }
    });
    return error.take();
  }

  Status explain_not_finite() const {
    PESTLE_TRY(check_finite(tensor_));
    return {Code::kIoError, "tensor " + quote(tensor_.name) + ": changed while it was read"};
  }

  Status find_tensor_scale() {
    std::vector<uint32_t> largest(static_cast<size_t>(chunks()), 0);
    PESTLE_TRY(for_each_chunk([&](int64_t chunk) {
      const Result<TensorView> w = read_chunk(chunk);
      PESTLE_TRY(w.status());
      largest[static_cast<size_t>(chunk)] = largest_magnitude_bits(w.value());
      return Status();
    }));
    uint32_t bits = 0;
    for (const uint32_t chunk_bits : largest) bits = std::max(bits, chunk_bits);
    if (bits >= kInfinityBits) return explain_not_finite();
    tensor_scale_ = codec_.tensor_scale(bits);
    return {};
  }

  Status search_tensor_scale(EncodeResult& result) {
    const float amax_scale = tensor_scale_;
    float best_scale = amax_scale;
    double best_noise = 0;
    for (const float factor : scale_factors()) {
      tensor_scale_ = amax_scale * factor;
      ErrorSums sums;
      double unused = 0;
      PESTLE_TRY(encode_chunks({}, sums, unused));
      if (!result.amax_noise) result.amax_noise = sums.noise;  // the first factor is 1
      if (factor != 1 && sums.noise >= best_noise) continue;
      best_noise = sums.noise;
      best_scale = tensor_scale_;
    }
    tensor_scale_ = best_scale;
    return {};
  }

  Status write_tensor_scale() {
    const int field = codec_.tensor_scale_field();
    if (field < 0 || !hooks_.sink) return {};
    return hooks_.sink(field, 0, std::as_bytes(std::span(&tensor_scale_, 1)));
  }

  Status encode_chunks(const PieceSink& sink, ErrorSums& total, double& amax_noise) {
    std::vector<ErrorSums> sums(static_cast<size_t>(chunks()));
    std::vector<double> amax(static_cast<size_t>(chunks()), 0);
    PESTLE_TRY(for_each_chunk([&](int64_t chunk) {
      const auto i = static_cast<size_t>(chunk);
      return encode_chunk(chunk, sink, sums[i], amax[i]);
    }));
    // In order, so that the sums do not depend on the threads.
    for (size_t i = 0; i < sums.size(); ++i) {
      total.add(sums[i]);
      amax_noise += amax[i];
    }
    return {};
  }

  Status encode_chunk(int64_t chunk, const PieceSink& sink, ErrorSums& sums, double& amax_noise) {
    const Result<TensorView> read = read_chunk(chunk);
    PESTLE_TRY(read.status());
    const TensorView& w = read.value();
    Result<FieldViews> stored = codec_.piece_views(w.shape[0]);
    PESTLE_TRY(stored.status());
    Result<FieldViews> plain = codec_.slice_views(w.shape[0]);
    PESTLE_TRY(plain.status());
    const size_t count = codec_.layout().fields.size();
    ChunkBuffers& buffers = ChunkBuffers::of_thread();
    const int scale = codec_.tensor_scale_field();
    if (scale >= 0) stored.value()[static_cast<size_t>(scale)].data = &tensor_scale_;
    buffers.attach(stored.value(), count);
    for (size_t i = 0; i < count; ++i) {
      TensorView& view = plain.value()[i];
      view.data = codec_.is_rearranged(static_cast<int>(i))
                      ? buffers.rearranged(static_cast<size_t>(size_bytes(view)))
                      : stored.value()[i].data;
    }
    const int64_t rows = slice_rows();
    for (int64_t row = 0; row < w.shape[0]; row += rows) {
      const int64_t here = std::min(rows, w.shape[0] - row);
      PESTLE_TRY(encode_slice(slice_of(w, row, here), plain.value(), row, sums, amax_noise));
    }
    codec_.arrange(plain.value(), stored.value());
    if (sink) PESTLE_TRY(write_pieces(chunk, stored.value(), sink));
    if (hooks_.advance && sink) hooks_.advance(static_cast<uint64_t>(size_bytes(w)));
    return {};
  }

  // Rows whose weights, codes and decoded values stay in the second-level cache together.
  int64_t slice_rows() const {
    const int64_t step = codec_.slice_step();
    return std::max<int64_t>(1, kSliceElements / codec_.layout().padded_k / step) * step;
  }

  // `plain`: fields of the chunk; the slice's begin at its `row`.
  Status encode_slice(const TensorView& w, const FieldViews& plain, int64_t row, ErrorSums& sums,
                      double& amax_noise) {
    if (codec_.tensor_scale_field() < 0 && largest_magnitude_bits(w) >= kInfinityBits) {
      return explain_not_finite();
    }
    Result<FieldViews> views = codec_.slice_views(w.shape[0]);
    PESTLE_TRY(views.status());
    for (size_t i = 0; i < codec_.layout().fields.size(); ++i) {
      views.value()[i].data =
          plain[i].as<std::byte>() + codec_.slice_offset(static_cast<int>(i), row);
    }
    const FieldViews& fields = views.value();
    TensorView decoded =
        ChunkBuffers::of_thread().decoded(fields[0].shape[0], codec_.layout().padded_k);
    if (search_pieces_) {
      PESTLE_TRY(encode_with_best_scales(codec_, w, fields, decoded, amax_noise));
    } else {
      PESTLE_TRY(codec_.encode(w, fields));
    }
    PESTLE_TRY(codec_.decode_slice(fields, decoded));
    sums.add(error_sums(w, decoded.as<float>(), decoded.shape[1], codec_.codes_of(fields)));
    return {};
  }

  Status write_pieces(int64_t chunk, const FieldViews& fields, const PieceSink& sink) const {
    for (size_t i = 0; i < codec_.layout().fields.size(); ++i) {
      const int field = static_cast<int>(i);
      if (field == codec_.tensor_scale_field()) continue;
      if (codec_.is_shared(field) && chunk > 0) continue;
      PESTLE_TRY(sink(field, codec_.piece_offset(field, chunk * rows_per_chunk_),
                      {fields[i].as<std::byte>(), static_cast<size_t>(size_bytes(fields[i]))}));
    }
    return {};
  }

  const ModelTensor& tensor_;
  const Codec& codec_;
  const EncodeHooks& hooks_;
  const int64_t rows_per_chunk_;
  float tensor_scale_ = 1;
  bool search_pieces_ = false;
};

}  // namespace

int64_t chunk_rows(const Codec& codec) {
  const int64_t step = codec.row_step();
  return std::max<int64_t>(1, kChunkElements / codec.layout().padded_k / step) * step;
}

ChunkBuffers& ChunkBuffers::of_thread() {
  thread_local ChunkBuffers buffers;
  return buffers;
}

void* ChunkBuffers::Buffer::reserve(size_t bytes) {
  if (size < bytes + 64) {
    size = bytes + 64;
    data = std::make_unique_for_overwrite<std::byte[]>(size);
  }
  const auto address = reinterpret_cast<uintptr_t>(data.get());
  return data.get() + (64 - address % 64) % 64;
}

void ChunkBuffers::attach(FieldViews& views, size_t fields) {
  for (size_t i = 0; i < fields; ++i) {
    if (views[i].data == nullptr) {
      views[i].data = fields_[i].reserve(static_cast<size_t>(size_bytes(views[i])));
    }
  }
}

TensorView ChunkBuffers::decoded(int64_t rows, int64_t k) {
  const int64_t shape[] = {rows, k};
  TensorView view = make_view(nullptr, DType::kF32, 2, shape);
  view.data = decoded_.reserve(static_cast<size_t>(size_bytes(view)));
  return view;
}

Result<EncodeResult> encode_layer(const ModelTensor& tensor, const LayerLayout& layout,
                                  bool mse_scales, const EncodeHooks& hooks) {
  const Result<Codec> codec = Codec::make(layout, tensor.dtype);
  PESTLE_TRY(codec.status());
  return LayerEncoder(tensor, codec.value(), hooks).run(mse_scales);
}

}  // namespace pestle::files
