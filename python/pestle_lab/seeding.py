"""pestle-lab seed: a complete project to begin with, in a folder of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

from . import packing
from .errors import LabError

TEMPLATES = Path(__file__).parent / "seeds"
KINDS = tuple(sorted(p.name for p in TEMPLATES.iterdir() if p.is_dir() and p.name[0] != "_"))
LOCK = "uv.lock"
LOCKED_FOR = "x86_64"  # the machine that the seeds' lock files are made for
# What a project of uv's has to say of the Pestle that it takes along stands between @ in its files.
FILLED = ("pyproject.toml", LOCK)


def write(kind: str, folder: Path, wheel: Path | None = None) -> list[Path]:
    """The files written. An existing folder must be empty: nobody's work is overwritten. A project
    of uv's takes a wheel of Pestle along: `wheel`, else what is installed."""
    if kind not in KINDS:
        raise LabError(f"no seed {kind!r}: there are {', '.join(KINDS)}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise LabError(f"{folder} is there already, and not an empty folder")
    left_out, marks, written = set(), {}, []
    if (TEMPLATES / kind / LOCK).exists():
        taken = packing.place(folder / "wheels", wheel)
        marks, written = marks_of(taken), [taken.path]
        left_out = set() if taken.machine == LOCKED_FOR else {LOCK}
    elif wheel:
        raise LabError(f"--wheel is of no use to the seed {kind}: it is no project of uv's")
    for name in _names(kind):
        if str(name) not in left_out:
            written.append(_copy(TEMPLATES / kind / name, folder / name, marks))
    return written


def marks_of(wheel: packing.Wheel) -> dict[str, str]:
    return {
        "@WHEEL@": wheel.path.name,
        "@VERSION@": wheel.version,
        "@SHA256@": wheel.sha256,
        "@MACHINE@": wheel.machine,
    }


def _names(kind: str) -> list[Path]:
    """All but what tools leave behind; hidden files of the project are called dot-NAME here."""
    root = TEMPLATES / kind
    found = [path.relative_to(root) for path in sorted(root.rglob("*")) if path.is_file()]
    return [n for n in found if not any(p[0] == "." or p == "__pycache__" for p in n.parts)]


def _copy(source: Path, target: Path, marks: dict[str, str]) -> Path:
    if target.name.startswith("dot-"):
        target = target.with_name("." + target.name.removeprefix("dot-"))
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    if target.name in FILLED:
        text = source.read_text()
        for mark, value in marks.items():
            text = text.replace(mark, value)
        target.write_text(text)
    # Wheels need not keep who may run a file.
    if source.read_bytes().startswith(b"#!"):
        target.chmod(0o755)
    return target
