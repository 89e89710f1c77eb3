"""The folder that a job sees: which files go there, and where what it wrote comes back to."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from ..errors import TRANSPORT, LabError
from . import agent

LEFT_OUT = {".git", ".venv", "venv", "__pycache__", ".pytest_cache", ".ruff_cache", "node_modules"}
MOST_BYTES = 512 << 20


def _listed(root: Path) -> list[str]:
    """What git does not ignore; every file, where there is no git."""
    try:
        done = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode == 0:
            return [name for name in done.stdout.split("\0") if name]
    except FileNotFoundError:
        pass
    return [path.relative_to(root).as_posix() for path in root.rglob("*")]


def manifest(root: Path) -> dict[str, dict]:
    """Name: contents and whether it may be run, of every file of the folder that goes along."""
    found, total = {}, 0
    for name in sorted(set(_listed(root))):
        path = root / name
        if LEFT_OUT & set(Path(name).parts) or not path.is_file():
            continue
        size = path.stat().st_size
        total += size
        if total > MOST_BYTES:
            raise LabError(
                f"the folder {root} has more than {MOST_BYTES >> 20} MiB to send, {name} among it: "
                "stand in the folder of the kernels, or let git ignore what is not needed"
            )
        found[name] = {
            "sha256": agent.hash_of(path), "size": size, "executable": os.access(path, os.X_OK),
        }  # fmt: skip
    return found


def relative_arguments(arguments: list[str], root: Path) -> list[str]:
    """The command's words as they hold in the job's folder: paths to files here become relative."""
    made = []
    for word in arguments:
        option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        path = Path(value)
        leads_out = path.is_absolute() or ".." in path.parts
        if value and leads_out and (path.exists() or path.parent.is_dir()):
            whole = (root / path).resolve()
            if not whole.is_relative_to(root.resolve()):
                raise LabError(
                    f"{value} lies outside of {root}, which is the folder that goes to the other "
                    "machine: stand in a folder that has everything"
                )
            value = whole.relative_to(root.resolve()).as_posix()
        made.append(option + equals + value)
    return made


def place(root: Path, name: str, before: str | None) -> tuple[Path, str]:
    """Where a file that the job wrote comes back to, and why it is not NAME: it never leaves the
    folder, nor replaces what was changed here meanwhile. `before` is its content when it left."""
    try:
        path = agent.inside(root, name)
    except agent.Refused as refusal:
        raise LabError(f"the other machine sent a file that {refusal}", TRANSPORT) from None
    if LEFT_OUT & set(Path(name).parts):
        raise LabError(f"the other machine sent {name}, where no job writes", TRANSPORT)
    if not path.parent.resolve().is_relative_to(root.resolve()) or path.is_symlink():
        raise LabError(f"{name} would be written through a link out of {root}", TRANSPORT)
    if path.exists() and agent.hash_of(path) != before:
        return path.with_name(f"{path.name}.remote"), f"{name} was changed here meanwhile"
    return path, ""
