// Paths of GEMMs that a tuner measured (core/tuned.h, whose word is way), looked up by shape.
#pragma once

#include <optional>

#include "core/tuned.h"
#include "ops/gemm/select/gemm_choice.h"

namespace pestle::ops {

// A GEMM in a file's words: "bf16 bf16 bf16 4608x12288x3072 b1 kn f32"; of a then b, k: its
// neighbours lie along k, n: across it.
std::string text_of(const GemmKey& key);
std::optional<GemmKey> gemm_of_text(const std::string& text);

// What was measured for it on such a GPU; null: nothing. A load and a branch where no file is used,
// else a look into a table.
const GemmChoice* tuned_choice(const GemmKey& key, int compute_capability, int multiprocessors);

// A choice as it stands in a file, for a tuner. `library`: the version of cuBLASLt.
TunedChoice as_tuned(const GemmKey& key, const GemmChoice& choice, int64_t library);

}  // namespace pestle::ops
