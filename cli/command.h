// How a command describes itself to the parser. CLI11 does the parsing; its headers, which cost every
// file that includes them 8 s, are in command.cpp alone.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace pestle::cli {

class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}
  Option required();
  Option not_negative();
  Option positive();
  Option one_of(const std::vector<std::string>& values);
  Option one_value_each();  // of a list: each mention takes one value, so that arguments may follow
  Option separated_by(char delimiter);

 private:
  CLI::Option* option_;
};

class Command {
 public:
  Command(CLI::App* app, int* exit_code) : app_(app), exit_code_(exit_code) {}

  // `value` keeps what it has where the option is not given. For the types that command.cpp
  // instantiates.
  template <class T>
  Option add_option(const std::string& names, T& value, const std::string& help);
  void add_flag(const std::string& names, bool& value, const std::string& help);
  void footer(std::function<std::string()> text);
  // What is called when the command is chosen; returns the program's exit code.
  void run(std::function<int()> body);

 private:
  CLI::App* app_;
  int* exit_code_;
};

class Program {
 public:
  Program(CLI::App* app, int* exit_code) : app_(app), exit_code_(exit_code) {}
  Command add_command(const std::string& name, const std::string& purpose);

 private:
  CLI::App* app_;
  int* exit_code_;
};

}  // namespace pestle::cli
