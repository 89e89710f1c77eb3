#include "core/expr.h"

#include <algorithm>
#include <cctype>

#include "core/text.h"

namespace pestle {

int find_arg(const OpSpec& spec, std::string_view name) {
  for (size_t i = 0; i < spec.args.size(); ++i) {
    if (name == spec.args[i].name) return static_cast<int>(i);
  }
  return -1;
}

int choice_index(std::string_view choices, std::string_view label) {
  int index = 0;
  for (std::string_view item : split(choices, '|')) {
    if (item == label) return index;
    ++index;
  }
  return -1;
}

int64_t choice_count(std::string_view choices) {
  return choices.empty() ? 0 : std::count(choices.begin(), choices.end(), '|') + 1;
}

std::string_view choice_label(std::string_view choices, int64_t index) {
  const auto labels = split(choices, '|');
  return index >= 0 && index < static_cast<int64_t>(labels.size())
             ? labels[static_cast<size_t>(index)]
             : std::string_view("?");
}

// Recursive descent, one function per precedence level.
class ExprParser {
 public:
  ExprParser(std::string_view text, const Expr::Names& names) : text_(text), names_(names) {}

  Status parse(Expr& expr) {
    expr_ = &expr;
    expr.text_ = std::string(text_);
    PESTLE_TRY(binary(0));
    skip_space();
    return at_ == text_.size() ? Status() : error("unexpected text");
  }

 private:
  using Op = Expr::Op;
  struct Operator {
    std::string_view token;
    Op op;
    int level;
  };
  // Longer tokens first, so that "<=" is not read as "<".
  static constexpr Operator kOperators[] = {
      {"||", Op::kOr, 0}, {"&&", Op::kAnd, 1}, {"==", Op::kEq, 2}, {"!=", Op::kNe, 2},
      {"<=", Op::kLe, 3}, {">=", Op::kGe, 3},  {"<", Op::kLt, 3},  {">", Op::kGt, 3},
      {"+", Op::kAdd, 4}, {"-", Op::kSub, 4},  {"*", Op::kMul, 5}, {"/", Op::kDiv, 5},
      {"%", Op::kMod, 5}};
  static constexpr int kUnaryLevel = 6;

  Status binary(int level) {
    if (level == kUnaryLevel) return unary();
    PESTLE_TRY(binary(level + 1));
    while (const Operator* op = take_operator(level)) {
      PESTLE_TRY(binary(level + 1));
      emit(op->op);
    }
    return {};
  }

  Status unary() {
    skip_space();
    if (take("!")) {
      PESTLE_TRY(unary());
      emit(Op::kNot);
      return {};
    }
    if (take("-")) {
      PESTLE_TRY(unary());
      emit(Op::kNeg);
      return {};
    }
    return primary();
  }

  Status primary() {
    skip_space();
    if (take("(")) {
      PESTLE_TRY(binary(0));
      return expect(")");
    }
    if (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_]))) return number();
    const std::string_view name = identifier();
    if (name.empty()) return error("expected a value");
    skip_space();
    if (take("(")) return function(name);
    return symbol(name);
  }

  Status number() {
    int64_t value = 0;
    while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_]))) {
      value = value * 10 + (text_[at_++] - '0');
    }
    expr_->code_.push_back({Op::kConst, value});
    return {};
  }

  Status function(std::string_view name) {
    for (auto [word, op] : {std::pair{"has", Op::kHas},
                            {"bytes", Op::kBytes},
                            {"numel", Op::kNumel},
                            {"rank", Op::kRank}}) {
      if (name != word) continue;
      int index = 0;
      PESTLE_TRY(argument(index));
      expr_->code_.push_back({op, index});
      return expect(")");
    }
    if (name == "size") {
      int index = 0;
      PESTLE_TRY(argument(index));
      PESTLE_TRY(expect(","));
      PESTLE_TRY(binary(0));
      expr_->code_.push_back({Op::kSize, index});
      return expect(")");
    }
    if (name == "broadcasts") {
      int from = 0;
      int to = 0;
      PESTLE_TRY(argument(from));
      PESTLE_TRY(expect(","));
      PESTLE_TRY(argument(to));
      expr_->code_.push_back({Op::kBroadcasts, from * kMaxArgs + to});
      return expect(")");
    }
    for (auto [word, op] : {std::pair{"cdiv", Op::kCdiv},
                            {"round_up", Op::kRoundUp},
                            {"min", Op::kMin},
                            {"max", Op::kMax},
                            {"if", Op::kIf}}) {
      if (name != word) continue;
      for (int i = 0; i < Expr::arity(op); ++i) {
        if (i > 0) PESTLE_TRY(expect(","));
        PESTLE_TRY(binary(0));
      }
      emit(op);
      return expect(")");
    }
    return error("no function '" + std::string(name) + "'");
  }

  Status argument(int& index) {
    const std::string_view arg = identifier();
    index = find_arg(*names_.spec, arg);
    return index >= 0 ? Status() : error("no argument '" + std::string(arg) + "'");
  }

  // A choice argument may be compared with one of its labels: "granularity == row".
  Status symbol(std::string_view name) {
    const int arg = find_arg(*names_.spec, name);
    if (arg >= 0 && names_.spec->args[arg].kind == Kind::kChoice) {
      skip_space();
      for (auto [token, op] : {std::pair{"==", Op::kEq}, {"!=", Op::kNe}}) {
        if (!take(token)) continue;
        const std::string_view label = identifier();
        const int index = choice_index(names_.spec->args[arg].choices, label);
        if (index < 0) return error("no label '" + std::string(label) + "'");
        PESTLE_TRY(push_symbol(name));
        expr_->code_.push_back({Op::kConst, index});
        emit(op);
        return {};
      }
    }
    return push_symbol(name);
  }

  Status push_symbol(std::string_view name) {
    auto& symbols = *names_.symbols;
    auto found = std::find(symbols.begin(), symbols.end(), name);
    if (found == symbols.end()) {
      if (!names_.may_add) return error("no symbol '" + std::string(name) + "'");
      symbols.emplace_back(name);
      found = symbols.end() - 1;
    }
    expr_->code_.push_back({Op::kSymbol, found - symbols.begin()});
    return {};
  }

  const Operator* take_operator(int level) {
    skip_space();
    for (const Operator& op : kOperators) {
      if (text_.substr(at_).starts_with(op.token)) {
        if (op.level != level) return nullptr;
        at_ += op.token.size();
        return &op;
      }
    }
    return nullptr;
  }

  void emit(Op op) { expr_->code_.push_back({op, 0}); }
  void skip_space() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  bool take(std::string_view token) {
    if (!text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }
  Status expect(std::string_view token) {
    skip_space();
    return take(token) ? Status() : error("expected '" + std::string(token) + "'");
  }
  std::string_view identifier() {
    skip_space();
    const size_t start = at_;
    while (at_ < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_')) {
      ++at_;
    }
    return text_.substr(start, at_ - start);
  }
  Status error(const std::string& what) const {
    return {Code::kInternal, "expression '" + std::string(text_) + "' at character " +
                                 std::to_string(at_) + ": " + what};
  }

  std::string_view text_;
  const Expr::Names& names_;
  Expr* expr_ = nullptr;
  size_t at_ = 0;
};

Result<Expr> Expr::parse(std::string_view text, const Names& names) {
  Expr expr;
  PESTLE_TRY(ExprParser(text, names).parse(expr));
  return expr;
}

int Expr::arity(Op op) {
  switch (op) {
    case Op::kConst:
    case Op::kSymbol:
    case Op::kHas:
    case Op::kBytes:
    case Op::kNumel:
    case Op::kRank:
    case Op::kBroadcasts: return 0;
    case Op::kSize:
    case Op::kNot:
    case Op::kNeg: return 1;
    case Op::kIf: return 3;
    default: return 2;
  }
}

bool Expr::apply(Op op, const int64_t* v, int64_t& r) {
  switch (op) {
    case Op::kAdd: r = v[0] + v[1]; return true;
    case Op::kSub: r = v[0] - v[1]; return true;
    case Op::kMul: r = v[0] * v[1]; return true;
    case Op::kDiv:
      if (v[1] == 0) return false;
      r = v[0] / v[1];
      return true;
    case Op::kMod:
      if (v[1] == 0) return false;
      r = v[0] % v[1];
      return true;
    case Op::kEq: r = v[0] == v[1]; return true;
    case Op::kNe: r = v[0] != v[1]; return true;
    case Op::kLt: r = v[0] < v[1]; return true;
    case Op::kLe: r = v[0] <= v[1]; return true;
    case Op::kGt: r = v[0] > v[1]; return true;
    case Op::kGe: r = v[0] >= v[1]; return true;
    case Op::kAnd: r = v[0] != 0 && v[1] != 0; return true;
    case Op::kOr: r = v[0] != 0 || v[1] != 0; return true;
    case Op::kNot: r = v[0] == 0; return true;
    case Op::kNeg: r = -v[0]; return true;
    case Op::kCdiv:
      if (v[1] <= 0) return false;
      r = v[0] / v[1] + (v[0] % v[1] > 0);
      return true;
    case Op::kRoundUp:
      if (v[1] <= 0) return false;
      r = (v[0] / v[1] + (v[0] % v[1] > 0)) * v[1];
      return true;
    case Op::kMin: r = std::min(v[0], v[1]); return true;
    case Op::kMax: r = std::max(v[0], v[1]); return true;
    case Op::kIf: r = v[0] != 0 ? v[1] : v[2]; return true;
    default: return false;
  }
}

bool Expr::size_of(const TensorView& tensor, int64_t dim, int64_t& result) {
  const int64_t d = dim < 0 ? dim + tensor.rank : dim;
  if (d < 0 || d >= tensor.rank) return false;
  result = tensor.shape[d];
  return true;
}

bool Expr::broadcasts(const TensorView& from, const TensorView& to) {
  for (int i = 1; i <= from.rank; ++i) {
    const int64_t extent = from.shape[from.rank - i];
    if (i > to.rank || (extent != 1 && extent != to.shape[to.rank - i])) return false;
  }
  return true;
}

// Operands that have no value (an unbound symbol) do not matter where the others decide: so a
// condition may say "!has(bias) || N == L".
bool Expr::decide(Op op, const int64_t* v, const bool* known, int64_t& result) {
  switch (op) {
    case Op::kOr: result = 1; return (known[0] && v[0] != 0) || (known[1] && v[1] != 0);
    case Op::kAnd: result = 0; return (known[0] && v[0] == 0) || (known[1] && v[1] == 0);
    case Op::kIf:
      if (!known[0]) return false;
      result = v[0] != 0 ? v[1] : v[2];
      return v[0] != 0 ? known[1] : known[2];
    default: return false;
  }
}

bool Expr::eval(const Scope& scope, int64_t& result) const {
  constexpr int kDepth = 16;
  int64_t stack[kDepth] = {};
  bool known[kDepth] = {};
  int depth = 0;
  for (const Instr& instr : code_) {
    const int operands = arity(instr.op);
    depth -= operands;
    if (depth + std::max(operands, 1) > kDepth) return false;
    int64_t value = instr.operand;
    bool is_known = true;
    switch (instr.op) {
      case Op::kConst: break;
      case Op::kSymbol:
        is_known = scope.bound[instr.operand];
        value = scope.values[instr.operand];
        break;
      case Op::kHas: value = scope.args[instr.operand].present; break;
      case Op::kBytes: value = dtype_bytes(scope.args[instr.operand].tensor.dtype); break;
      case Op::kNumel: value = numel(scope.args[instr.operand].tensor); break;
      case Op::kRank: value = scope.args[instr.operand].tensor.rank; break;
      case Op::kSize:
        is_known = known[depth] && size_of(scope.args[instr.operand].tensor, stack[depth], value);
        break;
      case Op::kBroadcasts:
        value = broadcasts(scope.args[instr.operand / kMaxArgs].tensor,
                           scope.args[instr.operand % kMaxArgs].tensor);
        break;
      default: {
        const int64_t* v = stack + depth;
        const bool all =
            std::all_of(known + depth, known + depth + operands, [](bool k) { return k; });
        is_known = all ? apply(instr.op, v, value) : decide(instr.op, v, known + depth, value);
      }
    }
    stack[depth] = value;
    known[depth++] = is_known;
  }
  result = stack[0];
  return depth == 1 && known[0];
}

int Expr::lone_symbol() const {
  return code_.size() == 1 && code_[0].op == Op::kSymbol ? static_cast<int>(code_[0].operand) : -1;
}

Expr::Ratio Expr::lone_ratio() const {
  const bool is_ratio = code_.size() == 3 && code_[0].op == Op::kSymbol &&
                        code_[1].op == Op::kConst && code_[2].op == Op::kDiv;
  return is_ratio ? Ratio{static_cast<int>(code_[0].operand), code_[1].operand} : Ratio{-1, 1};
}

Expr::Ratio Expr::lone_multiple() const {
  const bool is_multiple = code_.size() == 3 && code_[0].op == Op::kConst &&
                           code_[1].op == Op::kSymbol && code_[2].op == Op::kMul &&
                           code_[0].operand > 0;
  return is_multiple ? Ratio{static_cast<int>(code_[1].operand), code_[0].operand} : Ratio{-1, 1};
}

}  // namespace pestle
