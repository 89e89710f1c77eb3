"""Compiled kernels: nvcc or the C++ compiler, once for each source, flags and architecture."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import UNSUPPORTED, LabError
from ..kernels import COMPILED, Kernel

_PTXAS = re.compile(
    r"Function properties for (?P<name>\S+).*?"
    r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)


@dataclass
class Build:
    ok: bool = True
    library: str = ""
    seconds: float = 0.0
    cached: bool = False
    log: str = ""
    functions: list[dict] = field(default_factory=list)  # registers, spills, shared memory

    def json(self) -> dict:
        return {
            "ok": self.ok,
            "seconds": round(self.seconds, 3),
            "cached": self.cached,
            "functions": self.functions,
            "log": self.log,
        }


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("PESTLE_LAB_CACHE", Path(base) / "pestle-lab"))


def nvcc() -> str | None:
    """$CUDACXX, the toolkit's, or the one that PyPI's wheels bring."""
    given = os.environ.get("CUDACXX")
    if given:
        return given
    found = shutil.which("nvcc")
    if found:
        return found
    try:
        import nvidia
    except ImportError:
        return None
    for root in nvidia.__path__:
        for path in sorted(Path(root).glob("cu1*/bin/nvcc")):
            return str(path)
    return None


def _architectures(kernel: Kernel, device: str) -> list[str]:
    if kernel.arch:
        return [arch.removeprefix("sm_") for arch in kernel.arch]
    if device.startswith("cuda"):
        import torch

        major, minor = torch.cuda.get_device_capability(device)
        return [f"{major}{minor}{'a' if major >= 9 else ''}"]
    return ["90a"]  # built here to be run elsewhere


def command(kernel: Kernel, device: str, out: Path) -> list[str]:
    if kernel.language == "cpp":
        compiler = os.environ.get("CXX", "c++")
        if shutil.which(compiler) is None:
            raise LabError(
                f"no C++ compiler {compiler}: install g++, or name another with CXX", UNSUPPORTED
            )
        return [
            compiler,
            "-std=c++20",
            "-O3",
            "-march=native",
            "-shared",
            "-fPIC",
            *kernel.flags,
            str(kernel.path),
            "-o",
            str(out),
        ]
    if kernel.language == "hip":
        return _hip_command(kernel, out)
    compiler = nvcc()
    if compiler is None:
        raise LabError(
            "no nvcc: set CUDACXX, put the CUDA toolkit on the PATH, or pip install "
            "nvidia-cuda-nvcc nvidia-cuda-crt nvidia-cuda-runtime nvidia-cuda-cccl nvidia-nvvm",
            UNSUPPORTED,
        )
    codes = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in _architectures(kernel, device)]
    # The wheels' toolkit has lib/ where nvcc looks for lib64/.
    root = Path(compiler).resolve().parent.parent
    return [
        compiler,
        "-std=c++20",
        "-O3",
        "-lineinfo",
        "-Xptxas=-v",
        *codes,
        "-shared",
        "-Xcompiler=-fPIC",
        f"-L{root / 'lib'}",
        *kernel.flags,
        str(kernel.path),
        "-o",
        str(out),
    ]


def _hip_command(kernel: Kernel, out: Path) -> list[str]:
    compiler = os.environ.get("HIPCXX", "hipcc")
    if shutil.which(compiler) is None:
        raise LabError(
            f"no {compiler}: a HIP kernel is built by ROCm's compiler; HIPCXX names another",
            UNSUPPORTED,
        )
    codes = [f"--offload-arch={arch}" for arch in kernel.arch or ["gfx942"]]
    return [compiler, "-x", "hip", "-std=c++20", "-O3", "-shared", "-fPIC", *codes, *kernel.flags,
            str(kernel.path), "-o", str(out)]  # fmt: skip


def _functions(log: str) -> list[dict]:
    found = []
    for match in _PTXAS.finditer(log):
        shared = re.search(r"(\d+) bytes smem", match["rest"])
        found.append(
            {
                "name": match["name"],
                "registers": int(match["registers"]),
                "spill_bytes": int(match["stores"]) + int(match["loads"]),
                "shared_bytes": int(shared[1]) if shared else 0,
            }
        )
    return found


def build(kernel: Kernel, device: str) -> Build:
    """The kernel as a shared library; Python's need none."""
    if kernel.language not in COMPILED:
        return Build()
    folder = cache_folder() / "build"
    folder.mkdir(parents=True, exist_ok=True)
    probe = command(kernel, device, Path("kernel.so"))
    key = hashlib.sha256(
        json.dumps([kernel.sha256, probe, _version(probe[0])]).encode()
    ).hexdigest()[:32]
    library, notes = folder / f"{key}.so", folder / f"{key}.json"
    if library.exists() and notes.exists():
        known = json.loads(notes.read_text())
        return Build(
            library=str(library), cached=True, log=known["log"], functions=known["functions"]
        )
    partial = folder / f"{key}.{os.getpid()}.so"
    start = time.monotonic()
    done = subprocess.run(command(kernel, device, partial), capture_output=True, text=True)
    made = Build(
        ok=done.returncode == 0,
        seconds=time.monotonic() - start,
        log=(done.stdout + done.stderr).strip(),
    )
    if not made.ok:
        partial.unlink(missing_ok=True)
        return made
    made.functions = _functions(made.log)
    made.library = str(library)
    notes.write_text(json.dumps({"log": made.log, "functions": made.functions}))
    partial.replace(library)  # last, and in one step, since others may build the same
    return made


def _version(compiler: str) -> str:
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True)
    return done.stdout
