// Runs implementations of ops on their contracts' cases and compares them with the reference.
// Names no op: everything it knows comes from the table.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/op_table.h"
#include "harness/test_tensor.h"

namespace pestle::harness {

// How one run differs from the plain one.
struct Variant {
  Layout layout = Layout::kContiguous;
  bool in_place = false;  // outputs that may be an input's memory are
  Launch launch = Launch::kDefault;
  int threads = 2;
  Isa isa = Isa::kScalar;
};
std::string variant_name(const Variant& variant);  // "strided", "in_place"

struct CheckOptions {
  Memory* memory = nullptr;  // where implementations run; the host's if null
  Memory* second = nullptr;  // another device, for the plain variant
  unsigned tags = kSmoke | kEdge;
  std::string impl;     // empty: all
  std::string variant;  // a layout's name or in_place; empty: all
  std::string launch;   // default, stream or graph; empty: all that the memory has
  std::string isa;      // empty: all that the CPU has
  int threads = 0;      // 0: 1, 2 and 3
  uint64_t seed = 1;
  int64_t host_bytes = 0;     // the host's memory; 0: what the system says is free
  int repeats = 20;           // runs of the plain variant on a device, which must agree
  bool few_variants = false;  // for mutants: one instruction set, fewer thread counts
  // For sanitizers, which look at memory and threads: also no case of much work, and of other values
  // than a case's first the plain variant alone, since both repeat the accesses that others show.
  bool for_sanitizer = false;
  bool until_failure = false;
};

struct Failure {
  std::string op, impl, where, what, repeat;  // repeat: the command that shows it again
};

struct Refusal {
  std::string op, impl, where, reason;
};

struct CheckReport {
  struct Counts {
    int64_t run = 0, refused = 0, skipped = 0, failed = 0;
    int64_t not_run = 0;  // for want of what `not_run` below names
  };
  std::map<std::string, Counts> by_tag;   // smoke, edge, bar, huge, contract
  std::map<std::string, Counts> by_impl;  // "op impl"
  std::vector<Failure> failures;
  std::vector<Refusal> refusals;
  std::vector<Refusal> skips;
  std::map<std::string, int64_t> not_run;  // "needs a second device": how often
  std::map<std::string, int64_t> truths;   // where big cases' expected values came from
  double worst_bound = 0;                  // largest |out - ref| / allowed of all bounded outputs
  bool ok() const { return failures.empty(); }
  void add(const CheckReport& other);
};

// All cases of the op that carry one of the tags.
void check_op(const Op& op, const CheckOptions& options, CheckReport& report);
// One case, which need not be the contract's.
void check_case(const Op& op, const Case& row, const CheckOptions& options, CheckReport& report);
// Calls that break the contract, derived from its first case: each must be refused by name.
void check_contract(const Op& op, CheckReport& report);

std::string tags_text(unsigned tags);  // "smoke,edge"
bool tags_from_text(std::string_view text, unsigned& tags);

}  // namespace pestle::harness
