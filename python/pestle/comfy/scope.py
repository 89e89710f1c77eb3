"""Settings of torch that hold for a call and are gone after it."""

from __future__ import annotations

import functools
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


@functools.cache
def known_to_dynamo() -> frozenset[str]:
    """Once for all: the copy takes some 0.4 ms, in which a step would keep its GPU waiting."""
    from torch._dynamo import config

    return frozenset(config.get_config_copy())


def dynamo_settings(settings: CompileSettings) -> tuple[dict, tuple[str, ...]]:
    """What dynamo's configuration is while the model runs, and a sentence for each setting that
    was asked for and that this PyTorch does not know."""
    from torch._dynamo import config

    limit, known = settings.recompile_limit, known_to_dynamo()
    # Before PyTorch 2.6 the limits have other names.
    old = "recompile_limit" not in known
    one, all_of_it = ("cache_size_limit", "accumulated_cache_size_limit") if old else (
        "recompile_limit", "accumulated_recompile_limit")  # fmt: skip
    wanted = {
        one: limit,
        all_of_it: max(getattr(config, all_of_it, 0), 4 * limit),
        "force_parameter_static_shapes": settings.force_parameter_static_shapes,
        "allow_unspec_int_on_nn_module": True,
    }
    name = "force_parameter_static_shapes"
    ignored = settings.force_parameter_static_shapes and name not in known
    sentence = f"PyTorch {torch.__version__} has no dynamo setting {name}: it is left out"
    made = {name: value for name, value in wanted.items() if name in known}
    return made, (sentence,) if ignored else ()


STANCES = ("default", "eager_on_recompile", "fail_on_recompile")


@contextmanager
def stance(name: str) -> Iterator[None]:
    """What torch does within the block where it would compile."""
    if name == "default":
        yield
        return
    with torch.compiler.set_stance(name):
        yield


@contextmanager
def scoped(settings: CompileSettings) -> Iterator[None]:
    """dynamo's limits, caches' folders and TF32 as `settings` have them, within the block only.
    (Inductor's options go to torch.compile with the graph.)"""
    from torch._dynamo import config

    patched, _ = dynamo_settings(settings)
    # Writing a setting takes longer than reading it.
    patched = {name: value for name, value in patched.items() if getattr(config, name) != value}
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
