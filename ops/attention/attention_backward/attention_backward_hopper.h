// Starting attention_backward_hopper.cuh, one file of instances a dtype, and what it keeps in the
// workspace behind what the slow kernel needs there.
#pragma once

#include <cstdint>
#include <functional>

#include "core/op.h"

namespace pestle::ops::attention_backward {

struct BackwardCall;
struct BackwardJob;

// Bytes of the workspace, as expressions of the contract. Words that begin as 0: a ticket, the
// largest d_out of each head of k, a count of each tile of queries, one of each 64 keys. Then the sums
// of d_q, 8,192 floats a tile, and where heads of q share one of k those of d_k and d_v.
#define PESTLE_BACKWARD_QUERY_TILES "B*Hq*cdiv(Sq,if(max(D,Dv)>64,64,128))"
#define PESTLE_BACKWARD_HOPPER_BYTES                                          \
  "round_up(8*B*Hq*Sq + 4*B*(2*Hk*cdiv(Sk,64) + Hq*cdiv(Sq,64)),256) + "      \
  "round_up(4*(1 + B*Hk + 2*B*Hk*cdiv(Sk,128) + " PESTLE_BACKWARD_QUERY_TILES \
  "),256) + "                                                                 \
  "32768*" PESTLE_BACKWARD_QUERY_TILES                                        \
  " + if(Hq>Hk,65536*B*Hk*cdiv(Sk,128)*if(max(D,Dv)>64,2,1),0)"

// Starts the kernel of RowFacts, which here runs behind the one that clears the words; it leaves the
// bits of the largest finite |d_out| of each head of k where it is told to, if it is.
using StartFacts = std::function<Status(uint32_t* largest)>;

Status start_hopper_bf16(const Call& args, const BackwardCall& call, const BackwardJob& job,
                         const StartFacts& start_facts);
Status start_hopper_f16(const Call& args, const BackwardCall& call, const BackwardJob& job,
                        const StartFacts& start_facts);

}  // namespace pestle::ops::attention_backward
