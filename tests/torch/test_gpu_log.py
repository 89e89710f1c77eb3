"""tools/gpu_torch_log.py, the log of the tests on a GPU machine: what it says, also of a run that
is killed, and which GPU a worker has."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pestle

TOOLS = Path(__file__).parents[2] / "tools"
TESTS = """
import time, pytest
def test_passes(): pass
def test_fails(): assert 1 == 2, "as it should"
@pytest.mark.skip(reason="no reason")
def test_is_skipped(): pass
"""
WAITS = """
import gpu_torch_log, time
def test_passes(): gpu_torch_log.SECONDS_BETWEEN_LOGS = 0
def test_waits(): time.sleep(600)
"""


def start(folder: Path, tests: str, **more) -> subprocess.Popen:
    (folder / "test_it.py").write_text(tests)
    environment = os.environ | more | {
        "PESTLE_TORCH_LOG": str(folder / "gpu-torch.log"),
        "PYTHONPATH": os.pathsep.join([str(TOOLS), str(Path(pestle.__file__).parents[1])]),
    }  # fmt: skip
    environment.pop("PYTEST_XDIST_WORKER", None)
    plugins = ["-p", "gpu_torch_log", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-q", *plugins, "test_it.py"]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE)


def test_counts_versions_and_failures(tmp_path):
    assert start(tmp_path, TESTS, PESTLE_COMMIT="1234567").wait() == 1
    log = (tmp_path / "gpu-torch.log").read_text()
    assert "test_it.py: 1 failed, 1 passed, 1 skipped" in log
    assert "all: 1 failed, 1 passed, 1 skipped" in log
    assert "skipped 1 x test_it.py: no reason" in log
    assert f"pestle {pestle.__version__}, commit 1234567" in log and "backend cpu: " in log
    failures = (tmp_path / "gpu-torch.failures.txt").read_text()
    assert "test_fails (call)" in failures and "as it should" in failures


def test_a_run_that_is_killed_has_told_what_ran(tmp_path):
    run = start(tmp_path, WAITS)
    log = tmp_path / "gpu-torch.log"
    deadline = time.monotonic() + 120
    while not (log.exists() and "1 passed" in log.read_text()) and time.monotonic() < deadline:
        time.sleep(0.1)
    run.kill()
    run.wait()
    assert log.read_text().startswith("stopped before its end")


def test_workers_take_turns_at_the_gpus():
    code = "import gpu_torch_log, os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    for worker, visible in (("", "0,1"), ("gw0", "0,1"), ("gw3", "1,0")):
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": "0,1", "PYTEST_XDIST_WORKER": worker}
        made = subprocess.run(
            [sys.executable, "-c", code], env=environment | {"PYTHONPATH": str(TOOLS)},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert made.stdout.strip() == visible
