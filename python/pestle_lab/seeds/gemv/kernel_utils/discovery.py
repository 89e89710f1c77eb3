"""Kernels are in files nvfp4_*.py in the folder that you stand in; nothing lists them. So are
submissions to gpu-mode: files that define custom_kernel(data) and name it in a `#!POPCORN` line, or
are called nvfp4_*.py or submission*.py."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path

from . import task
from .backends import BACKENDS

HOME = Path(__file__).resolve().parent.parent
_BOARD = re.compile(r"^#!POPCORN leaderboard (\S+)", re.MULTILINE)
_ENTRY = re.compile(r"^(def custom_kernel\(|custom_kernel\s*=|from .* import .*\bcustom_kernel\b)",
                    re.MULTILINE)  # fmt: skip
REFERENCE = "nvfp4_reference_kernel.py"


def load(path: Path) -> None:
    """Runs a file once, as the module of its name."""
    there = sys.modules.get(path.stem)
    if there is not None and Path(getattr(there, "__file__", "") or "/").resolve() == path:
        return
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    if "task" not in sys.modules and importlib.util.find_spec("task") is None:
        sys.modules["task"] = task  # a submission imports its types from here
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise


def _is_submission(path: Path) -> bool:
    """That its file says so; one of another problem is none."""
    text = path.read_text(errors="replace")
    board = _BOARD.search(text)
    if board or not path.name.startswith("submission"):
        return board is not None and board[1] == "nvfp4_gemv"
    return _ENTRY.search(text) is not None


def files(folder: Path) -> list[Path]:
    """The reference first, which is the harness's own where the folder has none."""
    known = sorted(folder.resolve().glob("*.py"))
    found = [path for path in known if path.name.startswith("nvfp4_") or _is_submission(path)]
    own = [path for path in found if path.name == REFERENCE]
    return [*(own or [HOME / REFERENCE]), *(path for path in found if path not in own)]


def discover(folder: Path | None = None) -> dict[Path, str]:
    """Registers every kernel; files that could not be run, with the reason."""
    failed = {}
    for path in files(folder or Path.cwd()):
        before = len(BACKENDS)
        try:
            load(path)
            _register_submission(path)
        except Exception as error:
            failed[path] = f"{type(error).__name__}: {error}"
        else:
            if len(BACKENDS) == before and not _registered(path):
                failed[path] = (
                    "it registers no kernel: BACKENDS.register(name, kernel_fn, ...), and has no "
                    "custom_kernel(data)"
                )
    return failed


def _registered(path: Path) -> bool:
    return any(Path(backend.source) == path for _, backend in BACKENDS.items())


def _register_submission(path: Path) -> None:
    """custom_kernel under the file's name, if the file registers nothing itself."""
    kernel = getattr(sys.modules[path.stem], "custom_kernel", None)
    if kernel is None or _registered(path):
        return
    is_triton = re.search(r"^\s*(import|from) triton\b", path.read_text(), re.MULTILINE)
    BACKENDS.register(
        path.stem.removeprefix("nvfp4_"),
        kernel,
        f"custom_kernel of {path.name}",
        "triton" if is_triton else "other",
        source=str(path),
    )


def function_of(name: str, source: str) -> Callable:
    """In a process of its own: the function that a file registers under a name."""
    load(Path(source))
    _register_submission(Path(source))
    return BACKENDS[name].kernel_fn
