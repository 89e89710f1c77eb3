#include "harness/test_tensor.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "backends/cpu/parallel.h"

namespace pestle::harness {
namespace {

// Wide enough that four unrolled 64-byte stores past the end still land in it.
constexpr int64_t kGuardBytes = 1024;
constexpr int64_t kPadElements = 3;
constexpr int64_t kMostPieces = 4096;  // of sampled rows, that are brought one by one
constexpr int64_t kHashedHere = int64_t{1} << 20;
constexpr int64_t kBytesPerTask = int64_t{1} << 20;

// A matrix that the case gives with dense columns (".mT").
bool lies_transposed(const TensorView& t) {
  return t.rank == 2 && t.strides[0] == 1 && t.strides[1] == t.shape[0] && t.shape[0] > 1;
}

// Strides in elements; returns the first element's distance from the lowest address, in elements.
int64_t set_strides(TensorView& t, Layout layout) {
  if (layout == Layout::kContiguous && lies_transposed(t)) layout = Layout::kTransposed;
  const int64_t step = layout == Layout::kStrided ? 2 : 1;
  const int64_t pad = layout == Layout::kPadded || layout == Layout::kStrided ? kPadElements : 0;
  set_contiguous_strides(t);
  if (layout == Layout::kTransposed) {
    int64_t stride = 1;
    for (int d = 0; d < t.rank; ++d) {
      t.strides[d] = stride;
      stride *= std::max<int64_t>(t.shape[d], 1);
    }
    return 0;
  }
  int64_t stride = step;
  for (int d = t.rank - 1; d >= 0; --d) {
    t.strides[d] = stride;
    stride *= std::max<int64_t>(t.shape[d], 1);
    if (d == t.rank - 1) stride += pad;
  }
  if (layout != Layout::kReversed) return 0;
  int64_t first = 0;
  for (int d = 0; d < t.rank; ++d) {
    first += std::max<int64_t>(t.shape[d] - 1, 0) * t.strides[d];
    t.strides[d] = -t.strides[d];
  }
  return first;
}

int64_t span_elements(const TensorView& t) {
  if (numel(t) == 0) return 0;
  int64_t reach = 1;
  for (int d = 0; d < t.rank; ++d) reach += (t.shape[d] - 1) * std::abs(t.strides[d]);
  return reach;
}

int64_t row_offset(const TensorView& t, int64_t row) {
  int64_t offset = 0;
  for (int d = t.rank - 2; d >= 0; --d) {
    offset += row % t.shape[d] * t.strides[d];
    row /= t.shape[d];
  }
  return offset;
}

enum class Direction { kGather, kScatter };

template <class T, Direction kDirection>
void copy_rows(const TensorView& t, uint8_t* contiguous) {
  const int64_t length = t.rank == 0 ? 1 : t.shape[t.rank - 1];
  const int64_t stride = t.rank == 0 ? 1 : t.strides[t.rank - 1];
  if (numel(t) == 0) return;
  const int64_t rows = numel(t) / length;
  const int64_t row_bytes = length * static_cast<int64_t>(sizeof(T));
  cpu::parallel_for(
      rows, std::max<int64_t>(1, kBytesPerTask / row_bytes), [&](int64_t b, int64_t e) {
        for (int64_t row = b; row < e; ++row) {
          uint8_t* strided = t.as<uint8_t>() + row_offset(t, row) * static_cast<int64_t>(sizeof(T));
          uint8_t* packed = contiguous + row * row_bytes;
          if (stride == 1) {
            std::memcpy(kDirection == Direction::kGather ? packed : strided,
                        kDirection == Direction::kGather ? strided : packed,
                        static_cast<size_t>(row_bytes));
            continue;
          }
          for (int64_t i = 0; i < length; ++i) {
            uint8_t* element = strided + i * stride * static_cast<int64_t>(sizeof(T));
            uint8_t* plain = packed + i * static_cast<int64_t>(sizeof(T));
            std::memcpy(kDirection == Direction::kGather ? plain : element,
                        kDirection == Direction::kGather ? element : plain, sizeof(T));
          }
        }
      });
}

template <Direction kDirection>
void copy_elements(const TensorView& t, uint8_t* contiguous) {
  switch (dtype_bytes(t.dtype)) {
    case 1: return copy_rows<uint8_t, kDirection>(t, contiguous);
    case 2: return copy_rows<uint16_t, kDirection>(t, contiguous);
    case 4: return copy_rows<uint32_t, kDirection>(t, contiguous);
    default: return copy_rows<uint64_t, kDirection>(t, contiguous);
  }
}

uint64_t mix(uint64_t h, uint64_t word) {
  h = (h ^ word) * 0x9E3779B97F4A7C15u;
  return h ^ (h >> 29);
}

uint64_t hash_block(const uint8_t* data, int64_t bytes) {
  uint64_t lanes[4] = {1, 2, 3, 4};
  int64_t i = 0;
  for (; i + 32 <= bytes; i += 32) {
    for (int lane = 0; lane < 4; ++lane) {
      uint64_t word;
      std::memcpy(&word, data + i + 8 * lane, 8);
      lanes[lane] = mix(lanes[lane], word);
    }
  }
  uint64_t h = mix(mix(mix(lanes[0], lanes[1]), lanes[2]), lanes[3]);
  for (; i < bytes; ++i) h = mix(h, data[i] + 1u);
  return h;
}

}  // namespace

std::string_view layout_name(Layout layout) {
  constexpr std::string_view kNames[kLayouts] = {"contiguous", "offset",     "unaligned", "padded",
                                                 "strided",    "transposed", "reversed"};
  return kNames[static_cast<int>(layout)];
}

uint64_t hash_bytes(const void* data, int64_t bytes) {
  const int64_t blocks = (bytes + kBytesPerTask - 1) / kBytesPerTask;
  std::vector<uint64_t> hashes(static_cast<size_t>(blocks));
  cpu::parallel_for(blocks, 1, [&](int64_t b, int64_t e) {
    for (int64_t i = b; i < e; ++i) {
      const int64_t begin = i * kBytesPerTask;
      hashes[static_cast<size_t>(i)] = hash_block(static_cast<const uint8_t*>(data) + begin,
                                                  std::min(kBytesPerTask, bytes - begin));
    }
  });
  uint64_t h = static_cast<uint64_t>(bytes);
  for (uint64_t block : hashes) h = mix(h, block);
  return h;
}

void gather(const TensorView& from, void* contiguous) {
  copy_elements<Direction::kGather>(from, static_cast<uint8_t*>(contiguous));
}

void scatter(const void* contiguous, const TensorView& to) {
  copy_elements<Direction::kScatter>(to,
                                     const_cast<uint8_t*>(static_cast<const uint8_t*>(contiguous)));
}

Result<TestTensor> TestTensor::make(Memory& memory, const TensorView& shape, Layout layout) {
  TestTensor t;
  t.memory_ = &memory;
  t.view_ = shape;
  t.view_.device = memory.device();
  const int64_t element = dtype_bytes(shape.dtype);
  const int64_t first = set_strides(t.view_, layout);
  const int64_t shift = layout == Layout::kOffset ? element : layout == Layout::kUnaligned ? 1 : 0;
  t.bytes_ = 2 * kGuardBytes + shift + span_elements(t.view_) * element;
  t.device_ = {memory.allocate(t.bytes_), Release{&memory, t.bytes_}};
  void* host = t.device_.get();
  if (!memory.host_visible()) {
    t.image_ = {host_memory().allocate(t.bytes_), Release{&host_memory(), t.bytes_}};
    host = t.image_.get();
  }
  if (!t.device_ || host == nullptr) {
    return Status{Code::kOutOfMemory, "no memory for " + describe(shape)};
  }
  const int64_t offset = kGuardBytes + shift + first * element;
  t.host_view_ = t.view_;
  t.host_view_.device = {};
  t.host_view_.data = static_cast<uint8_t*>(host) + offset;
  t.view_.data = static_cast<uint8_t*>(t.device_.get()) + offset;
  return t;
}

void TestTensor::upload() {
  if (image_) memory_->to_device(device_.get(), image_.get(), bytes_);
}

void TestTensor::download() {
  memory_->synchronize();
  partial_ = false;
  if (image_) memory_->to_host(image_.get(), device_.get(), bytes_);
}

void TestTensor::bring(int64_t from, int64_t bytes) {
  memory_->to_host(host_bytes() + from, static_cast<uint8_t*>(device_.get()) + from, bytes);
}

void TestTensor::download_guards() {
  if (!has_guards_only()) return download();
  memory_->synchronize();
  const int64_t begin = host_view_.as<uint8_t>() - host_bytes();
  const int64_t end = begin + size_bytes(host_view_);
  bring(0, begin);
  bring(end, bytes_ - end);
}

void TestTensor::download_rows(const std::vector<int64_t> (&rows)[kMaxRank]) {
  int d = 0;
  int64_t outer = 1;
  while (d < view_.rank && rows[d].empty()) outer *= view_.shape[d++];
  const bool some = d < view_.rank && outer * std::ssize(rows[d]) <= kMostPieces;
  if (!some || !has_guards_only() || bytes_ <= kHashedHere) return download();
  download_guards();
  partial_ = true;
  const int64_t begin = host_view_.as<uint8_t>() - host_bytes();
  const int64_t piece = host_view_.strides[d] * dtype_bytes(host_view_.dtype);
  for (int64_t o = 0; o < outer; ++o)
    for (const int64_t row : rows[d]) bring(begin + (o * view_.shape[d] + row) * piece, piece);
}

void TestTensor::poison(uint8_t byte) {
  cpu::parallel_for(bytes_, kBytesPerTask, [&](int64_t b, int64_t e) {
    std::memset(host_bytes() + b, byte, static_cast<size_t>(e - b));
  });
}

void TestTensor::poison_in_place(uint8_t byte) {
  if (image_)
    memory_->fill(device_.get(), byte, bytes_);
  else
    poison(byte);
}

void TestTensor::write(const void* contiguous) {
  if (contiguous != host_view_.data) scatter(contiguous, host_view_);
}

const void* TestTensor::read(std::vector<uint8_t>& scratch) const {
  if (is_contiguous(host_view_)) return host_view_.data;
  scratch.resize(static_cast<size_t>(size_bytes(host_view_)));
  gather(host_view_, scratch.data());
  return scratch.data();
}

uint64_t TestTensor::hash_elements() const {
  if (partial_) return memory_->hash(view_.data, size_bytes(view_));
  std::vector<uint8_t> scratch;
  const void* elements = read(scratch);
  return hash_bytes(elements, size_bytes(host_view_));
}

uint64_t TestTensor::hash_in_place(bool uploaded) {
  if (image_ && bytes_ > kHashedHere) return memory_->hash(device_.get(), bytes_);
  if (!uploaded) download();
  return hash_bytes(host_bytes(), bytes_);
}

TestTensor::Stray TestTensor::erase_and_find_stray(uint8_t byte) {
  const int64_t size = size_bytes(host_view_);
  if (is_contiguous(host_view_)) {
    // Gaps do not exist: only the guards are looked at, and no second pass over gigabytes is made.
    const int64_t begin = host_view_.as<uint8_t>() - host_bytes();
    for (int64_t i = 0; i < bytes_; i = i + 1 == begin ? begin + size : i + 1) {
      if (host_bytes()[i] != byte) return {true, i - begin, true};
    }
    return {};
  }
  const std::vector<uint8_t> pattern(static_cast<size_t>(size), byte);
  scatter(pattern.data(), host_view_);
  std::atomic<int64_t> first{bytes_};
  cpu::parallel_for(bytes_, kBytesPerTask, [&](int64_t b, int64_t e) {
    const uint8_t* end = host_bytes() + e;
    const uint8_t* begin = host_bytes() + b;
    const uint8_t* found = std::find_if(begin, end, [&](uint8_t v) { return v != byte; });
    if (found == end) return;
    int64_t old = first.load();
    while (found - host_bytes() < old && !first.compare_exchange_weak(old, found - host_bytes())) {
    }
  });
  if (first == bytes_) return {};
  const ByteRange range = byte_range(host_view_);
  const auto address = reinterpret_cast<uintptr_t>(host_bytes() + first);
  return {true, host_bytes() + first - host_view_.as<uint8_t>(),
          address < range.begin || address >= range.end};
}

}  // namespace pestle::harness
