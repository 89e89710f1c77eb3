#include "ops/gemm/select/gemm_tuned.h"

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <sstream>
#include <vector>

#include "ops/gemm/select/gemm_tuned_reader.h"

namespace pestle::ops {
namespace {

constexpr std::array<const char*, 5> kSums = {"f32", "fast", "accurate", "blocks", "integer"};
// The words of files, which outlive names in code.
constexpr std::array<const char*, 4> kPathNames = {"few_rows", "tile", "library", "slices"};

template <size_t kCount>
int place_of(const std::array<const char*, kCount>& names, const std::string& name) {
  for (size_t i = 0; i < kCount; ++i) {
    if (name == names[i]) return static_cast<int>(i);
  }
  return -1;
}

struct Entry {
  GemmKey key;
  GemmChoice choice;
  bool used = false;
};

// Open addressing, never more than half full.
struct Table {
  int compute_capability = 0, multiprocessors = 0;
  std::vector<Entry> entries;

  static size_t hash(const GemmKey& key) {
    uint64_t h = static_cast<uint64_t>(key.sums) << 2 | uint64_t{key.a_along_k} << 1 |
                 uint64_t{key.b_along_k};
    for (const int64_t word : {key.m, key.n, key.k, key.batches, static_cast<int64_t>(key.a),
                               static_cast<int64_t>(key.b), static_cast<int64_t>(key.out)})
      h = (h ^ static_cast<uint64_t>(word)) * 0x9E3779B97F4A7C15u;
    return static_cast<size_t>(h >> 32);
  }
  Entry& place(const GemmKey& key) {
    size_t at = hash(key) % entries.size();
    while (entries[at].used && !(entries[at].key == key)) at = (at + 1) % entries.size();
    return entries[at];
  }
  const Entry* find(const GemmKey& key) const {
    size_t at = hash(key) % entries.size();
    while (entries[at].used) {
      if (entries[at].key == key) return &entries[at];
      at = (at + 1) % entries.size();
    }
    return nullptr;
  }
};

std::atomic<const Table*> g_table{nullptr};

Status read_choice(const TunedChoice& from, Entry* entry) {
  const auto key = gemm_of_text(from.key);
  if (!key) return {Code::kCorruptFile, "choice '" + from.key + "' names no product"};
  const int path = place_of(kPathNames, from.way);
  const bool tile = from.variant == 128 || from.variant == 192 || from.variant == 256;
  const bool tiles =
      path == static_cast<int>(GemmPath::kTile) || path == static_cast<int>(GemmPath::kSplitK);
  if (path < 0 || from.variant < 0 || (tiles && !tile) ||
      (path == static_cast<int>(GemmPath::kLibrary) && from.variant > 7)) {
    return {Code::kCorruptFile, "choice '" + from.key + "': no way '" + from.way +
                                    "' with variant " + std::to_string(from.variant)};
  }
  *entry = {*key,
            {static_cast<GemmPath>(path), from.variant, true, static_cast<int>(from.version)},
            true};
  return {};
}

Status check(const TunedFile& file) {
  Entry entry;
  for (const TunedChoice& choice : file.choices) PESTLE_TRY(read_choice(choice, &entry));
  return {};
}

// Calls of other threads may still read an older table, so all are kept.
void use(const TunedFile& file) {
  static std::mutex mutex;
  static std::vector<std::unique_ptr<Table>> kept;
  const std::lock_guard<std::mutex> lock(mutex);
  if (file.choices.empty()) {
    g_table.store(nullptr, std::memory_order_release);
    return;
  }
  auto table = std::make_unique<Table>();
  table->compute_capability = file.compute_capability;
  table->multiprocessors = file.multiprocessors;
  table->entries.resize(2 * file.choices.size());
  for (const TunedChoice& choice : file.choices) {
    Entry entry;
    if (read_choice(choice, &entry).ok()) table->place(entry.key) = entry;  // check() has seen it
  }
  g_table.store(table.get(), std::memory_order_release);
  kept.push_back(std::move(table));
}

const bool kAdded = add_tuned_reader({check, use});

}  // namespace

std::string text_of(const GemmKey& key) {
  std::ostringstream text;
  text << dtype_name(key.a) << ' ' << dtype_name(key.b) << ' ' << dtype_name(key.out) << ' '
       << key.m << 'x' << key.n << 'x' << key.k << " b" << key.batches << ' '
       << (key.a_along_k ? 'k' : 'n') << (key.b_along_k ? 'k' : 'n') << ' '
       << kSums[static_cast<size_t>(key.sums)];
  return text.str();
}

std::optional<GemmKey> gemm_of_text(const std::string& text) {
  std::istringstream words(text);
  std::string a, b, out, along, sums, more;
  char x1 = 0, x2 = 0, batch = 0;
  GemmKey key;
  words >> a >> b >> out >> key.m >> x1 >> key.n >> x2 >> key.k >> batch >> key.batches >> along >>
      sums;
  if (!words || words >> more) return std::nullopt;
  key.a = dtype_from_name(a);
  key.b = dtype_from_name(b);
  key.out = dtype_from_name(out);
  const int which = place_of(kSums, sums);
  const bool layout = along.size() == 2 && along.find_first_not_of("kn") == std::string::npos;
  const bool dtypes = key.a != DType::kNone && key.b != DType::kNone && key.out != DType::kNone;
  if (!dtypes || !layout || which < 0 || x1 != 'x' || x2 != 'x' || batch != 'b' || key.m < 1 ||
      key.n < 1 || key.k < 1 || key.batches < 1)
    return std::nullopt;
  key.a_along_k = along[0] == 'k';
  key.b_along_k = along[1] == 'k';
  key.sums = static_cast<GemmSums>(which);
  return key;
}

const GemmChoice* tuned_choice(const GemmKey& key, int compute_capability, int multiprocessors) {
  const Table* table = g_table.load(std::memory_order_acquire);
  if (table == nullptr || table->compute_capability != compute_capability ||
      table->multiprocessors != multiprocessors)
    return nullptr;
  const Entry* entry = table->find(key);
  return entry != nullptr ? &entry->choice : nullptr;
}

bool reads_tuned_gemms() { return kAdded; }

TunedChoice as_tuned(const GemmKey& key, const GemmChoice& choice, int64_t library) {
  TunedChoice tuned;
  tuned.key = text_of(key);
  tuned.way = kPathNames[static_cast<size_t>(choice.path)];
  tuned.variant = choice.variant;
  tuned.version = choice.path == GemmPath::kLibrary ? library : 0;
  return tuned;
}

}  // namespace pestle::ops
