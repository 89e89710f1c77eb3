// The commands of `pestle`, one file each. A new command adds its line here.
#pragma once

#include <string>

#include "cli/command.h"
#include "core/op_table.h"
#include "core/status.h"

namespace pestle::cli {

using AddCommand = void (*)(Program& program);

void add_ops(Program& program);
void add_why(Program& program);
void add_dump(Program& program);
void add_env(Program& program);
void add_check(Program& program);
void add_bench(Program& program);
void add_tune(Program& program);
void add_quantize(Program& program);
void add_inspect(Program& program);
void add_dequantize(Program& program);
void add_diff(Program& program);

inline constexpr AddCommand kCommands[] = {
    add_ops,  add_why,      add_dump,    add_env,        add_check, add_bench,
    add_tune, add_quantize, add_inspect, add_dequantize, add_diff,
};

// `pestle dump rust` (dump_rust.cpp).
void print_rust();

// Exit codes are documented in docs/cli.md: a status's code plus 10, so that 1 and 2 stay with
// "a check failed" and "wrong usage".
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
int exit_code_of(const Status& status);
// Prints "pestle: MESSAGE" to stderr unless ok; returns the exit code.
int fail(const Status& status);
// Writes out what was printed; an exit code of 0 becomes that of an I/O error if it can't be.
int finish_output(int exit_code);
// The op, or an error that names the nearest one.
Result<const Op*> require_op(const std::string& name);

}  // namespace pestle::cli
