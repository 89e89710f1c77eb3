// The command line as a function, for the program `pestle` and for the wheel, whose library carries
// it.
#pragma once

// Parses and runs; yields the exit code. Exported by libpestle_torch.so alone.
extern "C" __attribute__((visibility("default"))) int pestle_command_line(int argc, char** argv);
