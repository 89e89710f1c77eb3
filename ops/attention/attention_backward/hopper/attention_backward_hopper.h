// Starting attention_backward_hopper.cuh and, for heads of more than 128 columns,
// attention_backward_wide.cuh, one file of instances a dtype each, and what they keep in the workspace
// behind what the slow kernel needs there.
#pragma once

#include <vector_types.h>

#include <cstdint>
#include <functional>

#include "core/op.h"

namespace pestle::ops::attention_backward {

struct BackwardCall;
struct BackwardJob;

// Bytes of the workspace, as expressions of the contract. Words that begin as 0: a ticket, the
// largest d_out of each head of k, a count of each 64 keys and of each tile of queries, two where heads
// are wide. Then the sums of d_q: of a tile 8,192 floats, of wide heads 64 x 192 or 256; and where
// heads of q share one of k, unless they are wide, those of d_k and d_v.
#define PESTLE_BACKWARD_QUERY_TILES "B*Hq*cdiv(Sq,if(max(D,Dv)>64,64,128))"
#define PESTLE_BACKWARD_HOPPER_BYTES                                                   \
  "round_up(8*B*Hq*Sq + 4*B*(2*Hk*cdiv(Sk,64) + Hq*cdiv(Sq,64)),256) + "               \
  "round_up(4*(1 + B*Hk + 2*B*Hk*cdiv(Sk,128) + "                                      \
  "if(max(D,Dv)>128,2,1)*" PESTLE_BACKWARD_QUERY_TILES                                 \
  "),256) + "                                                                          \
  "if(max(D,Dv)>192,65536,if(max(D,Dv)>128,49152,32768))*" PESTLE_BACKWARD_QUERY_TILES \
  " + if(Hq>Hk && max(D,Dv)<=128,65536*B*Hk*cdiv(Sk,128)*if(max(D,Dv)>64,2,1),0)"

// 16 bytes each.
struct Zeros {
  uint4* begin = nullptr;
  int64_t count = 0;
};

// Starts the kernel of RowFacts, which here runs behind the one that clears the words; it leaves the
// bits of the largest finite |d_out| of each head of k where it is told to, if it is, and makes sums 0.
using StartFacts = std::function<Status(uint32_t* largest, const Zeros& sums)>;

Status start_hopper_bf16(const Call& args, const BackwardCall& call, const BackwardJob& job,
                         const StartFacts& start_facts);
Status start_hopper_f16(const Call& args, const BackwardCall& call, const BackwardJob& job,
                        const StartFacts& start_facts);
Status start_wide_bf16(const Call& args, const BackwardCall& call, const BackwardJob& job,
                       const StartFacts& start_facts);
Status start_wide_f16(const Call& args, const BackwardCall& call, const BackwardJob& job,
                      const StartFacts& start_facts);

}  // namespace pestle::ops::attention_backward
