"""Kernels: one file each, with a block of TOML in comments at its head, so that it is read without
being run.

    # kernel: rms_norm/two_pass          // kernel: rms_norm/two_pass
    # language = "triton"                // language = "cuda"
    # entry = "run"                      // entry = "run"
    # dtypes = ["bf16", "f16"]           // constraints = ["K % 8 == 0"]
"""

from __future__ import annotations

import ast
import functools
import hashlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from .errors import LabError

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

LANGUAGES = {
    "python": ".py",
    "triton": ".py",
    "cute": ".py",
    "cuda": ".cu",
    "hip": ".hip",
    "cpp": ".cpp",
}
COMPILED = ("cuda", "hip", "cpp")
_FIELDS = {
    "language",
    "entry",
    "arch",
    "dtypes",
    "constraints",
    "flags",
    "version",
    "author",
    "licence",
    "notes",
    "deterministic",
    "capturable",
    "arguments",
    "device",
}
_HEAD = re.compile(r"^(#|//) kernel:\s*(\S+)\s*$")


@dataclass
class Kernel:
    name: str  # problem/variant
    language: str
    entry: str
    path: Path
    arch: list[str] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    constraints: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)  # of a compiled entry, in its order
    deterministic: bool = True
    capturable: bool = True
    device: str = ""  # "" or "any": where the inputs are
    version: str = ""
    author: str = ""
    licence: str = ""
    notes: str = ""

    @property
    def problem(self) -> str:
        return self.name.partition("/")[0]

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.path.read_bytes()).hexdigest()

    @functools.cached_property
    def parameters(self) -> frozenset[str] | None:
        """Names that the entry can be given; None where its file doesn't say, or it takes any."""
        if self.arguments:
            return frozenset(word.partition(".")[0] for word in self.arguments)
        try:
            tree = ast.parse(self.path.read_text() if self.path.suffix == ".py" else "")
        except SyntaxError:  # which is told where the kernel runs
            return None
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name == self.entry:
                given = node.args
                if given.kwarg or node.decorator_list:  # what wraps it may take others
                    return None
                return frozenset(arg.arg for arg in [*given.args, *given.kwonlyargs])
        return None

    @property
    def devices(self) -> tuple[str, ...]:
        """Where it can run; Triton on a CPU runs in its interpreter, which is for checks. HIP is
        built here and run nowhere: no engine of ours knows an AMD GPU."""
        return {"cuda": ("cuda",), "cute": ("cuda",), "hip": ("rocm",), "cpp": ("cpu",)}.get(
            self.language, ("cuda", "cpu") if self.device in ("", "any") else (self.device,)
        )


def read(path: Path) -> Kernel | None:
    """The kernel that a file declares; None if its head has no `kernel:` line."""
    lines = path.read_text(errors="replace").splitlines()
    at = _head(lines, "#" if path.suffix == ".py" else "//")
    if at is None:
        return _submission(path, lines)
    mark, name = _HEAD.match(lines[at]).groups()
    block = []
    for line in lines[at + 1 :]:
        if line != mark and not line.startswith(mark + " "):
            break
        block.append(line[len(mark) + 1 :])
    try:
        given = tomllib.loads("\n".join(block))
    except tomllib.TOMLDecodeError as error:
        raise LabError(f"{path}: the kernel's block of comments is not TOML: {error}") from None
    return _declared(path, name, given)


def _head(lines: list[str], mark: str) -> int | None:
    """Where the block begins: among the comments that the file begins with, and in no text of a
    program that writes kernels."""
    is_inside = False  # of /* */
    for i, line in enumerate(lines):
        if line.startswith(mark) and _HEAD.match(line):
            return i
        is_inside = is_inside or (mark == "//" and line.startswith("/*"))
        if line.strip() and not is_inside and not line.startswith(mark):
            return None
        is_inside = is_inside and "*/" not in line
    return None


def _declared(path: Path, name: str, given: dict) -> Kernel:
    if unknown := set(given) - _FIELDS:
        raise LabError(
            f"{path}: unknown {', '.join(sorted(unknown))}; a kernel has "
            f"{', '.join(sorted(_FIELDS))}"
        )
    if not re.fullmatch(r"[a-z0-9_]+/[A-Za-z0-9_.-]+", name):
        raise LabError(f"{path}: kernel {name!r} is not PROBLEM/VARIANT")
    language = given.get("language", "")
    if language not in LANGUAGES:
        raise LabError(f"{path}: language {language!r}, expected one of {', '.join(LANGUAGES)}")
    if path.suffix != LANGUAGES[language]:
        raise LabError(f"{path}: a {language} kernel is a {LANGUAGES[language]} file")
    if language in COMPILED and not given.get("arguments"):
        raise LabError(f"{path}: a {language} kernel lists the `arguments` of its entry")
    given.setdefault("entry", "run")
    return Kernel(name=name, path=path, **given)


# The one shipped problem of gpu-mode's, which a submission that names none is for.
BOARD = "nvfp4_gemv"
_ENTRY = re.compile(r"def custom_kernel\(|custom_kernel\s*=|from .* import .*\bcustom_kernel\b")
_TRITON = re.compile(r"\s*(import triton|from triton)\b")


def _submission(path: Path, lines: list[str], named: bool = False) -> Kernel | None:
    """A gpu-mode submission: `custom_kernel(data)`, and the problem in its `#!POPCORN` line, which
    a file that was named by its path may lack."""
    board = next(
        (m[1] for line in lines[:30] if (m := re.match(r"#!POPCORN leaderboard (\S+)", line))), None
    )
    has_entry = any(_ENTRY.match(line) for line in lines)
    if path.suffix != ".py" or (board is None and not (named and has_entry)):
        return None
    if not has_entry:
        raise LabError(f"{path}: a submission to {board} defines custom_kernel(data)")
    return Kernel(
        name=f"{board or BOARD}/{path.stem}",
        # In Triton's interpreter, where there is no GPU.
        language="triton" if any(_TRITON.match(line) for line in lines) else "python",
        entry="custom_kernel",
        path=path,
        capturable=False,
    )


BUILT_IN = Path(__file__).parent / "kernels_shipped"


# What an environment, an exported package, an exported Hub project and this package itself have in
# them: copies of kernels, of which the originals count.
_NOT_SEARCHED = ("pyvenv.cfg", "contract.json", "torch-ext", "kernels_shipped")


def _sources(folder: Path) -> list[Path]:
    """Files that may be kernels, in order."""
    found = []
    for root, folders, files in os.walk(folder):
        here = Path(root)
        folders[:] = [
            name
            for name in folders
            if name[0] != "." and not any((here / name / mark).exists() for mark in _NOT_SEARCHED)
        ]
        found += [here / name for name in files]
    endings = tuple(LANGUAGES.values())
    return sorted(
        p for p in found if p.name.endswith(endings) and not p.name.endswith(".problem.py")
    )


def find(folders: list[Path]) -> dict[str, Kernel]:
    """Every kernel below the folders, by name. Two of one name are an error."""
    found: dict[str, Kernel] = {}
    for folder in folders:
        if not folder.exists():
            raise LabError(f"no folder {folder}")
        for path in _sources(folder):
            kernel = read(path)
            if kernel is None:
                continue
            if kernel.name in found:
                raise LabError(
                    f"two kernels are named {kernel.name}: {found[kernel.name].path} and {path}"
                )
            found[kernel.name] = kernel
    return found


def get(wanted: str, folders: list[Path]) -> Kernel:
    """By name, or by the path of its file."""
    path = Path(wanted)
    if path.suffix in LANGUAGES.values():
        if not path.exists():
            raise LabError(f"no file {path}")
        kernel = read(path) or _submission(path, path.read_text().splitlines(), named=True)
        if kernel is None:
            raise LabError(
                f"{path} declares no kernel: its head has no line `# kernel: NAME`, and it has no "
                "custom_kernel(data)"
            )
        return kernel
    found = find(folders)
    if wanted not in found:
        import difflib

        near = difflib.get_close_matches(wanted, found, 3)
        hint = f"; near it: {', '.join(near)}" if near else ""
        raise LabError(f"no kernel is named {wanted!r}{hint}. `pestle-lab list` names all")
    return found[wanted]
