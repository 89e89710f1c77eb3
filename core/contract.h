// A contract made ready for use: its strings parsed once, then checked against calls.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/expr.h"
#include "core/op.h"

namespace pestle {

class Contract {
 public:
  // Fails with Code::kInternal when the contract itself is wrong (found by the table's own test).
  static Result<Contract> compile(const OpSpec& spec);

  // Everything that the contract asks of a call: presence, dtypes, shapes, one device, constraints,
  // overlaps of outputs. Fills `scope`; on success every symbol is bound.
  // Lists of tensors go in step: they have one length, at least 1, and the contract holds for each
  // position by itself (symbols are bound anew for each); `scope` is then that of the last
  // position.
  Status check(const Call& call, Scope& scope) const;

  // Binds symbols from the call's inputs and attributes and gives each absent output that the
  // contract wants its shape and (unless it already has one) default dtype; data stays null.
  Status infer_outputs(Call& call, Scope& scope) const;
  // The same position by position where there are lists; `lists`, by argument, holds what they
  // view. Single tensors are not outputs of such an op.
  Status infer_outputs(Call& call, Scope& scope, std::vector<std::vector<TensorView>>& lists) const;

  // Dimensions bound to packs ("*S") during one call; rank -1: not bound.
  struct Packs {
    int rank[4] = {-1, -1, -1, -1};
    int64_t dims[4][kMaxRank] = {};
  };
  // Shape that the contract gives an argument for these symbols: contiguous, no data, no dtype.
  Status shape_for(const Call& call, size_t index, const Scope& scope, const Packs& packs,
                   TensorView& tensor) const {
    return infer_tensor(call, index, scope, packs, tensor);
  }
  // Binds the symbols that one present input's dimensions determine.
  void bind_symbols(const Call& call, size_t index, Scope& scope, Packs& packs) const {
    for (bool invert : {false, true}) {
      // A rank that does not fit binds nothing here and is reported by check().
      (void)bind_shape(call, index, call.args[index].tensor, scope, packs, invert).ok();
    }
  }
  // Dtypes allowed for an argument, the default first; one entry when another argument fixes it.
  std::vector<DType> allowed_dtypes(const Call& call, size_t index) const;
  const std::vector<std::string>& packs() const { return packs_; }
  // Does the contract want this tensor in the call? An optional one is wanted when it is there.
  bool wanted(const Call& call, size_t index) const;

  // Overlaps depend on addresses, so they are looked at in every call, also a remembered one.
  Status check_overlaps(const Call& call) const;

  const OpSpec& spec() const { return *spec_; }
  bool has_lists() const { return has_lists_; }
  const std::vector<std::string>& symbols() const { return symbols_; }

  // Value of an expression such as flops or a workspace; `scope` as filled by check. Summed over
  // the positions of lists.
  Result<int64_t> evaluate(std::string_view text, const Scope& scope) const;
  // Bytes that must move: the contract's formula, or every present tensor once.
  Result<int64_t> bytes(const Scope& scope) const;

 private:
  struct Dim {
    Expr expr;                    // of "reduced(*S, dims, keepdim)": dims
    int pack = -1;                // index into the packs when the dimension is "*S" or made from it
    std::optional<Expr> keepdim;  // of "reduced(...)"
  };
  struct Shape {
    std::vector<Dim> dims;
    std::string text;
    bool has_pack() const { return !dims.empty() && dims[0].pack >= 0; }
    bool is_reduced() const { return !dims.empty() && dims[0].keepdim.has_value(); }
  };
  struct DTypes {
    std::vector<DType> allowed;
    int same_as = -1;
    std::string text;
  };
  struct CompiledArg {
    std::vector<Shape> shapes;   // one, or one per label of `by`
    std::vector<DTypes> dtypes;  // likewise
    int by = -1;
    std::optional<Expr> present_if;
    int alias = -1;
    int symbol = -1;  // attributes that expressions may name
  };
  struct CompiledConstraint {
    Expr condition;
    const char* sentence;
  };

  Status compile_arg(size_t index);
  Status compile_shape(std::string_view text, Shape& shape);
  Status compile_reduced(std::string_view text, Dim& dim);
  Status compile_dtypes(std::string_view text, DTypes& dtypes) const;
  Result<Expr> parse(std::string_view text, bool may_add);
  int pack_index(std::string_view name);

  struct ListPosition;  // the call with each list replaced by one of its tensors
  Status list_length(std::span<const Value> args, size_t& length) const;
  Status check_one(const Call& call, Scope& scope) const;
  Status bind(const Call& call, Scope& scope, Packs& packs) const;
  Status check_list_overlaps(const Call& call) const;
  Status check_list_devices(const Call& call) const;
  Status check_presence(const Call& call) const;
  bool wanted(const Call& call, size_t index, const Scope& attributes) const;
  void bind_attributes(const Call& call, Scope& scope) const;
  Status check_attributes(const Call& call, Scope& scope) const;
  Status check_devices(const Call& call) const;
  Status check_constraints(const Scope& scope) const;
  Status check_dtype(const Call& call, size_t index, const TensorView& tensor) const;
  Status bind_shape(const Call& call, size_t index, const TensorView& tensor, Scope& scope,
                    Packs& packs, bool invert_ratios) const;
  Status check_shape(const Call& call, size_t index, const TensorView& tensor, const Scope& scope,
                     const Packs& packs) const;
  Status infer_tensor(const Call& call, size_t index, const Scope& scope, const Packs& packs,
                      TensorView& tensor) const;
  Status infer_pack(size_t index, const Dim& dim, const Scope& scope, const Packs& packs,
                    TensorView& tensor) const;
  template <class Visit>
  Status for_each_tensor(const Call& call, Role role, Visit&& visit) const;

  const Shape& shape_of(const Call& call, size_t index) const;
  const DTypes& dtypes_of(const Call& call, size_t index) const;
  Status error(size_t arg, const std::string& what) const;
  std::string alternative(const Call& call, size_t index) const;

  const OpSpec* spec_ = nullptr;
  std::vector<std::string> symbols_;
  std::vector<std::string> packs_;
  std::vector<CompiledArg> args_;
  std::vector<CompiledConstraint> constraints_;
  bool has_lists_ = false;
};

}  // namespace pestle
