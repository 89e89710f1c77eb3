"""Whole files by the library's own engine: reports and progress as Python values."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable

from . import _library
from .errors import NotCompiledError

_PROGRESS = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64
)
# f(stage, done_bytes, total_bytes); True stops the job, with nothing half-written left.
Progress = Callable[[str, int, int], object]


class _Bar:
    """A bar per stage, by tqdm: text in a terminal, a widget in a notebook."""

    def __init__(self):
        from tqdm.auto import tqdm

        self.make = tqdm
        self.stage, self.bar = None, None

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage != self.stage:
            self.close()
            self.stage = stage
            self.bar = self.make(total=total, desc=stage, unit="B", unit_scale=True)
        self.bar.update(done - self.bar.n)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


def _run(verb: str, options: dict, progress: bool | Progress | None) -> dict:
    if _library.LIBRARY is None:
        raise NotCompiledError("whole files need Pestle's compiled wheel, which has their engine")
    options = {key: value for key, value in options.items() if value is not None}
    raised: list[BaseException] = []
    bar = _Bar() if progress is True else None
    report_to = bar or (progress if callable(progress) else None)

    def step(_user, stage, done, total) -> int:
        try:
            return 1 if report_to(stage.decode(), done, total) is True else 0
        except BaseException as error:  # handed on below: nothing may be thrown through C
            raised.append(error)
            return 1

    hook = _PROGRESS(step) if report_to else ctypes.cast(None, _PROGRESS)
    report = ctypes.c_void_p()
    try:
        status = _library.LIBRARY.pestle_file(
            verb.encode(), json.dumps(options).encode(), hook, None, ctypes.byref(report)
        )
    finally:
        if bar is not None:
            bar.close()
    if raised:
        raise raised[0]
    _library.check(status)
    return json.loads(_library.take_text(report.value))


def quantize_file(
    input: str | os.PathLike,
    output: str | os.PathLike,
    format: str | None = None,
    *,
    layers: dict[str, str] | list[str] | None = None,
    keep: list[str] | None = None,
    default_keep: bool | None = None,
    target_error: float | None = None,
    scale_search: str | None = None,
    layout: str | None = None,
    recipe: str | os.PathLike | None = None,
    html: str | os.PathLike | None = None,
    dry_run: bool | None = None,
    force: bool | None = None,
    resume: bool | None = None,
    max_shard_bytes: int | None = None,
    progress: bool | Progress | None = None,
) -> dict:
    """Quantises a safetensors file, index or folder as `pestle quantize` does; returns its report.

    `layers` maps patterns to formats; the first that matches wins. `progress` is True for a bar, or
    f(stage, done_bytes, total_bytes), which stops the job by returning True.
    """
    if isinstance(layers, dict):
        layers = [f"{pattern}={name}" for pattern, name in layers.items()]
    paths = {"input": input, "output": output, "recipe": recipe, "html": html}
    options = {key: os.fspath(path) for key, path in paths.items() if path is not None}
    options |= {
        "format": format,
        "layers": layers,
        "keep": keep,
        "default_keep": default_keep,
        "target_error": target_error,
        "scale_search": scale_search,
        "layout": layout,
        "dry_run": dry_run,
        "force": force,
        "resume": resume,
        "max_shard_bytes": max_shard_bytes,
    }
    return _run("quantize", options, progress)


def dequantize_file(
    input: str | os.PathLike,
    output: str | os.PathLike,
    *,
    dtype: str | None = None,
    force: bool | None = None,
    max_shard_bytes: int | None = None,
    progress: bool | Progress | None = None,
) -> dict:
    """Writes the decoded weights of a quantised file; `dtype` is bf16, f16 or f32."""
    options = {"input": os.fspath(input), "output": os.fspath(output), "dtype": dtype}
    options |= {"force": force, "max_shard_bytes": max_shard_bytes}
    return _run("dequantize", options, progress)


def inspect(input: str | os.PathLike, *, progress: bool | Progress | None = None) -> dict:
    """What is in a file: container, formats, layers, bytes, metadata."""
    return _run("inspect", {"input": os.fspath(input)}, progress)


def diff(
    a: str | os.PathLike, b: str | os.PathLike, *, progress: bool | Progress | None = None
) -> dict:
    """The error of each layer of `b` against `a`, whatever their formats; the worst first."""
    return _run("diff", {"a": os.fspath(a), "b": os.fspath(b)}, progress)
