"""pestle-lab seed: a complete project to begin with, in a folder of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

from .errors import LabError

TEMPLATES = Path(__file__).parent / "seeds"
KINDS = tuple(sorted(p.name for p in TEMPLATES.iterdir() if p.is_dir() and p.name[0] != "_"))


def write(kind: str, folder: Path) -> list[Path]:
    """The files written. An existing folder must be empty: nobody's work is overwritten."""
    if kind not in KINDS:
        raise LabError(f"no seed {kind!r}: there are {', '.join(KINDS)}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise LabError(f"{folder} is there already, and not an empty folder")
    written = []
    for source in sorted((TEMPLATES / kind).rglob("*")):
        name = source.relative_to(TEMPLATES / kind)
        # What tools leave behind; hidden files of the project are called dot-NAME here.
        if source.is_dir() or any(p[0] == "." or p == "__pycache__" for p in name.parts):
            continue
        target = folder / name
        if target.name.startswith("dot-"):
            target = target.with_name("." + target.name.removeprefix("dot-"))
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        # Wheels need not keep who may run a file.
        if source.read_bytes().startswith(b"#!"):
            target.chmod(0o755)
        written.append(target)
    return written
