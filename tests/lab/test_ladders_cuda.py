"""The ladders' rungs on a GPU: right, and launched under their own names. Where there is no GPU,
conftest.py leaves this file out."""

import json
import os
import subprocess
import sys

import pytest
from pestle_lab import benching, checking, kernels, problems

FOUND = kernels.find([kernels.BUILT_IN])
RUNGS = {n: k for n, k in FOUND.items() if k.language in ("cuda", "cute", "triton")}
SUITES = ("smoke", "correctness", "adversarial")


@pytest.mark.parametrize("name", RUNGS)
def test_a_rung_is_right(name):
    problem = problems.get(RUNGS[name].problem, [])
    texts = list(dict.fromkeys(text for suite in SUITES for text in problem.cases(suite)))
    done = checking.check(
        RUNGS[name], problem, texts, device="cuda", seed=None, timeout=300, problem_folders=[]
    )
    bad = [(v.id, v.status, v.message) for v in done.cases if v.status not in ("ok", "unsupported")]
    assert not bad and "ok" in done.statuses


LAUNCHED = {
    "copy_transpose/cute_vectors": ("transpose_vectors", "B= M=64 N=256"),
    "reduce/cute_vectors": ("row_sums_vectors", "M=64x256 dims=2"),
    "softmax/cute_registers": ("softmax_in_registers", "S=3x64"),
    "softmax_backward/cute_registers": ("softmax_gradient_in_registers", "S=3x64"),
    "nvfp4_gemv/cute": ("gemv_nvfp4_rows", "M=128 K=256 L=1"),
}


@pytest.mark.parametrize("name", LAUNCHED)
def test_a_rung_launches_its_own_kernel(name):
    wanted, case = LAUNCHED[name]
    settings = benching.Settings(device="cuda", seconds=0.2)
    problem = problems.get(RUNGS[name].problem, [])
    timed = benching.bench(RUNGS[name], problem, [case], settings).cases[0]
    assert timed.verdict.status == "ok", timed.verdict.message
    assert any(wanted in launched for launched in timed.launched), timed.launched


FORGE = """
import json, pestle.compat, torch
pestle.compat.install_forge()
from forge_cute_py import ops
x = torch.randn(64, 256, device="cuda", requires_grad=True)
ops.set_softmax_online_backend("kernel")
def work():
    ops.copy_transpose(x, 16), ops.copy_transpose(x, 32), ops.reduce(x), ops.reduce_sum(x)
    ops.softmax_online(x).sum().backward()
work()
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
    work()
    torch.cuda.synchronize()
print(json.dumps([event.key for event in profile.key_averages()]))
"""


def test_forge_s_names_launch_the_rungs():
    done = subprocess.run(
        [sys.executable, "-c", FORGE], capture_output=True, text=True,
        env=os.environ | {"FORGE_KERNELS": "cute"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    launched = json.loads(done.stdout.splitlines()[-1])
    for name in {name for name, _ in LAUNCHED.values()} - {"gemv_nvfp4_rows"}:
        assert any(name in kernel for kernel in launched), (name, launched)


def test_the_seeded_cute_template_is_right(tmp_path):
    """On another stream, too: it launches on the current one."""
    folder = tmp_path / "gemv"
    for command in (
        ["-m", "pestle_lab", "seed", "gemv", str(folder)],
        ["-m", "kernel_utils.smoke_test", "cute", "--no-timing"],
    ):
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, timeout=600,
            cwd=folder if folder.exists() else tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, (done.stdout, done.stderr)
