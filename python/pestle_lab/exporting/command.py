"""pestle-lab export: a kernel that was checked, as others can use it."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path
from typing import Annotated

import typer

from .. import checking, errors, kernels, problems
from ..errors import LabError
from ..options import (
    Device,
    Folders,
    all_kernels,
    console,
    first_taken,
    folders_of,
    texts_to_check,
)
from . import writing

KINDS = ("torch", "comfy", "hf")


def export(
    kind: Annotated[str, typer.Argument(help="torch, comfy or hf.")],
    name: Annotated[str, typer.Argument(help="A kernel's name or file.")],
    folder: Annotated[Path, typer.Argument(help="Made anew.")],
    backward: Annotated[
        str | None, typer.Option(help="The kernel of its gradients: d_out, x ... give d_x ...")
    ] = None,
    replaces: Annotated[
        str | None, typer.Option(help="Of comfy: the function that it stands for, torch....")
    ] = None,
    arguments: Annotated[
        str | None,
        typer.Option("--map", help="Of comfy: that function's arguments: input=x,eps=eps,dim:-1"),
    ] = None,
    folders: Folders = None,
    device: Device = None,
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Where the kernel can't run; its README says so.")
    ] = False,
):
    """A kernel as a package with torch ops, a ComfyUI node, or a Hugging Face kernel."""
    if kind not in KINDS:
        raise LabError(f"export {kind}: expected one of {', '.join(KINDS)}")
    if (kind == "comfy") != (replaces is not None) or (kind != "comfy" and arguments):
        raise LabError("--replaces FUNCTION and --map belong to export comfy, which needs them")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise LabError(f"{folder} is there already, and not an empty folder")
    one = kernels.get(name, all_kernels(folders))
    problem = problems.get(one.problem, folders_of(folders))
    back = None
    if backward:
        second = kernels.get(backward, all_kernels(folders))
        back = (second, problems.get(second.problem, folders_of(folders)))
    said = "It was exported without a check." if unchecked else ""
    for kernel, its in [(one, problem), *([back] if back else [])]:
        said = said or _checked(kernel, its, device, folders_of(folders))
    written = {"torch": _torch, "comfy": _comfy, "hf": _hub}[kind]
    folder.mkdir(parents=True, exist_ok=True)
    written(folder, one, problem, back, said, replaces, arguments)
    console.print(f"{folder}: begin with {folder / 'README.md'}", highlight=False)


def _checked(kernel, problem, device, folders) -> str:
    texts, suite = texts_to_check(kernel, problem, "smoke")
    done = checking.check(
        kernel, problem, texts, device=device, seed=None, timeout=120.0, problem_folders=folders
    )
    ok = [v for v in done.cases if v.passed]
    bad = [v for v in done.cases if v.status not in ("ok", "unsupported")]
    if bad:
        raise LabError(
            f"{kernel.name} is not right, so it is not exported: {bad[0].status} {bad[0].id}: "
            f"{bad[0].message}",
            errors.exit_code(v.status for v in bad),
        )
    if not ok:
        raise checking.takes_none(kernel, problem, texts, "checked")
    return f"It passed `pestle-lab check` on {done.device} ({len(ok)} cases of the suite {suite})."


def _case(kernel, problem) -> str:
    texts, _ = texts_to_check(kernel, problem, "smoke")
    return first_taken(kernel, problem, texts, "exported")


def _readable(name: str, package: Path) -> tuple[str, list[str]]:
    """The op's schema and the names of its positional arguments, as the package itself has them."""
    import sys

    sys.path.insert(0, str(package.parent.resolve()))
    try:
        module = importlib.import_module(f"{name}._ops")
        return module._forward.schema(False), module._forward.names(False)
    finally:
        sys.path.pop(0)
        for loaded in [m for m in sys.modules if m == name or m.startswith(f"{name}.")]:
            del sys.modules[loaded]


def _torch(folder, kernel, problem, back, said, *_) -> None:
    name = writing.package_name(kernel)
    namespace = writing.write_package(folder / name, kernel, problem, back)
    schema, names = _readable(name, folder / name)
    values = {
        "name": name, "kernel": kernel, "problem": problem, "namespace": namespace,
        "schema": schema, "backward": back[0] if back else None, "checked": said,
        "names": names, "devices": [d for d in ("cuda", "cpu") if d in kernel.devices],
    }  # fmt: skip
    writing.render("pyproject.toml.jinja", folder / "pyproject.toml", **values)
    writing.render("README.md.jinja", folder / "README.md", **values)
    writing.render("test_op.py.jinja", folder / "tests/test_op.py", **values)
    writing.write_case(folder / "tests/case.pt", problem, _case(kernel, problem))


def _function(path: str):
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
        return found, list(inspect.signature(found).parameters)
    except (ImportError, AttributeError, ValueError) as error:
        raise LabError(f"--replaces {path}: {error}") from None


def _pair(text: str, parameters: list[str], own: set[str]) -> tuple[str, str, object]:
    """ONE=OTHER, ONE:VALUE or ONE:any."""
    theirs, sign, rest = next(
        (text.strip().partition(sign) for sign in "=:" if sign in text), (text, "", "")
    )
    if theirs not in parameters or not sign or (sign == "=" and rest not in own):
        raise LabError(
            f"--map {text!r}: expected ONE=OTHER, ONE:VALUE or ONE:any, ONE of "
            f"{', '.join(parameters)} and OTHER of {', '.join(sorted(own))}"
        )
    if sign == "=" or rest == "any":
        return theirs, sign, rest
    try:
        return theirs, "fixed", ast.literal_eval(rest)
    except (ValueError, SyntaxError):
        raise LabError(
            f"--map {text!r}: {rest} is no number, text in quotes, True or None"
        ) from None


def _mapping(text: str | None, parameters: list[str], problem) -> dict[str, dict | list]:
    own = {a.name for a in problem.contract.args if a.role != "output"}
    pairs = [_pair(pair, parameters, own) for pair in (text or "").split(",")]
    made = {theirs: ours for theirs, sign, ours in pairs if sign == "="}
    needed = {a.name for a in problem.contract.of_role("input") if not a.optional}
    if missing := needed - set(made.values()):
        raise LabError(f"--map gives the kernel no {', '.join(sorted(missing))}")
    return {
        "mapping": made,
        "fixed": {theirs: value for theirs, sign, value in pairs if sign == "fixed"},
        "free": [theirs for theirs, sign, _ in pairs if sign == ":"],
    }


def _comfy(folder, kernel, problem, back, said, replaces, arguments) -> None:
    if not replaces.startswith("torch."):
        raise LabError(f"--replaces {replaces}: expected a function of torch's")
    if len(problem.contract.of_role("output")) != 1:
        raise LabError(f"{problem.name} has several outputs; {replaces} gives one")
    parameters = _function(replaces)[1]
    name = writing.package_name(kernel)
    values = {
        "name": name, "kernel": kernel, "replaces": replaces, "checked": said,
        "class_name": "".join(word.capitalize() for word in name.split("_")),
        **_mapping(arguments, parameters, problem),
    }  # fmt: skip
    values["namespace"] = writing.write_package(folder / name, kernel, problem, back)
    writing.render("comfy_init.py.jinja", folder / "__init__.py", **values)
    writing.render("replacing.py.jinja", folder / "replacing.py", **values)
    writing.render("README_comfy.md.jinja", folder / "README.md", **values)


def _binding(kernel, problem) -> dict:
    """Lines of the C++ that hands tensors and numbers to a compiled entry."""
    by_name = problem.contract.by_name
    outputs = [a.name for a in problem.contract.of_role("output")]
    made = {"c_types": [], "parameters": [], "values": [], "schema": []}
    numbers = {"int": ("int64_t", "int"), "bool": ("int", "bool"), "float": ("double", "float"),
               "choice": ("int", "int")}  # fmt: skip
    for word in kernel.arguments:
        name = word.replace(".", "_")
        if word == "stream":
            made["c_types"].append("void*")
            cuda = "at::cuda::getCurrentCUDAStream().stream()"
            made["values"].append(cuda if kernel.language == "cuda" else "nullptr")
        elif word in by_name and by_name[word].role != "attribute":
            made["c_types"].append("void*")
            made["parameters"].append(f"at::Tensor {name}")
            made["values"].append(f"{name}.data_ptr()")
            mark = f"(a{outputs.index(word)}!)" if word in outputs else ""
            made["schema"].append(f"Tensor{mark} {name}")
        else:
            kind = by_name[word].kind if word in by_name else "int"
            c_type, torch_type = numbers[kind]
            made["c_types"].append(c_type)
            wide = {"int": "int64_t", "bool": "bool", "float": "double"}[torch_type]
            made["parameters"].append(f"{wide} {name}")
            made["values"].append(f"static_cast<{c_type}>({name})")
            made["schema"].append(f"{torch_type} {name}")
    return made


def _hub(folder, kernel, problem, back, said, *_) -> None:
    """kernel-builder's project: its Python lies in torch-ext/NAME, its sources beside it."""
    name, compiled = writing.package_name(kernel), kernel.language in ("cuda", "cpp")
    if back and (compiled or back[0].language in ("cuda", "cpp")):
        raise LabError("export hf --backward takes kernels in Python alone: triton, python, cute")
    package = folder / "torch-ext" / name
    writing.write_package(package, kernel, problem, back)
    depends = {"cute": ["nvidia-cutlass-dsl"]}.get(kernel.language, [])
    versions = [a.removeprefix("sm_").rstrip("af") for a in kernel.arch]
    values = {
        "name": name, "kernel": kernel, "problem": problem, "compiled": compiled,
        "checked": said, "depends": depends,
        "backend": "cuda" if "cuda" in kernel.devices else "cpu",
        "capabilities": [f"{v[:-1]}.{v[-1]}" for v in versions],
    }  # fmt: skip
    writing.render("build.toml.jinja", folder / "build.toml", **values)
    writing.render("README_hub.md.jinja", folder / "README.md", **values)
    if not compiled:
        return
    source = f"kernel{kernel.path.suffix}"
    (folder / f"{name}_source").mkdir()
    (package / source).rename(folder / f"{name}_source" / source)
    (package / "_loading.py").unlink()
    # kernel-builder's own module has the name that ours has elsewhere.
    (package / "_ops.py").rename(package / "_exported.py")
    start = package / "__init__.py"
    start.write_text(start.read_text().replace("from ._ops import", "from ._exported import"))
    writing.render("hub_compiled.py.jinja", package / "_compiled.py", **values)
    values |= _binding(kernel, problem)
    writing.render("torch_binding.cpp.jinja", folder / "torch-ext/torch_binding.cpp", **values)
