"""pestle-lab seed gemv, its guide, and the commands of its harness, in processes of their own."""

import json
import os
import re
import subprocess
import sys

import pytest
from pestle_lab import seeding

SMOKE = ["-m", "kernel_utils.smoke_test", "--seconds", "0.05"]


def python(folder, *arguments, code=0):
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=900,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.fixture
def project(tmp_path):
    seeding.write("gemv", tmp_path / "gemv")
    return tmp_path / "gemv"


def test_the_guide(project):
    """Every block of the README: files are written, commands run."""
    text = (project / "README.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        name = re.match(r"# (nvfp4_\w+\.py)\n", block)[1]
        (project / name).write_text(block)
    commands = "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).splitlines()
    assert len(commands) == 2
    shown = ""
    for command in commands:
        program, *arguments = command.split()
        assert program == "python"
        shown += python(project, *arguments).stdout
    for name in ("reference", "triton", "cute", "custom_v1", "custom_v2"):
        assert f"\n{name} " in f"\n{shown}"
    made = json.loads((project / "results/smoke_test_results.json").read_text())
    (backend,) = made["backends"]
    assert backend["backend_name"] == "custom_v1" and backend["all_correct"] is True
    assert [t["test_name"] for t in backend["correctness_tests"]] == ["tiny_single", "small_batch"]
    for timed in backend["performance_tests"]:
        assert timed["successfully_ran"] and timed["speedup"] > 0


WRONG = """
from kernel_utils.backends import BACKENDS
from nvfp4_reference_kernel import ref_kernel


def untouched(data):
    return data[-1]


def flipped(data):
    c = ref_kernel(data)
    return c.neg_()


BACKENDS.register("untouched", untouched, "", "other")
BACKENDS.register("flipped", flipped, "", "other")
"""


def test_wrong_kernels_are_found(project):
    (project / "nvfp4_wrong.py").write_text(WRONG)
    done = python(project, *SMOKE, "untouched", "flipped", "--save", code=1)
    assert done.stdout.count("Correctness: FAIL") == 4 and "PASS" not in done.stdout
    made = json.loads((project / "results/smoke_test_results.json").read_text())
    assert {b["correctness_score"] for b in made["backends"]} == {0.0}
    assert made["backends"][0]["performance_tests"] == []


def test_what_is_missing_is_said(project):
    assert "UNSUPPORTED" in python(project, *SMOKE, "cute", "--device", "cpu", code=9).stdout
    done = python(project, *SMOKE, "nope", code=2)
    assert "there are reference, cute, triton" in done.stderr
    (project / "nvfp4_broken.py").write_text("import a_module_that_is_not_there\n")
    done = python(project, *SMOKE, "--list", code=1)
    assert "nvfp4_broken.py was left out" in done.stderr and "triton" in done.stdout


def test_triton_is_right_and_not_timed_by_the_interpreter(project):
    done = python(project, *SMOKE, "--new", "triton", "--device", "cpu", "--profile")
    assert done.stdout.count("Correctness: PASS") == 4
    assert "not timed" in done.stdout and "an interpreter" in done.stdout
    assert len(list((project / "profiles").glob("reference_*_profile.json"))) == 2


UNPROFILED = """
import sys
from kernel_utils.backends import BACKENDS
from nvfp4_reference_kernel import ref_kernel


def shy(data):
    assert "one_call" not in sys.argv[0], "not under a profiler"
    return ref_kernel(data)


BACKENDS.register("shy", shy)
"""


def test_a_profile_that_fails_costs_nothing_else(project):
    (project / "nvfp4_shy.py").write_text(UNPROFILED)
    arguments = ["shy", "reference", "--reference", "shy", "--no-timing", "--save", "--profile"]
    done = python(project, *SMOKE, *arguments, code=1)
    assert done.stdout.count("profile: none of") == 2 and "not under a profiler" in done.stdout
    made = json.loads((project / "results/smoke_test_results.json").read_text())
    assert [b["all_correct"] for b in made["backends"]] == [True, True]
    assert len(list((project / "profiles").iterdir())) == 2


SUBMISSION = """
from task import input_t, output_t
import torch

TABLE = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6])


def decode(codes, scales):
    codes = codes.view(torch.uint8).permute(2, 0, 1).int()
    values = torch.stack((TABLE[codes & 15], TABLE[codes >> 4]), -1).flatten(-2)
    return values * scales.permute(2, 0, 1).float().repeat_interleave(16, -1)


def custom_kernel(data: input_t) -> output_t:
    a, b, sfa, sfb, _, _, c = data
    c.copy_((decode(a, sfa).double() @ decode(b[:1], sfb[:1]).double().mT).permute(1, 2, 0))
    return c
"""


def test_a_submission_runs_as_it_is(project):
    """Under either name, and by its `#!POPCORN` line; another problem's is left alone."""
    (project / "submission.py").write_text(SUBMISSION)
    (project / "nvfp4_best.py").write_text(SUBMISSION)
    (project / "mine.py").write_text(f"#!POPCORN leaderboard nvfp4_gemv\n{SUBMISSION}")
    (project / "trimul.py").write_text(f"#!POPCORN leaderboard trimul\n{SUBMISSION}")
    done = python(project, *SMOKE, "submission", "best", "mine", "--no-timing")
    assert done.stdout.count("Correctness: PASS") == 6
    assert "trimul" not in python(project, *SMOKE, "--list").stdout
    # Without the harness, and without a line that says which problem it is for.
    done = python(project, "-m", "pestle_lab", "check", "submission.py")
    assert "nvfp4_gemv/submission" in done.stderr


INSTALLED = """
import pestle.compat, torch
first = pestle.compat.install_gemv_harness()
assert pestle.compat.install_gemv_harness() is first
from kernel_utils.backends import BACKENDS
from kernel_utils.results import TestSuiteResults, BackendResults, CorrectnessResult
from kernel_utils.task import SMOKE_TESTS, TestCase
import nvfp4_reference_kernel as own
data = TestCase(128, 192, 2, 7, "mine").generate("cpu")
a, b, sfa, sfb, sfap, sfbp, c = data
assert [tuple(t.shape) for t in data] == [(128, 96, 2), (128, 96, 2), (128, 12, 2), (128, 12, 2),
    (32, 4, 1, 4, 3, 2), (32, 4, 1, 4, 3, 2), (128, 1, 2)], [t.shape for t in data]
assert a.dtype == torch.float4_e2m1fn_x2 and sfa.dtype == torch.float8_e4m3fn
assert a.stride() == (96, 1, 128 * 96) and c.isnan().all()
i, j, z = 77, 9, 1
assert sfap[i % 32, i % 128 // 32, i // 128, j % 4, j // 4, z].float() == sfa[i, j, z].float()
assert own.ref_kernel(data) is c and c.isfinite().all()
for wrong in (lambda: TestCase(100, 64, 1, 0, "m"), lambda: TestCase(128, 65, 1, 0, "k"),
              lambda: BACKENDS.register("reference", print), lambda: BACKENDS.register("", print),
              lambda: BACKENDS.register("new", print, "", "basic")):
    try: wrong()
    except ValueError: continue
    raise SystemExit("a mistake was taken")
made = TestSuiteResults("s", [BackendResults("b", [CorrectnessResult("t", "b", True, "m=1")])])
assert TestSuiteResults.from_json(made.to_json()) == made
from kernel_utils import smoke_test
raise SystemExit(smoke_test.main(["mine", "--no-timing"]))
"""


def test_install_gemv_harness(tmp_path):
    (tmp_path / "nvfp4_mine.py").write_text(
        "from kernel_utils.backends import BACKENDS\nimport nvfp4_reference_kernel as r\n"
        "BACKENDS.register('mine', r.ref_kernel)\n"
    )
    done = python(tmp_path, "-c", INSTALLED)
    assert "Performance" not in done.stdout
    assert done.stdout.count("Correctness: PASS") == 2
