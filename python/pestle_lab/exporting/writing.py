"""The folders that an export writes."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path

import jinja2
import numpy as np
import pestle
import torch
from pestle._contract import DTYPES

from ..engine import cases, loading, reference, rules
from ..errors import LabError
from ..kernels import Kernel
from ..problems import Problem

HERE = Path(__file__).parent
# Pestle's own files that the exported package is made of, word for word.
FROM_PESTLE = ("_contract.py", "_expr.py", "_shapes.py", "errors.py")
NO_TABLE = '''"""No table of ops belongs to this package: its contract is contract.json."""


def contracts() -> dict:
    return {}
'''


def package_name(kernel: Kernel) -> str:
    name = re.sub(r"\W", "_", kernel.name.replace("/", "_")).lower()
    return name if name[0].isalpha() else f"kernel_{name}"


def _plain(arg: dict) -> dict:
    return {key: value for key, value in arg.items() if key not in ("bound", "data", "order")}


def _said(kernel: Kernel, problem: Problem, module: str) -> dict:
    """A kernel and its contract as contract.json has them."""
    for arg in problem.contract.of_role("output"):
        if arg.present_if:
            raise LabError(
                f"{problem.name}: {arg.name} is there only when {arg.present_if}; an op of PyTorch "
                "has the same outputs for every call"
            )
    if kernel.entry in problem.adapters:
        raise LabError(
            f"{kernel.name} takes a harness's tuple ({kernel.entry}); write it with an entry that "
            "gets tensors by name to export it"
        )
    compiled = kernel.language in ("cuda", "cpp")
    return {
        "op": {
            "name": problem.name, "doc": problem.doc, "source": "", "backward": {},
            "args": [_plain(arg) for arg in problem.args], "implementations": [], "cases": [],
            "constraints": [
                {"condition": c, "sentence": s} for c, s in problem.contract.constraints
            ],
        },
        "orders": {name: list(order) for name, order in problem.orders.items() if order},
        "kernel": {
            "name": kernel.name, "language": kernel.language, "entry": kernel.entry,
            "module": "_compiled" if compiled else module,
            "source": module + kernel.path.suffix,
            "dtypes": [str(DTYPES[name]) for name in kernel.dtypes],
            "constraints": kernel.constraints, "devices": list(kernel.devices),
            "parameters": None if kernel.parameters is None else sorted(kernel.parameters),
            "arguments": kernel.arguments, "flags": kernel.flags, "arch": kernel.arch,
        },
    }  # fmt: skip


def _check_names(forward: Problem, backward: Problem) -> None:
    """A backward kernel's arguments are named after the forward's."""
    own = forward.contract
    tensors = {a.name for a in own.args if a.role != "attribute"}
    grads = {f"d_{a.name}" for a in own.of_role("output")}
    for arg in backward.contract.of_role("input"):
        if arg.name not in tensors | grads:
            raise LabError(
                f"{backward.name}: its input {arg.name} is none of {', '.join(sorted(tensors))} "
                f"and no gradient ({', '.join(sorted(grads))})"
            )
    allowed = {f"d_{a.name}" for a in own.of_role("input")}
    for arg in backward.contract.of_role("output"):
        if arg.name not in allowed:
            raise LabError(
                f"{backward.name}: its output {arg.name} is the gradient of no input "
                f"({', '.join(sorted(allowed))})"
            )


def write_package(
    folder: Path, kernel: Kernel, problem: Problem, back: tuple[Kernel, Problem] | None
) -> str:
    """Into an empty folder; the namespace of its ops, which no other content has."""
    folder.mkdir(parents=True)
    said = {"forward": _said(kernel, problem, "kernel"), "backward": None}
    shutil.copyfile(kernel.path, folder / f"kernel{kernel.path.suffix}")
    if back:
        _check_names(problem, back[1])
        said["backward"] = _said(*back, "kernel_backward")
        shutil.copyfile(back[0].path, folder / f"kernel_backward{back[0].path.suffix}")
    for path in sorted((HERE / "package").glob("*.py")):
        if path.name != "_compiled.py" or "_compiled" in json.dumps(said):
            shutil.copyfile(path, folder / path.name)
    if (folder / "_compiled.py").exists():
        shutil.copyfile(loading.__file__, folder / "_loading.py")
    for name in FROM_PESTLE:
        shutil.copyfile(Path(pestle.__file__).with_name(name), folder / name)
    (folder / "_library.py").write_text(NO_TABLE)
    content = hashlib.sha256(json.dumps(said, sort_keys=True).encode())
    for path in sorted(folder.iterdir()):
        content.update(path.read_bytes())
    said["namespace"] = f"{package_name(kernel)}_{content.hexdigest()[:8]}"
    (folder / "contract.json").write_text(json.dumps(said, indent=1) + "\n")
    return said["namespace"]


def _tensor(array: np.ndarray, dtype: torch.dtype, order: tuple[int, ...]) -> torch.Tensor:
    """A copy whose dimensions lie in memory as the contract says."""
    order = list(order) or list(range(array.ndim))
    laid = np.ascontiguousarray(array.transpose(order))
    flat = torch.from_numpy(laid.view(np.uint8).reshape(-1).copy()).view(dtype)
    return flat.reshape(laid.shape).permute([order.index(d) for d in range(array.ndim)])


def write_case(path: Path, problem: Problem, text: str) -> None:
    """One call with what is right, and how far from it a result may be."""
    case = cases.make(problem, text)
    masters = case.inputs(1)
    truth, outputs = reference.truth(case, masters), {}
    for plan in case.of_role("output"):
        want, magnitude = truth[plan.name]
        bound, allowed = problem.bounds[plan.name], np.zeros(plan.shape)
        if not bound.exact and plan.dtype in cases.FLOATS:
            size = np.abs(want) if magnitude is None else magnitude
            k = case.evaluate(bound.k)
            allowed = rules.allowed_error(plan.dtype, want, size, bound, k)
        if not allowed.any():  # bit for bit: what the dtype can hold
            want = want.astype(cases.numpy_dtype(plan.dtype), copy=False)
        values = np.ascontiguousarray(want).astype(np.float64)
        outputs[plan.name] = (torch.from_numpy(values), torch.from_numpy(allowed))
    inputs = {
        plan.name: _tensor(masters[plan.name], plan.dtype, problem.orders[plan.name])
        for plan in case.of_role("input")
    }
    asked = {f"{n}_dtype": d for n, d in case.call.asked.items()}
    torch.save({"case": text, "inputs": inputs, "outputs": outputs,
                "attributes": dict(case.attributes), "asked": asked}, path)  # fmt: skip


def render(template: str, path: Path, **values) -> None:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"), trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True,
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(environment.get_template(template).render(**values))
