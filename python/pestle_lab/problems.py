"""A problem: what a kernel is to compute. A file says it in the contract language of the table
(docs/contract.md), with a float64 reference beside it. Every op of the table is one, too."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from pestle._contract import Op
from pestle._library import contracts

from .errors import LabError

# `huge` is of the table's ops: more than 2^31 elements, for who asks for it.
SUITES = ("smoke", "correctness", "adversarial", "performance", "huge")


@dataclass(frozen=True)
class Bound:
    """|out - reference| <= 1 ulp of the dtype + c * sqrt(k) * 2^-24 * magnitude; `k` is an
    expression, the length of the longest sum behind an element. Exact: bit for bit."""

    c: float = 4
    k: str = "1"
    exact: bool = False


def _arg(role: str, name: str, dtypes: str, shape: str, doc: str, **more) -> dict:
    return {
        "name": name,
        "kind": "tensor",
        "role": role,
        "dtypes": dtypes,
        "shape": shape,
        "doc": doc,
        "optional": False,
        **more,
    }


def input(
    name: str,
    dtypes: str,
    shape: str,
    doc: str,
    *,
    data: str = "",
    order: tuple[int, ...] = (),
    **more,
) -> dict:
    """An input. `data` names its distribution where the case's own does not fit; `order` its
    dimensions as they lie in memory, the slowest first."""
    return _arg("input", name, dtypes, shape, doc, data=data, order=order, **more)


def output(
    name: str,
    dtypes: str,
    shape: str,
    doc: str,
    bound: Bound | None = None,
    *,
    order: tuple[int, ...] = (),
    **more,
) -> dict:
    return _arg(
        "output", name, dtypes, shape, doc, bound=bound or Bound(exact=True), order=order, **more
    )


def attribute(name: str, default: int | float | bool, doc: str) -> dict:
    kind = "bool" if isinstance(default, bool) else type(default).__name__
    return {
        "name": name,
        "kind": kind,
        "role": "attribute",
        "doc": doc,
        "optional": True,
        "default": default,
    }


def choice(name: str, labels: str, doc: str) -> dict:
    first, *_ = choices = labels.split("|")
    return {
        "name": name,
        "kind": "choice",
        "role": "attribute",
        "doc": doc,
        "optional": True,
        "default": first,
        "choices": choices,
    }


# What a reference gives for each output: its values in float64, and for outputs that are not exact
# the sum of |terms| behind each element.
Truth = dict[str, tuple[np.ndarray, np.ndarray | None]]


@dataclass
class Problem:
    name: str
    doc: str
    args: list[dict]
    reference: Callable[[dict, dict], Truth] | None = None  # inputs as float64, attributes
    constraints: list[tuple[str, str]] = field(default_factory=list)
    suites: dict[str, list[str]] = field(default_factory=dict)  # cases as the table writes them
    flops: str = "0"
    bytes: str = ""  # an expression; empty: every tensor once
    # Values of an input that no common distribution gives: fill(name, shape, dtype, rng) or None.
    fill: Callable | None = None
    # Inputs that follow from others: derived(inputs) -> {name: array}.
    derived: Callable | None = None
    # Entry points of other harnesses: name -> f(function, outputs, inputs, attributes).
    adapters: dict[str, Callable] = field(default_factory=dict)
    # Modules that kernels of other harnesses import: name -> its names.
    modules: dict[str, dict[str, object]] = field(default_factory=dict)
    source: Path | None = None

    def __post_init__(self):
        self.bounds = {a["name"]: a.get("bound") for a in self.args if a["role"] == "output"}
        self.orders = {a["name"]: tuple(a.get("order", ())) for a in self.args}
        self.data = {a["name"]: a.get("data", "") for a in self.args if a["role"] == "input"}
        self.contract = Op.read(
            {
                "name": self.name,
                "doc": self.doc,
                "source": str(self.source or ""),
                "args": self.args,
                "backward": {},
                "implementations": [],
                "cases": [],
                "constraints": [{"condition": c, "sentence": s} for c, s in self.constraints],
            }
        )
        for suite in self.suites:
            if suite not in SUITES:
                raise LabError(f"problem {self.name}: suite {suite!r}, expected one of {SUITES}")

    @property
    def is_op(self) -> bool:
        """An op of the table, whose reference the library has."""
        return self.reference is None

    def cases(self, suite: str) -> list[str]:
        if suite not in SUITES:
            raise LabError(f"no suite {suite!r}: there are {', '.join(SUITES)}")
        found = self.suites.get(suite, [])
        if suite == "adversarial" and not self.is_op:
            from .engine.adversarial import generated

            found = list(dict.fromkeys([*found, *generated(self)]))
        if not found:
            raise LabError(f"problem {self.name} has no cases in the suite {suite}")
        return found


def of_table(name: str) -> Problem:
    """An op of Pestle's table as a problem."""
    json = contracts()[name]
    args = []
    for arg in json["args"]:
        bound = arg.get("bound")
        if bound is not None:
            bound = Bound(exact=True) if bound == "exact" else Bound(bound["c"], bound["k"])
        args.append(arg | {"bound": bound})
    suites: dict[str, list[str]] = {
        "smoke": [],
        "correctness": [],
        "adversarial": [],
        "performance": [],
        "huge": [],
    }
    for case in json["cases"]:
        tags, is_plain = set(case["tags"]), case["data"] in ("normal", "outliers")
        text = case["text"] if case["data"] == "normal" else f"{case['text']} data={case['data']}"
        if "bar" in tags:
            suites["performance"].append(text)
        elif "smoke" in tags and is_plain:
            suites["correctness"].append(text)
        else:
            suites["huge" if "huge" in tags else "adversarial"].append(text)
    suites["smoke"] = suites["correctness"][:3]
    moved = json.get("bytes", "")
    moved = "" if moved == "every present tensor once" else moved
    rules = [(c["condition"], c["sentence"]) for c in json["constraints"]]
    return Problem(
        name=name,
        doc=json["doc"],
        args=args,
        constraints=rules,
        suites=suites,
        flops=json.get("flops", "0"),
        bytes=moved,
    )


def _load(path: Path) -> Problem:
    spec = importlib.util.spec_from_file_location(f"pestle_lab_problem_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        found = module.problem
    except Exception as error:
        raise LabError(f"problem file {path}: {type(error).__name__}: {error}") from error
    if not isinstance(found, Problem):
        raise LabError(f"problem file {path}: `problem` is a {type(found).__name__}, not a Problem")
    found.source = path
    return found


BUILT_IN = Path(__file__).parent / "problems_shipped"


def find(folders: list[Path]) -> dict[str, Callable[[], Problem]]:
    """Problems by name: those in files of `folders`, then the table's. Loaded when asked for."""
    found: dict[str, Callable[[], Problem]] = {}
    files: dict[str, Path] = {}
    for folder in [*folders, BUILT_IN]:
        for path in sorted(folder.glob("*.problem.py")):
            name = path.name.removesuffix(".problem.py")
            if name in files and files[name] != path:
                raise LabError(f"two problems are named {name}: {files[name]} and {path}")
            files[name] = path
            found[name] = lambda path=path: _load(path)
    for name, json in contracts().items():
        if name not in found and not any(a["kind"] == "tensor_list" for a in json["args"]):
            found[name] = lambda name=name: of_table(name)
    return found


def get(name: str, folders: list[Path]) -> Problem:
    found = find(folders)
    if name not in found:
        import difflib

        near = difflib.get_close_matches(name, found, 3)
        hint = f"; near it: {', '.join(near)}" if near else ""
        raise LabError(f"no problem is named {name!r}{hint}. `pestle-lab list --ops` names all")
    return found[name]()
