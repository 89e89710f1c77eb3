"""Whole files by the library's own engine: reports and progress as Python values."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable

import torch

from . import _library
from ._contract import DTYPES
from .errors import InvalidArgumentError, NotCompiledError, UnsupportedError

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


def _with_progress(run: Callable, progress: bool | Progress | None) -> None:
    """Calls run(hook) of the C ABI, whose hook reports to a bar or to the caller's function."""
    if _library.LIBRARY is None:
        raise NotCompiledError("whole files need Pestle's compiled wheel, which has their engine")
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
    try:
        status = run(hook)
    finally:
        if bar is not None:
            bar.close()
    if raised:
        raise raised[0]
    _library.check(status)


def _run(verb: str, options: dict, progress: bool | Progress | None) -> dict:
    options = {key: value for key, value in options.items() if value is not None}
    report = ctypes.c_void_p()
    _with_progress(
        lambda hook: _library.LIBRARY.pestle_file(
            verb.encode(), json.dumps(options).encode(), hook, None, ctypes.byref(report)
        ),
        progress,
    )
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


class _FileTensor(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("data", ctypes.c_void_p),
    )


# safetensors' spelling of our dtypes.
_SPELLING = {
    dtype: f"F8_{name.upper()}" if name in ("e4m3", "e5m2", "e8m0") else name.upper()
    for name, dtype in DTYPES.items()
}
_SPELLED = {text: dtype for dtype, text in _SPELLING.items()}


def _file_tensors(tensors: dict[str, torch.Tensor]) -> ctypes.Array:
    made = (_FileTensor * len(tensors))()
    for place, (name, tensor) in zip(made, tensors.items(), strict=True):
        if tensor.dtype not in _SPELLING:
            raise InvalidArgumentError(f"{name}: safetensors has no dtype for {tensor.dtype}")
        place.name, place.dtype = name.encode(), _SPELLING[tensor.dtype].encode()
        place.rank = tensor.ndim
        place.shape = (ctypes.c_int64 * max(tensor.ndim, 1))(*tensor.shape)
        place.data = tensor.data_ptr()
    return made


def save_file(
    tensors: dict[str, torch.Tensor],
    path: str | os.PathLike,
    metadata: dict[str, str] | None = None,
    *,
    force: bool = True,
    max_shard_bytes: int | None = None,
    progress: bool | Progress | None = None,
) -> None:
    """Writes tensors as a safetensors file, which appears complete or not at all.

    A file that is there is replaced, unless `force` is False. `max_shard_bytes` makes shards and
    their index. `progress` as in quantize_file.
    """
    own = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    options = {"metadata": metadata or {}, "force": force}
    if max_shard_bytes is not None:
        options["max_shard_bytes"] = max_shard_bytes
    _with_progress(
        lambda hook: _library.LIBRARY.pestle_save_tensors(
            os.fspath(path).encode(), _file_tensors(own), ctypes.c_size_t(len(own)),
            json.dumps(options).encode(), hook, None,
        ),
        progress,
    )  # fmt: skip


def load_file(
    path: str | os.PathLike,
    device: str | torch.device | None = None,
    *,
    names: list[str] | None = None,
    progress: bool | Progress | None = None,
) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file, of shards with an index, or of a folder of these.

    They lie on the CPU unless `device` is another; `names` picks some of them. `progress` as in
    quantize_file.
    """
    where = os.fspath(path).encode()
    listed = ctypes.c_void_p()
    _with_progress(
        lambda hook: _library.LIBRARY.pestle_list_tensors(where, ctypes.byref(listed)), None
    )
    found = {t["name"]: t for t in json.loads(_library.take_text(listed.value))["tensors"]}
    own = {}
    for name in found if names is None else names:
        if name not in found:
            raise InvalidArgumentError(f"{os.fspath(path)} has no tensor {name!r}")
        spelled = found[name]["dtype"]
        if spelled not in _SPELLED:
            raise UnsupportedError(f"{name}: torch has no tensors of {spelled}")
        own[name] = torch.empty(found[name]["shape"], dtype=_SPELLED[spelled])
    _with_progress(
        lambda hook: _library.LIBRARY.pestle_load_tensors(
            where, _file_tensors(own), ctypes.c_size_t(len(own)), hook, None
        ),
        progress,
    )
    return {name: tensor.to(device or "cpu") for name, tensor in own.items()}
