"""usage: one_call.py BACKEND SOURCE TEST [--trace FILE]: a kernel called once after a first call,
so that a profiler sees one call alone; --trace writes PyTorch's profile of it. A file to be run."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from kernel_utils.discovery import function_of
from kernel_utils.task import SUITES


def main() -> None:
    name, source, wanted, *more = sys.argv[1:]
    test = next(test for test in SUITES["all"] if test.name == wanted)
    function, data = function_of(name, source), test.generate()
    on_gpu = torch.cuda.is_available()
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    function(data)
    wait()
    if more[:1] == ["--trace"]:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if on_gpu:
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        with torch.profiler.profile(activities=activities) as profile:
            function(data)
            wait()
        profile.export_chrome_trace(more[1])
        return
    if on_gpu:
        torch.cuda.nvtx.range_push("kernel")
    function(data)
    wait()
    if on_gpu:
        torch.cuda.nvtx.range_pop()


if __name__ == "__main__":
    main()
