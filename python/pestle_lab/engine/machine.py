"""The machine: what a report says of it, and the ceilings that times are held against."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path
from time import perf_counter_ns

import torch

from .building import cache_folder, nvcc
from .clock import Timer, last_level_cache

# Published: bytes/s of memory, dense bf16 flop/s.
NOMINAL = {
    "NVIDIA H200": (4.8e12, 989e12),
    "NVIDIA H100 80GB HBM3": (3.35e12, 989e12),
    "NVIDIA B200": (8.0e12, 2250e12),
    "NVIDIA A100-SXM4-80GB": (2.04e12, 312e12),
    "NVIDIA GeForce RTX 4090": (1.008e12, 165e12),
    "NVIDIA GeForce RTX 5090": (1.792e12, 210e12),
}


def _query(fields: str, device: int) -> dict:
    """What nvidia-smi says of a GPU; nothing where there is none."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            [
                "nvidia-smi",
                f"--query-gpu={fields}",
                "--format=csv,noheader,nounits",
                f"--id={device}",
            ],
            capture_output=True,
            text=True,
            timeout=20,
        )
        if done.returncode == 0:
            values = [v.strip() for v in done.stdout.strip().split(",")]
            return dict(zip(fields.split(","), values, strict=False))
    return {}


CLOCK_FIELDS = "clocks.sm,clocks.mem,temperature.gpu,power.draw,clocks_event_reasons.active"


def gpu_index(device: str) -> int:
    return torch.device(device).index or 0


def clocks(device: str) -> dict:
    if not device.startswith("cuda"):
        return {}
    return _query(CLOCK_FIELDS, gpu_index(device))


def gpu(device: str) -> dict | None:
    if not device.startswith("cuda"):
        return None
    index = torch.device(device).index or 0
    properties = torch.cuda.get_device_properties(index)
    asked = _query("uuid,driver_version,power.limit,ecc.mode.current,mig.mode.current", index)
    return {
        "name": properties.name,
        "sm": f"{properties.major}{properties.minor}",
        "sms": properties.multi_processor_count,
        "mem_bytes": properties.total_memory,
        "l2_bytes": properties.L2_cache_size,
        **asked,
        "clocks": clocks(device),
    }


_CONTAINERS = {"docker": "/.dockerenv", "podman": "/run/.containerenv"}


def _version(module: str) -> str | None:
    import importlib.metadata

    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(module)
    return None


def environment(device: str) -> dict:
    import pestle

    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
    return {
        "gpu": gpu(device),
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": _version("triton"),
        "cutlass_dsl": _version("nvidia-cutlass-dsl"),
        "nvcc": nvcc(),
        "pestle": pestle.__version__,
        "os": platform.platform(),
        "host": socket.gethostname(),
        "container": next((n for n, file in _CONTAINERS.items() if Path(file).exists()), None),
    }


def _median_ns(device: str, call, repeats: int = 15) -> float:
    timer = Timer(torch.device(device))
    for _ in range(3):
        call()
    samples = sorted(timer.run([call] * repeats, "warm"))
    return samples[len(samples) // 2]


def _measure(device: str) -> dict:
    """A copy far larger than the caches; a square matrix product."""
    on_gpu = device.startswith("cuda")
    size = max(8 * last_level_cache(torch.device(device)), 1 << 28) if on_gpu else 1 << 28
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    copy_ns = _median_ns(device, lambda: target.copy_(source))
    n, dtype = (8192, torch.bfloat16) if on_gpu else (1024, torch.float32)
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    product_ns = _median_ns(device, lambda: torch.matmul(a, b), 9)
    return {
        "bytes_per_s": 2 * size / copy_ns * 1e9,
        "flops_per_s": 2 * n**3 / product_ns * 1e9,
        "by": f"a copy of {size} bytes, a product of {n}^3 in {str(dtype)[6:]}",
    }


def ceilings(device: str, again: bool = False) -> dict:
    """Measured once on a machine and kept; nominal figures beside them where they are published."""
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu"
    host = socket.gethostname()
    path = cache_folder() / "ceilings.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    key = f"{host}/{name}"
    if again or key not in known:
        start = perf_counter_ns()
        known[key] = _measure(device) | {"seconds": round((perf_counter_ns() - start) / 1e9, 2)}
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(known, indent=1))
        partial.replace(path)
    nominal = NOMINAL.get(name)
    return known[key] | {
        "nominal_bytes_per_s": nominal[0] if nominal else None,
        "nominal_flops_per_s": nominal[1] if nominal else None,
    }
