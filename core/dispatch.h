// Which implementation serves a call, and running it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/op_table.h"
#include "core/tuned.h"

namespace pestle {

// What an op says of its implementations beyond their order, where shapes decide: registered by its
// folder at start-up. Like refusals, pure functions of the call without its data and of the
// machine.
struct Advice {
  const char* op = "";
  // The id of the implementation that is to serve the call if it takes it; nullptr: the first.
  const char* (*prefer)(const Call&, const Machine&) = nullptr;
  // How an implementation would run a call that it takes: its tile, say. Empty: nothing to add.
  std::string (*plan)(const Call&, const Machine&, std::string_view impl) = nullptr;
  // The ways that a tuner may measure, of which one at a time is then used (core/tuned.h).
  std::vector<TunedChoice> (*ways)(const Call&, const Machine&) = nullptr;
};
bool advise(const Advice& advice);      // true, for the initialiser of a constant
const Advice* advice_of(const Op& op);  // null: none

// Makes every remembered choice be made anew. Not while other threads run ops.
void forget_choices();

// Verdict over one implementation; refusal is empty when it takes the call, plan says how if there
// is something to say.
struct Candidate {
  const Impl* impl;
  std::string refusal;
  std::string plan;
};

// Every implementation's verdict for a call that meets the contract, best first. A pure function
// of its arguments: `machine` may describe one that is not here.
std::vector<Candidate> candidates(const Op& op, const Call& call, const Machine& machine);
// On the machine that the call's tensors are on.
std::vector<Candidate> candidates(const Op& op, const Call& call);

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
// Chooses and runs, as part of another call, in what that call's workspace leaves: an
// implementation that wants more is passed over.
Status run_within(const Op& op, Call& call);
Status check_workspace(const Op& op, const Call& call, const Choice& choice);

// Runs the reference on host memory, with a workspace of its own. Outputs that the contract bounds
// are f64 in `call`; with `sum_magnitudes` they get the sums of |terms| that their bound counts.
Status run_reference(const Op& op, Call& call, bool sum_magnitudes);

}  // namespace pestle
