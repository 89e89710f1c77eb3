"""Compiled kernels in one file, from which another process starts warm."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import torch

from .compiling import _triton


def artifact_path(folder: str | os.PathLike, key: object, device: torch.device) -> Path:
    """The file for a model and its settings on this PyTorch, Triton and device: what was compiled
    for others can't be used."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    parts = (torch.__version__, _triton(), name)
    where = "-".join(re.sub(r"[^A-Za-z0-9.+]+", "_", part) for part in parts if part)
    digest = hashlib.sha256(repr(key).encode()).hexdigest()[:16]
    return Path(folder).expanduser() / f"pestle-{where}-{digest}.artifacts"


def can_keep() -> bool:
    """PyTorch 2.7 and later."""
    return hasattr(torch.compiler, "save_cache_artifacts")


def save_artifacts(path: Path) -> int:
    """Writes what this process has compiled so far; returns the bytes, 0 if there is nothing."""
    found = torch.compiler.save_cache_artifacts() if can_keep() else None
    if found is None:
        return 0
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_bytes(found[0])
    part.replace(path)
    return len(found[0])


def load_artifacts(path: Path) -> bool:
    """Puts a file's kernels where torch.compile looks for them. The file is code: read only files
    that this machine or somebody trusted wrote."""
    if not path.exists() or not can_keep():
        return False
    return torch.compiler.load_cache_artifacts(path.read_bytes()) is not None
