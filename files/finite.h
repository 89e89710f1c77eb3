// NaN and infinities in a model's tensors, whatever becomes of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/status.h"
#include "files/model.h"

namespace pestle::files {

// kCorruptFile with the place of the first NaN or infinity. Tensors of integers, and of elements
// that are no dtype of ours (F4, F6, C64), have none.
Status check_finite(const ModelTensor& tensor);
// The same for bytes of the tensor that begin at `offset`, a multiple of 8.
Status check_finite(const ModelTensor& tensor, uint64_t offset, std::span<const std::byte> bytes);

}  // namespace pestle::files
