"""bench/lab_bars.py runs the tests of cheats, tells each as it ends, and names what was not run."""

import importlib.util
import json
import time
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "bench/lab_bars.py"
TESTS = """
import time
def test_good(): pass
def test_bad(): assert 1 == 2
def test_hangs(): time.sleep(600)
def test_after(): pass
"""


@pytest.fixture(scope="module")
def bars():
    spec = importlib.util.spec_from_file_location("lab_bars", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("workers", [1, 2])
def test_stopped_tests_tell_what_became_of_each(bars, tmp_path, capfd, workers):
    (tmp_path / "test_some.py").write_text(TESTS)
    tests = bars.Tests(str(tmp_path / "test_some.py"), workers=workers)
    done = {"test_good": "passed", "test_bad": "failed"}
    until = time.monotonic() + 60
    while len(tests.became) < len(done) and time.monotonic() < until:
        time.sleep(0.1)
    assert not tests.wait(0) and not tests.passed()
    bars.stop([tests])
    assert {name.partition("::")[2]: how for name, how in tests.became.items()} == done
    told = tests.json()
    assert [name.partition("::")[2] for name in told["not run"]] == ["test_hangs", "test_after"]
    assert (told["passed"], told["failed"]) == (1, 1) and told["pytest"] not in (None, 0)
    said = [json.loads(line) for line in capfd.readouterr().err.splitlines() if line[:1] == "{"]
    assert "assert 1 == 2" in next(line["why"] for line in said if line["outcome"] == "failed")


def test_tests_that_all_pass(bars, tmp_path):
    (tmp_path / "test_some.py").write_text("def test_good(): pass\n")
    tests = bars.Tests(str(tmp_path / "test_some.py"))
    assert tests.wait(60) and tests.passed() and "not run" not in tests.json()
    bars.stop([tests])
