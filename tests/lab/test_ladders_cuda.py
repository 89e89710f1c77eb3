"""The ladders' rungs on a GPU: right, and launched under their own names. Where there is no GPU,
conftest.py leaves this file out."""

import json
import os
import subprocess
import sys

import pytest
from pestle_lab import checking, kernels, problems
from pestle_lab.engine import building, cases
from pestle_lab.engine.session import Session

FOUND = kernels.find([kernels.BUILT_IN])
RUNGS = {n: k for n, k in FOUND.items() if k.language in ("cuda", "cute", "triton")}
SUITES = ("smoke", "correctness", "adversarial")


@pytest.mark.parametrize("name", RUNGS)
def test_a_rung_is_right(name):
    problem = problems.get(RUNGS[name].problem, [])
    texts = list(dict.fromkeys(text for suite in SUITES for text in problem.cases(suite)))
    done = checking.check(
        RUNGS[name], problem, texts, device="cuda", seed=None, timeout=45, problem_folders=[]
    )
    bad = [f"{v.id}: {v.status}: {v.message}" for v in done.cases
           if v.status not in ("ok", "unsupported")]  # fmt: skip
    assert not bad and "ok" in done.statuses, "\n".join(bad)


def test_the_gemv_launches_its_own_kernel():
    """The last rungs of forge's ops are below. No time is asked for: others of these tests are on
    the GPU meanwhile."""
    kernel, problem = RUNGS["nvfp4_gemv/cute"], problems.get("nvfp4_gemv", [])
    case = cases.make(problem, "M=128 K=256 L=1")
    with Session(kernel, problem, building.build(kernel, "cuda"), "cuda", 45, []) as session:
        session.open(case)
        session.place(0, case.inputs(1))
        session.ask("call", set=0, how="plain")
        launched = session.ask("launched")["names"]
    assert any("gemv_nvfp4_rows" in one for one in launched), launched


# What PyTorch's profiler sees, once for all of them: to begin takes it seconds.
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


OF_FORGE = (
    "transpose_vectors",
    "row_sums_vectors",
    "softmax_in_registers",
    "softmax_gradient_in_registers",
)


def test_forge_s_names_launch_the_rungs():
    done = subprocess.run(
        [sys.executable, "-c", FORGE], capture_output=True, text=True,
        env=os.environ | {"FORGE_KERNELS": "cute"}, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    launched = json.loads(done.stdout.splitlines()[-1])
    for name in OF_FORGE:
        assert any(name in kernel for kernel in launched), (name, launched)


def test_the_seeded_cute_template_is_right(tmp_path):
    """On another stream, too: it launches on the current one."""
    folder = tmp_path / "gemv"
    for command in (
        ["-m", "pestle_lab", "seed", "gemv", str(folder)],
        ["-m", "kernel_utils.smoke_test", "cute", "--no-timing"],
    ):
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, timeout=100,
            cwd=folder if folder.exists() else tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, (done.stdout, done.stderr)
