// The job of many_rows_hopper.cuh, and of one of its kernels the tile, what lies where in shared memory,
// and how the registers are dealt out.
#pragma once

#include <algorithm>

#include "ops/gemm/weight_only/finish_rows.cuh"
#include "ops/gemm/weight_only/k_parts.h"

namespace pestle::cuda::many_rows {

// k in parts, each of so many steps, by the CTAs of a cluster. Clusters take turns at the tiles.
struct KParts {
  int count = 1, steps = 0, clusters = 0;
};

struct HopperJob {
  CUtensorMap x;      // boxes of 64 k and kTileM rows
  CUtensorMap codes;  // the same of kTileN rows
  Job job;
  KParts parts;
};

// kGroup_Of: columns whose sums begin anew and are scaled in registers, where the format's scales
// multiply sums: 32, 64 or 128. Else 0.
template <bool kBf16_Of, int kTileM_Of, class Format, int kGroup_Of = 0, int kConsumers_Of = 2>
struct HopperConfig {
  static constexpr bool kBf16 = kBf16_Of;
  static constexpr int kTileM = kTileM_Of;
  static constexpr int kGroup = kGroup_Of;
  // Warpgroups that multiply, each 64 rows of the weight. Few rows of x are multiplied sooner than
  // one warpgroup decodes the next codes.
  static constexpr int kConsumers = kConsumers_Of;
  static constexpr int kTileN = 64 * kConsumers;
  static constexpr int kTilesM = 2048 / kTileM;  // tiles along m that sweep n together
  static constexpr int kBits = Format::kBits;
  static constexpr int kCodeRow = kStepK * kBits / 8;
  static constexpr int kXBytes = kTileM * kXRow;
  static constexpr int kCodeBytes = kTileN * kCodeRow;
  static constexpr int kScaleBytes = kTileN * Format::kScaleBytes;
  static constexpr int kStageBytes = (kXBytes + kCodeBytes + kScaleBytes + 1023) / 1024 * 1024;
  static constexpr int kStagedRows = kTileM < 64 ? kTileM : 64;  // of out, at a time
  static constexpr int kStagingRow = 64 + 4;                     // f32: no two lanes meet in a bank
  static constexpr int kStoredRows = kTileM > 128 ? kTileM / 2 : kTileM;  // the same as 16 bits
  // Of a consumer's sums, where k has parts: in its staging area, or in x of two stages.
  static constexpr int kFragmentsOf64 = kTileM / 2;
  static constexpr int kExchangeBytes =
      ops::most_exchanged(kFragmentsOf64, kTileM <= ops::kPartsBesideRing) * 512;
  static constexpr bool kInRing = kTileM > ops::kPartsBesideRing;
  static constexpr int kStagingBytes =
      (std::max({kStagedRows * kStagingRow * 4, kStoredRows * 128, kInRing ? 0 : kExchangeBytes}) +
       127) /
      128 * 128;
  // Of every byte its two codes, for each lane in a bank of its own. Where there is room lines of 256
  // bytes, half of them unused: then one instruction makes a place of a byte.
  static constexpr int kTableLine = kTileM <= 64 ? 256 : 128;
  static constexpr int kTableBytes = Format::kPairTable ? 256 * kTableLine : 0;
  static constexpr int kRest = 227 * 1024 - kConsumers * kStagingBytes - kTableBytes - 1024;
  static constexpr int kStages = kRest / kStageBytes < 8 ? kRest / kStageBytes : 8;
  static constexpr int kStagingPlace = kStages * kStageBytes;
  static constexpr int kTablePlace = kStagingPlace + kConsumers * kStagingBytes;
  static constexpr int kBarrierPlace = kTablePlace + kTableBytes;
  static constexpr int kSharedBytes = kBarrierPlace + 1024;
  static constexpr int kThreads = 128 * (1 + kConsumers);
  // What ptxas gives each of them at first, in other shares.
  static constexpr int kRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kProducerRegisters = 24;
  static constexpr int kConsumerRegisters = std::min(
      240, (kRegisters * kThreads - kProducerRegisters * 128) / (128 * kConsumers) / 8 * 8);
  static_assert(kStages >= 4 && kSharedBytes <= 227 * 1024);
  static_assert(!kInRing || (kExchangeBytes == 2 * kXBytes && kStages >= 2 * kConsumers));
  static_assert(kStoredRows % 16 == 0 && kTileM % kStagedRows == 0);
  static_assert(Format::kGroupSums == (kGroup != 0) && Format::kTableBytes == 0);
};

}  // namespace pestle::cuda::many_rows
