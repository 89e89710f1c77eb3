"""Many processes on one GPU, each with its first launches in another order: what a kernel must be
allowed before it starts (shared memory beyond 48 KiB) must not depend on which op came first."""

import subprocess
import sys

import pytest
import torch

PROCESSES = 16
OPS = ("linear_int8", "scaled_mm_int8", "linear_fp8", "scaled_mm_fp8", "matmul", "softmax")

# Runs every small case of the ops, shuffled by the process's number.
WORKER = """
import random, sys
sys.path[:0] = {paths!r}
import cases, torch
from pestle import _contract
number = int(sys.argv[1])
todo = [(name, case) for name, case in cases.all_cases() if name in {ops!r}]
assert todo
random.Random(number).shuffle(todo)
ran = 0
for name, text in todo:
    case = cases.make(_contract.op(name), text)
    if not cases.takes(case, "cuda"):
        continue
    form = case.form()
    tensors = {{n: t.to("cuda") for n, t in case.call.tensors.items()}}
    args, kwargs = case.arguments(form, **tensors)
    with torch.inference_mode():
        form.overload(*args, **kwargs)
    torch.cuda.synchronize()
    ran += 1
assert ran, "no case ran on the GPU"
print(number, ran)
"""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_first_launches_in_any_order():
    worker = WORKER.format(paths=sys.path, ops=OPS)
    running = [
        subprocess.Popen(
            [sys.executable, "-c", worker, str(number)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    said = [process.communicate(timeout=600)[0] for process in running]
    failed = [text for process, text in zip(running, said, strict=True) if process.returncode]
    assert not failed, "\n".join(text[-2000:] for text in failed)
