// The commands of `pestle`, one file each. A new command adds its line here.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

#include "core/op_table.h"
#include "core/status.h"

namespace pestle::cli {

// A command describes itself to the parser and, when chosen, stores its exit code in *exit_code.
using AddCommand = void (*)(CLI::App& app, int* exit_code);

void add_ops(CLI::App& app, int* exit_code);
void add_why(CLI::App& app, int* exit_code);
void add_dump(CLI::App& app, int* exit_code);
void add_env(CLI::App& app, int* exit_code);
void add_check(CLI::App& app, int* exit_code);
void add_bench(CLI::App& app, int* exit_code);
void add_tune(CLI::App& app, int* exit_code);
void add_quantize(CLI::App& app, int* exit_code);
void add_inspect(CLI::App& app, int* exit_code);
void add_dequantize(CLI::App& app, int* exit_code);
void add_diff(CLI::App& app, int* exit_code);

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
