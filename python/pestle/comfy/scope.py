"""Settings of torch that hold for a call and are gone after it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from .settings import CompileSettings


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _tf32() -> Iterator[None]:
    matmul = torch.backends.cuda.matmul
    before, matmul.allow_tf32 = matmul.allow_tf32, True
    try:
        yield
    finally:
        matmul.allow_tf32 = before


@contextmanager
def scoped(settings: CompileSettings) -> Iterator[None]:
    """dynamo's limits, caches' folders and TF32 as `settings` have them, within the block only.
    (Inductor's options go to torch.compile with the graph.)"""
    from torch._dynamo import config

    limit = settings.recompile_limit
    patched = {
        "recompile_limit": limit,
        "accumulated_recompile_limit": max(config.accumulated_recompile_limit, 4 * limit),
        "force_parameter_static_shapes": settings.force_parameter_static_shapes,
        "allow_unspec_int_on_nn_module": True,
    }
    with ExitStack() as stack:
        stack.enter_context(config.patch(patched))
        if folder := settings.ptx_cache_dir:
            root = Path(folder).expanduser().absolute()
            stack.enter_context(environment({
                "TRITON_CACHE_DIR": str(root / "triton"),
                "TORCHINDUCTOR_CACHE_DIR": str(root / "inductor"),
            }))  # fmt: skip
        if settings.experimental_ptx and settings.ptx_fast_math and torch.cuda.is_available():
            stack.enter_context(_tf32())
        yield
