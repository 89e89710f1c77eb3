"""Puts Pestle where comfy-kitchen is expected."""

from __future__ import annotations

import importlib
import pkgutil
import sys

from . import _stop_decoding

NAME = "comfy_kitchen"
_OURS = "pestle.compat.comfy_kitchen"
_LEAST = (0, 2, 31)
_SHARED_PRIVATE = ("_rope_utils", "_activations")  # private modules of theirs that others import
_DEFAULT_PRIORITY = ("cuda", "triton", "eager")


def install(as_comfy_kitchen: bool = False) -> None:
    """Serves comfy-kitchen's callers.

    With as_comfy_kitchen=True `import comfy_kitchen`, and its submodules, give Pestle's package
    from now on; call it before anything imports another one. Without, Pestle becomes a backend of
    the installed comfy_kitchen (0.2.31 or later), before all others; what it refuses goes on to
    these. Its quantised weights are then multiplied as they are, in ComfyUI too where that is
    imported. Calling it twice changes nothing.
    """
    if as_comfy_kitchen:
        _alias()
    else:
        _register()


def uninstall() -> None:
    """Undoes install: the alias is gone, and Pestle is asked no more."""
    for name in _aliases():
        if sys.modules.get(name) is not None and _is_ours(sys.modules[name]):
            del sys.modules[name]
    if f"{_OURS}._torch_ops" in sys.modules:
        sys.modules[f"{_OURS}._torch_ops"].remove()
    theirs = sys.modules.get(NAME)
    _stop_decoding.stop()
    if theirs is not None and theirs.registry.is_available("pestle"):
        theirs.registry.disable("pestle")


def _is_ours(module) -> bool:
    return module.__name__ == _OURS or module.__name__.startswith(f"{_OURS}.")


def _stands_for_theirs(name: str) -> bool:
    parts = name.removeprefix(f"{_OURS}.").split(".")
    return all(part in _SHARED_PRIVATE or not part.startswith("_") for part in parts)


def _aliases() -> dict[str, str]:
    """comfy_kitchen's module names, and ours that stand for them."""
    return {
        NAME + name.removeprefix(_OURS): name
        for name in list(sys.modules)
        if name == _OURS or (name.startswith(f"{_OURS}.") and _stands_for_theirs(name))
    }


def _alias() -> None:
    there = sys.modules.get(NAME)
    if there is not None and not _is_ours(there):
        raise RuntimeError(
            f"{NAME} is imported already, from {there.__file__}, and others may hold its functions:"
            " call pestle.compat.install(as_comfy_kitchen=True) first"
        )
    ours = importlib.import_module(_OURS)
    for found in pkgutil.walk_packages(ours.__path__, f"{_OURS}."):
        if _stands_for_theirs(found.name):
            importlib.import_module(found.name)
    for alias, name in _aliases().items():
        sys.modules[alias] = sys.modules[name]
    importlib.import_module(f"{_OURS}._torch_ops").define()


def _version(module) -> tuple[int, ...]:
    from importlib.metadata import version

    parts = version("comfy-kitchen").split(".")
    return tuple(int(part) for part in parts[:3] if part.isdigit())


def _register() -> None:
    try:
        theirs = importlib.import_module(NAME)
    except ModuleNotFoundError:
        raise RuntimeError(
            f"{NAME} is not installed: pip install comfy-kitchen, or put Pestle in its place by "
            "pestle.compat.install(as_comfy_kitchen=True)"
        ) from None
    if _is_ours(theirs):
        raise RuntimeError(f"{NAME} is Pestle's own here: there is nothing to register it with")
    if (found := _version(theirs)) < _LEAST:
        need, has = (".".join(map(str, v)) for v in (_LEAST, found))
        raise RuntimeError(f"{NAME} {has} is too old: its registry is known from {need} on")
    from .comfy_kitchen import _foreign

    registry = theirs.registry
    constraints = importlib.import_module(f"{NAME}.constraints")
    module, capabilities = _foreign.backend(registry, constraints)
    registry.register("pestle", module, capabilities)
    registry.enable("pestle")
    order = [n for n in getattr(registry, "_priority", _DEFAULT_PRIORITY) if n != "pestle"]
    registry.set_priority(["pestle", *order])
    importlib.import_module(f"{NAME}.tensor")
    _stop_decoding.start(theirs)
