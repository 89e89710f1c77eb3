// Choices that `pestle tune` measured on one GPU: a small JSON file, read once at start-up
// (PESTLE_TUNED=PATH) or when asked to, never by a call.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"

namespace pestle {

struct TunedChoice {
  std::string key;      // what is chosen for, in its owner's words
  std::string way;      // which way it goes
  int variant = 0;      // of that way: a tile's columns, an algorithm's place
  int64_t version = 0;  // of the library whose algorithm it is; 0: ours
  double us = 0;        // when it was measured
};

struct TunedFile {
  std::string gpu;
  int compute_capability = 0;
  int multiprocessors = 0;
  std::vector<TunedChoice> choices;
};

Result<TunedFile> read_tuned(const std::string& path);
// Complete or not at all.
Status write_tuned(const std::string& path, const TunedFile& file);
// Adds the choices of `more`, which replace those of the same key. The GPU must be the same.
Status merge_tuned(TunedFile& file, const TunedFile& more);

// Choices from now on, in place of earlier ones; none in the file: as if there never was one. An
// error changes nothing. What threads remember of earlier choices is forgotten.
Status use_tuned(const TunedFile& file);
Status load_tuned(const std::string& path);  // read_tuned and use_tuned
// What PESTLE_TUNED names, if it is set. A fault is said on standard error, once: nothing can
// return it.
void load_tuned_of_environment();

// Who understands keys: `check` names what is wrong with a file, `use` then takes it.
struct TunedReader {
  Status (*check)(const TunedFile&) = nullptr;
  void (*use)(const TunedFile&) = nullptr;
};
bool add_tuned_reader(const TunedReader& reader);  // true, for the initialiser of a constant

}  // namespace pestle
