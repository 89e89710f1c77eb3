// Which implementation serves a call, and running it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/op_table.h"

namespace pestle {

// Verdict over one implementation; refusal is empty when it takes the call.
struct Candidate {
  const Impl* impl;
  std::string refusal;
};

// Every implementation's verdict for a call that meets the contract, best first. A pure function
// of its arguments: `machine` may describe one that is not here.
std::vector<Candidate> candidates(const Op& op, const Call& call, const Machine& machine);

struct Choice {
  const Impl* impl = nullptr;
  int64_t workspace_bytes = 0;
};

// The first implementation that takes the call, or, if `forced` names one, that one or an error.
// Checks the contract first. Calls like one seen before are answered from a per-thread memory.
Result<Choice> choose(const Op& op, const Call& call, std::string_view forced = {});

// Chooses and runs. The workspace in `call` must hold what the choice asks for.
Status run(const Op& op, Call& call, std::string_view forced = {});
// The same with what was chosen for this call.
Status run(const Op& op, Call& call, const Choice& choice);
Status check_workspace(const Op& op, const Call& call, const Choice& choice);

// Runs the reference on host memory, with a workspace of its own. Outputs that the contract bounds
// are f64 in `call`; with `sum_magnitudes` they get the sums of |terms| that their bound counts.
Status run_reference(const Op& op, Call& call, bool sum_magnitudes);

}  // namespace pestle
