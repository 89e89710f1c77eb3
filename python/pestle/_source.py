"""Writes the Python function of an op from its contract: `def quantize(x, scale=None, *, ...)`, the
choice between the op's overloads, and the docstring. The stub file comes from here too."""

from __future__ import annotations

import keyword as words

from ._contract import Arg, Op
from ._expr import to_python
from ._forms import TENSORS, Form, forms_of

_LISTS = ("tensor_list", "optional_tensor_list")
_CONSTANT_TYPES = {"int": "int", "float": "float", "bool": "bool"}


def _inputs(op: Op) -> list[Arg]:
    """Required ones first, as in the torch schemas."""
    return sorted(op.of_role("input"), key=lambda arg: arg.optional)


def _dtype_options(forms: tuple[Form, ...]) -> list[str]:
    """Outputs whose dtype the caller may choose."""
    return list(dict.fromkeys(
        name for form in forms for kind, name, _ in form.arguments if kind == "dtype"
    ))  # fmt: skip


def signature(op: Op, typed: bool = False, in_place: bool = False) -> str:
    """The parameter list; with annotations when `typed`."""
    note = (lambda text: f": {text}") if typed else (lambda text: "")
    equals = " = " if typed else "="
    forms = forms_of(op.name, "in_place" if in_place else "functional")
    used = {name for form in forms for kind, name, _ in form.arguments if kind != "dtype"}
    parts = []
    for arg in _inputs(op):
        if arg.name not in used:
            continue
        kind = "Sequence[Tensor]" if arg.is_list else "Tensor"
        optional = note(f"{kind} | None") + f"{equals}None"
        parts.append(arg.name + (optional if arg.optional else note(kind)))
    attributes = op.of_role("attribute")
    dtypes = sorted({name for form in forms for kind, name, _ in form.arguments if kind == "dtype"})
    parts.append("*")
    for arg in attributes:
        labels = f"Literal[{', '.join(map(repr, arg.choices))}]".replace("'", '"')
        kind = _CONSTANT_TYPES.get(arg.kind, labels)
        default = f'"{arg.default}"' if arg.kind == "choice" else repr(arg.default)
        parts.append(arg.name + note(kind) + equals + default)
    parts += [f"{name}_dtype{note('torch.dtype | None')}{equals}None" for name in dtypes]
    parts.append(f"backend{note('str | tuple[str, ...] | None')}{equals}None")
    return ", ".join(parts)


def returns(form: Form, in_place: bool = False) -> str:
    names = form.aliases if in_place else form.outputs
    by_name = form.contract.by_name
    kinds = ["list[Tensor]" if by_name[name].is_list else "Tensor" for name in names]
    return kinds[0] if len(kinds) == 1 else f"tuple[{', '.join(kinds)}]"


def _switches(op: Op, forms: tuple[Form, ...]) -> list[tuple[str, Form]]:
    """(Python condition, form): the first whose condition holds is called; the last has ""."""
    conditions = list(dict.fromkeys(
        arg.present_if for arg in op.of_role("output") if arg.present_if
    ))  # fmt: skip
    labels = {label for arg in op.args for label in arg.choices} - set(op.by_name)
    result = []
    for form in forms:
        tests = []
        for condition in conditions:
            outputs = {a.name for a in op.of_role("output") if a.present_if == condition}
            source = to_python(
                condition,
                lambda name: repr(name) if name in labels else name,
                lambda name: f"({name} is not None)",
            )
            tests.append(source if outputs & set(form.outputs) else f"not {source}")
        result.append((" and ".join(tests), form))
    if result:
        result[-1] = ("", result[-1][1])
    return result


def _call(form: Form, target: str) -> str:
    arguments, star = [], False
    for kind, name, keyword in form.arguments:
        value = f"{name}_dtype" if kind == "dtype" else name
        star = star or kind not in TENSORS
        arguments.append(f"{keyword}={value}" if star else value)
    return f"{target}({', '.join(arguments)})"


# Where a call goes: as _dispatch.py says, but the usual case is decided here, at once.
_CHOICE = """\
    _direct, _tried = False, ()
    if _compiling():
        _space = _traced({op!r}, backend, {first}.device.type)
    elif backend is None and _selected() is None and not _settings.special and not _debug(10):
        _space, _direct = "pestle", True
    else:
        _space = _choose({op!r}, backend, {inputs})
    while True:
        try:"""
_AFTER = """\
        except RuntimeError as error:
            _direct = False
            _tried += (_space,)
            _space = _after(error, _tried, {op!r}, backend, ({inputs},), {{{options}}})"""


def _direct(form: Form, target: str) -> list[str]:
    """The library's op, given the options that are not as by default: torch fills the others in for
    less than it takes them."""
    defaults = {arg.name: arg.default for arg in form.contract.of_role("attribute")}
    tensors = ", ".join(name for kind, name, _ in form.arguments if kind in TENSORS)
    tests, takes = [], []
    for kind, name, keyword in form.arguments:
        if kind in TENSORS:
            continue
        value = f"{name}_dtype" if kind == "dtype" else name
        tests.append(f"{value} is None" if kind == "dtype" else f"{value} == {defaults[name]!r}")
        takes += [f"if not {tests[-1]}:", f"    _set[{keyword!r}] = {value}"]
    has_lists = any(kind in _LISTS for kind, _, _ in form.arguments)
    to_call = f"{target}_op" if has_lists else "_call"
    call = f"return {to_call}({tensors})"
    if tests:
        call = [
            f"if {' and '.join(tests)}:",
            f"    {call}",
            "_set = {}",
            *takes,
            f"return {to_call}({tensors}, **_set)",
        ]
    else:
        call = [call]
    if has_lists:
        return call
    # The kernel that records gradients is Python: where there is nothing to record it is passed
    # by, as it would do itself (inference mode does so anyway), and where there is, the recording
    # is called at once. What torch.func, torch.jit or an override does to a call comes later, so
    # it stays.
    return [
        f"_call, _guard = {target}_op, None",
        "if not (_in_inference() or _in_func()):",
        f"    if not (_grad_on() and _any_grad({tensors})):",
        "        _guard = _below()",
        f"    elif _in_jit() is None and not _overridden({tensors}):",
        f"        _call = {target}_recorded",
        "try:",
        *(f"    {line}" for line in call),
        "finally:",
        "    _guard = None",
    ]


def source(op: Op, in_place: bool = False) -> tuple[str, dict[str, Form]]:
    """Source of the function, and the forms that the names it calls stand for."""
    forms = forms_of(op.name, "in_place" if in_place else "functional")
    name = op.name + ("_" if in_place else "")
    used = {name for form in forms for _, name, _ in form.arguments}
    inputs = [arg.name if arg.name in used else "None" for arg in _inputs(op)]
    options = [arg.name for arg in op.of_role("attribute")]
    options += [f"{output}_dtype" for output in _dtype_options(forms)]
    words = {
        "op": op.name,
        "first": f"_first({inputs[0]})" if _inputs(op)[0].is_list else inputs[0],
        "inputs": ", ".join(inputs),
        "options": ", ".join(f"{option!r}: {option}" for option in options),
    }
    lines = [f"def {name}({signature(op, in_place=in_place)}):", _CHOICE.format(**words)]
    targets = {}
    for index, (condition, form) in enumerate(_switches(op, forms)):
        target = f"_{name}_{index}"
        targets[target] = form
        indent = " " * 12
        if condition:
            lines.append(f"{indent}if {condition}:")
            indent += "    "
        call = _call(form, f"{target}[_space]")
        views = ", ".join(_written_view(op, form, i) for i in range(len(form.aliases)))
        if in_place:
            lines += [f"{indent}{call}", f"{indent}return {views}"]
        else:
            lines.append(f"{indent}if _direct:")
            lines += [f"{indent}    {line}" for line in _direct(form, target)]
            lines.append(f"{indent}return {call}")
    lines.append(_AFTER.format(**words))
    return "\n".join(lines), targets


def _written_view(op: Op, form: Form, index: int) -> str:
    """What an in-place function returns: its argument, seen in the output's dtype."""
    output, alias = form.outputs[index], form.aliases[index]
    if output not in _dtype_options((form,)):
        return alias
    default = op.by_name[output].dtypes[""].split("|")[0]
    own = f"{alias}.dtype" if default == f"={alias}" else f"_dtypes[{default!r}]"
    return f"{alias}.view({output}_dtype or {own})"


def docstring(op: Op, in_place: bool = False) -> str:
    """For people: what the contract says of arguments, results and rules."""
    forms = forms_of(op.name, "in_place" if in_place else "functional")
    text = [op.doc, ""]
    if in_place:
        text += [f"Writes into {' and '.join(forms[-1].aliases)} and returns it.", ""]
    text.append("Args:")
    for arg in [*_inputs(op), *op.of_role("attribute")]:
        kind = "|".join(arg.choices) if arg.choices else ""
        rule = "; ".join(f"{k}: [{s}]" if k else f"[{s}]" for k, s in arg.shapes.items() if s)
        if arg.role == "input":
            dtypes = "; ".join(f"{k}: {d}" if k else d for k, d in arg.dtypes.items())
            kind = ("list of " if arg.is_list else "") + f"{dtypes} {rule}"
            kind += ", optional" if arg.optional else ""
        text.append(f"    {arg.name}{f' ({kind})' if kind else ''}: {arg.doc}")
    text += [f"    {name}_dtype: dtype of {name}" for name in _dtype_options(forms)]
    text.append("    backend: the only one to use, or several in order; None: as selected")
    text += ["", "Returns:"]
    for arg in op.of_role("output"):
        when = f", when {arg.present_if}" if arg.present_if else ""
        text.append(f"    {arg.name}{' (list)' if arg.is_list else ''}: {arg.doc}{when}")
    if op.constraints:
        text += ["", "Rules:"] + [f"    {sentence}" for _, sentence in op.constraints]
    text += ["", f"Defined in {op.source}"]
    return "\n".join(text)


def check_names(op: Op) -> None:
    for arg in op.args:
        if words.iskeyword(arg.name):
            raise ValueError(f"{op.name}: the argument {arg.name} is a word of Python")
