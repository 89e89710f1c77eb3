// Integer expressions over a contract's symbols: parsed once, evaluated without allocating.
//   + - * / %   / is exact integer division (floor)      == != < <= > >= && || !
//   cdiv(a,b)   ceil of a/b            round_up(a,b)     next multiple of b
//   min max     if(c,a,b)              has(x)            1 if argument x is present
//   bytes(x)    bytes of one element   numel(x)          elements of tensor x
//   rank(x)     dimensions of tensor x size(x,d)         extent of x's dimension d; -1 is the last
//   broadcasts(a,b)   1 if a's dimensions, counted from the last, are 1 or b's
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/op.h"

namespace pestle {

inline constexpr int kMaxSymbols = 32;

// Values of the symbols during one call.
struct Scope {
  std::span<const Value> args;
  int64_t values[kMaxSymbols] = {};
  bool bound[kMaxSymbols] = {};
};

class Expr {
 public:
  // Names an expression may use. Symbols are appended on first use when `may_add`.
  struct Names {
    const OpSpec* spec;
    std::vector<std::string>* symbols;
    bool may_add;
  };
  static Result<Expr> parse(std::string_view text, const Names& names);

  // False if a symbol that decides it is not bound, or a divisor is zero.
  bool eval(const Scope& scope, int64_t& result) const;

  // The symbol if the expression is just that symbol, else -1.
  int lone_symbol() const;
  // For "symbol / constant" (how packed dimensions are written): both, else symbol = -1.
  struct Ratio {
    int symbol;
    int64_t divisor;
  };
  Ratio lone_ratio() const;
  // For "constant * symbol" (two halves in one dimension), likewise with the factor as divisor.
  Ratio lone_multiple() const;
  const std::string& text() const { return text_; }

 private:
  friend class ExprParser;
  enum class Op : uint8_t {
    kConst,
    kSymbol,
    kHas,
    kBytes,
    kNumel,
    kRank,
    kSize,
    kBroadcasts,
    kAdd,
    kSub,
    kMul,
    kDiv,
    kMod,
    kEq,
    kNe,
    kLt,
    kLe,
    kGt,
    kGe,
    kAnd,
    kOr,
    kNot,
    kNeg,
    kCdiv,
    kRoundUp,
    kMin,
    kMax,
    kIf,
  };
  struct Instr {
    Op op;
    int64_t operand;
  };
  static bool apply(Op op, const int64_t* operands, int64_t& result);
  static bool size_of(const TensorView& tensor, int64_t dim, int64_t& result);
  static bool broadcasts(const TensorView& from, const TensorView& to);
  static bool decide(Op op, const int64_t* operands, const bool* known, int64_t& result);
  static int arity(Op op);

  std::vector<Instr> code_;  // reverse Polish
  std::string text_;
};

// Index of `label` in "a|b|c", or -1.
int choice_index(std::string_view choices, std::string_view label);
int64_t choice_count(std::string_view choices);
std::string_view choice_label(std::string_view choices, int64_t index);
// Position of the argument, or -1.
int find_arg(const OpSpec& spec, std::string_view name);

}  // namespace pestle
