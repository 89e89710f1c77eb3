// pestle: the command line. It parses and prints; the work is in the library.
#include "cli/command_line.h"

int main(int argc, char** argv) { return pestle_command_line(argc, argv); }
