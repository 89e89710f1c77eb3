"""A compiled kernel: built when it is first called, by nvcc or the C++ compiler, and kept."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import torch

from ._loading import _value


def _command(kernel: dict, source: Path, out: Path) -> list[str]:
    end = ["-shared", *kernel["flags"], str(source), "-o", str(out)]
    if kernel["language"] == "cpp":
        return [os.environ.get("CXX", "c++"), "-std=c++20", "-O3", "-march=native", "-fPIC", *end]
    compiler = os.environ.get("CUDACXX") or shutil.which("nvcc")
    if compiler is None:
        raise RuntimeError("no nvcc: set CUDACXX or put the CUDA toolkit on the PATH")
    major, minor = torch.cuda.get_device_capability()
    own = f"{major}{minor}{'a' if major >= 9 else ''}"
    architectures = [a.removeprefix("sm_") for a in kernel["arch"]] or [own]
    codes = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in architectures]
    return [compiler, "-std=c++20", "-O3", "-Xcompiler=-fPIC", *codes, *end]


def _library(kernel: dict) -> ctypes.CDLL:
    source = Path(__file__).with_name(kernel["source"])
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / __package__
    base.mkdir(parents=True, exist_ok=True)
    probe = " ".join(_command(kernel, source, Path("kernel.so")))
    key = hashlib.sha256(source.read_bytes() + probe.encode()).hexdigest()[:32]
    library, partial = base / f"{key}.so", base / f"{key}.{os.getpid()}.so"
    if not library.exists():
        done = subprocess.run(_command(kernel, source, partial), capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{source.name} does not compile:\n{done.stdout}{done.stderr}")
        partial.replace(library)  # in one step, since others may build the same
    return ctypes.CDLL(str(library))


def entry(kernel: dict, op):
    function = getattr(_library(kernel), kernel["entry"])
    function.restype = ctypes.c_int
    attributes = {a.name: a for a in op.of_role("attribute")}

    def launch(outputs: dict, call) -> None:
        tensors = outputs | call.tensors
        kinds = {
            name: (a.kind, a.choices.index(call.attributes[name]) if a.kind == "choice"
                   else call.attributes[name])
            for name, a in attributes.items()
        }  # fmt: skip
        stream = 0
        if next(iter(tensors.values())).device.type == "cuda":
            stream = torch.cuda.current_stream().cuda_stream
        symbols = {n: v for n, v in call.values.items() if n not in op.by_name}
        status = function(*(
            _value(name, tensors, call.attributes, symbols, stream, kinds)
            for name in kernel["arguments"]
        ))  # fmt: skip
        if status != 0:
            raise RuntimeError(f"{kernel['entry']} returned {status}")

    return launch
