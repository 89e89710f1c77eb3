"""Kernels are in files nvfp4_*.py in the folder that you stand in; nothing lists them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

from .backends import BACKENDS

HOME = Path(__file__).resolve().parent.parent
REFERENCE = "nvfp4_reference_kernel.py"


def load(path: Path) -> None:
    """Runs a file once, as the module of its name."""
    there = sys.modules.get(path.stem)
    if there is not None and Path(getattr(there, "__file__", "") or "/").resolve() == path:
        return
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise


def files(folder: Path) -> list[Path]:
    """The reference first, which is the harness's own where the folder has none."""
    found = sorted(folder.resolve().glob("nvfp4_*.py"))
    own = [path for path in found if path.name == REFERENCE]
    return [*(own or [HOME / REFERENCE]), *(path for path in found if path not in own)]


def discover(folder: Path | None = None) -> dict[Path, str]:
    """Registers every kernel; files that could not be run, with the reason."""
    failed = {}
    for path in files(folder or Path.cwd()):
        before = len(BACKENDS)
        try:
            load(path)
        except Exception as error:
            failed[path] = f"{type(error).__name__}: {error}"
        else:
            if len(BACKENDS) == before and not any(
                Path(backend.source) == path for _, backend in BACKENDS.items()
            ):
                failed[path] = "it registers no kernel: BACKENDS.register(name, kernel_fn, ...)"
    return failed


def function_of(name: str, source: str) -> Callable:
    """In a process of its own: the function that a file registers under a name."""
    load(Path(source))
    return BACKENDS[name].kernel_fn
