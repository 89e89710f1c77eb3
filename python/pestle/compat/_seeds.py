"""The workbench's own projects (`pestle-lab seed`) as modules that can be imported anywhere."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def _projects() -> Path:
    spec = importlib.util.find_spec("pestle_lab")
    if spec is None or spec.origin is None:
        raise RuntimeError("the package pestle_lab is not here: it comes with Pestle's full wheel")
    return Path(spec.origin).parent / "seeds"


def _load(project: str, name: str) -> ModuleType:
    """A package or module of a project under its own name, without touching sys.path."""
    path = _projects() / project / name
    is_package = path.is_dir()
    file = path / "__init__.py" if is_package else path.with_suffix(".py")
    there = sys.modules.get(name)
    if there is not None:
        if getattr(there, "__file__", None) == str(file):
            return there
        raise RuntimeError(
            f"{name} is imported already, from {getattr(there, '__file__', 'elsewhere')}"
        )
    spec = importlib.util.spec_from_file_location(
        name, file, submodule_search_locations=[str(path)] if is_package else None
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def install_forge() -> ModuleType:
    """From now on `import forge_cute_py` gives the package that `pestle-lab seed forge` writes:
    ops, kernels, ref, util, env_check, and torch.ops.forge_cute_py. The softmax backend is `ref`
    until another one is set. Calling it twice changes nothing."""
    module = _load("forge", "forge_cute_py")
    importlib.import_module("forge_cute_py.ops")
    return module


def install_gemv_harness() -> ModuleType:
    """From now on `import kernel_utils` and `import nvfp4_reference_kernel` give what
    `pestle-lab seed gemv` writes: `kernel_utils.backends.BACKENDS`, `kernel_utils.task`, and
    `kernel_utils.smoke_test.main([...])` over the files nvfp4_*.py of the current folder. Calling
    it twice changes nothing."""
    module = _load("gemv", "kernel_utils")
    importlib.import_module("kernel_utils.smoke_test")
    _load("gemv", "nvfp4_reference_kernel")
    return module
