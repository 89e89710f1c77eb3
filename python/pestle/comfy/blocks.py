"""The blocks that a model repeats: what is compiled once and runs many times."""

from __future__ import annotations

from collections import Counter

from torch import nn

_CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)


def _signature(module: nn.Module) -> tuple:
    """What makes two blocks share a graph: the class and the shapes of the weights."""
    shapes = tuple((name, tuple(value.shape)) for name, value in module.named_parameters())
    return (type(module), shapes)


def _layers(module: nn.Module) -> int:
    """Modules within it that have weights of their own: one alone is not worth a graph."""
    return sum(1 for one in module.modules() if one is not module and one._parameters)


def _in_lists(root: nn.Module) -> list[nn.Module]:
    """Modules with a forward of their own that stand in a list, at any depth."""
    found = []

    def visit(module: nn.Module, listed: bool) -> None:
        for child in module.children():
            inside = listed or isinstance(module, _CONTAINERS)
            if inside and not isinstance(child, _CONTAINERS) and _layers(child) > 1:
                found.append(child)
            visit(child, inside)

    visit(root, False)
    return found


def repeated_blocks(root: nn.Module) -> dict[type, list[nn.Module]]:
    """Class -> its modules in the model's order, for classes of which two or more modules have
    weights of the same shapes. A module within another block is not listed, but a module that
    only holds a list of blocks (the transformer of a U-Net) gives way to these."""
    modules = _in_lists(root)
    counts = Counter(_signature(module) for module in modules)
    classes = {signature[0] for signature, count in counts.items() if count > 1 and signature[1]}
    candidates = [module for module in modules if type(module) in classes]
    chosen = {id(module) for module in candidates if not _holds_blocks(module, classes)}
    outermost: dict[type, list[nn.Module]] = {}
    for module in _outermost(root, chosen):
        outermost.setdefault(type(module), []).append(module)
    return {one: found for one, found in outermost.items() if len(found) > 1}


def _holds_blocks(module: nn.Module, classes: set[type]) -> bool:
    lists = [child for child in module.children() if isinstance(child, nn.ModuleList)]
    return any(type(child) in classes for one in lists for child in one)


def _outermost(root: nn.Module, chosen: set[int]) -> list[nn.Module]:
    found, seen = [], set()

    def visit(module: nn.Module) -> None:
        for child in module.children():
            if id(child) in seen:
                continue
            seen.add(id(child))
            if id(child) in chosen:
                found.append(child)
            else:
                visit(child)

    visit(root)
    return found
