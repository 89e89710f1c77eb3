"""What a sweep is made of: one item for each kernel, case and kind of GPU, and its measuring, which
is `bench` of that case in a worker of Ray's."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from .. import benching, kernels, problems
from ..checking import Verdict
from ..engine import building, machine
from ..errors import COMPILE_ERROR, LabError

# What a worker's LabError says of the item; everything else is a fault of the workbench.
_STATUS = {9: "no_device", COMPILE_ERROR: "compile_error"}


@dataclass(frozen=True)
class Item:
    kernel: str  # a name, or a file below the root
    name: str
    case: str
    device: str  # cuda or cpu
    gpu: str = ""  # a kind of GPU as Ray calls it, "" for any

    @property
    def title(self) -> str:
        return f"{self.name} {self.case}" + (f" on {self.gpu}" if self.gpu else "")


@dataclass
class Done:
    """One item's end. `env` is of the machine that it ran on; none if it never ran."""

    item: Item
    timed: benching.Timed
    build: building.Build = field(default_factory=building.Build)
    env: dict = field(default_factory=dict)
    ceilings: dict = field(default_factory=dict)

    @property
    def status(self) -> str:
        return self.timed.verdict.status

    @property
    def machine(self) -> str:
        if not self.env:
            return ""
        return f"{(self.env['gpu'] or {}).get('name') or self.env['cpu']}, {self.env['host']}"


def failed(item: Item, status: str, message: str) -> Done:
    return Done(item, benching.Timed(Verdict(item.case, status, message)))


def measure(item: Item, root: str, folders: list[str], settings: benching.Settings) -> Done:
    """In a worker of Ray's. `root` is the user's folder; "" where Ray has made the worker's own
    folder of it."""
    base = Path(root or os.getcwd())
    settings.folders = [base / folder for folder in folders]
    settings.device = item.device
    try:
        return _measured(item, base, settings)
    except LabError as error:
        return failed(item, _STATUS.get(error.code, "internal_error"), str(error))
    except Exception as error:  # no class of ours or torch's travels, only words
        return failed(item, "internal_error", f"{type(error).__name__}: {error}")


def _measured(item: Item, base: Path, settings: benching.Settings) -> Done:
    path = base / item.kernel
    word = str(path) if path.suffix in kernels.LANGUAGES.values() else item.kernel
    kernel = kernels.get(word, [*settings.folders, kernels.BUILT_IN])
    problem = problems.get(kernel.problem, settings.folders)
    found = benching.bench(kernel, problem, [item.case], settings)
    return Done(
        item,
        found.cases[0],
        found.build,
        machine.environment(found.device),
        machine.ceilings(found.device),
    )
