"""python -m pestle_lab.profiling.child JOB: calls a kernel, and nothing else that a profiler would
count as it: each call lies in the NVTX range `kernel` and between cudaProfilerStart and -Stop. It
knows no right answer; what it wrote is judged by its parent."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

import torch

from ..worker import Worker


@contextlib.contextmanager
def _marked(on_gpu: bool):
    if not on_gpu:
        yield
        return
    runtime = torch.cuda.cudart()
    torch.cuda.synchronize()
    runtime.cudaProfilerStart()
    torch.cuda.nvtx.range_push("kernel")
    try:
        yield
    finally:
        torch.cuda.synchronize()
        torch.cuda.nvtx.range_pop()
        runtime.cudaProfilerStop()


@contextlib.contextmanager
def _traced(path: str, on_gpu: bool):
    activities = [torch.profiler.ProfilerActivity.CPU]
    if on_gpu:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities, record_shapes=True) as profile:
        yield
    profile.export_chrome_trace(path)
    rows = [
        {
            "name": event.key,
            "calls": event.count,
            "host_us": event.self_cpu_time_total,
            "device_us": event.self_device_time_total,
        }
        for event in profile.key_averages()
    ]
    rows.sort(key=lambda row: (row["device_us"], row["host_us"]), reverse=True)
    Path(path).with_suffix(".rows").write_text(json.dumps(rows))


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    worker, on_gpu = Worker(job), job["device"].startswith("cuda")
    for step in job["steps"]:
        worker.load({"case": step["case"]})
        worker.place({"set": 0, "inputs": step["inputs"], "keep_addresses": False})
        if job["warm"]:  # what is compiled at the first call is no part of the profile
            worker.call({"set": 0, "how": "plain"})
            worker.poison({"set": 0})
        with (
            _marked(on_gpu),
            _traced(job["trace"], on_gpu) if job["trace"] else contextlib.nullcontext(),
        ):
            worker.call({"set": 0, "how": "plain"})
        worker.fetch({"set": 0, "files": step["files"]})
        Path(step["done"]).touch()


if __name__ == "__main__":
    main()
