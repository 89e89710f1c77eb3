"""What long builds and make test show: progress, and a closing table with each subject's budget."""

import io
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import ninja_progress  # noqa: E402


def table(logs):
    result = subprocess.run(
        [sys.executable, ROOT / "tools/test_budgets.py", logs],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {line.split("  ")[0]: line for line in result.stdout.splitlines()}, result.stdout


def junit(*cases):
    rows = "".join(f'<testcase classname="{c}" name="{n}" time="{s}"/>' for c, n, s in cases)
    return f"<testsuites><testsuite>{rows}</testsuite></testsuites>"


@pytest.fixture
def logs(tmp_path):
    stages = [("ctest", "ok", 100), ("wheel", "FAILED", 900), ("rust", "ok", 500)]
    lines = "".join(f"{n}\t{v}\t{s}\n" for n, v, s in stages)
    (tmp_path / "stages.tsv").write_text(lines)
    for name in ("ctest", "wheel", "rust"):
        (tmp_path / name).mkdir()
    return tmp_path


def test_a_stage_has_its_verdict_and_seconds(logs):
    _, text = table(logs)
    assert "ctest        ok      100 s\n" in text
    assert "wheel        FAILED  900 s\n" in text


def test_tests_of_a_subject_are_summed_over_stages_and_programs(logs):
    harness = ("Ops/CheckAll", "KeepsItsContract/attention", 60)
    (logs / "ctest" / "harness.xml").write_text(junit(harness, ("Data", "Zeros", 500)))
    torch = ("tests.torch.test_attention", "test_mask[a]", 120)
    (logs / "wheel" / "pytest.xml").write_text(junit(torch))
    lines, _ = table(logs)
    assert lines["attention"].split()[1:] == ["3.0", "of", "6", "min"]


def test_a_stage_of_a_subject_counts_whole_and_once(logs):
    (logs / "rust" / "tests.xml").write_text(junit(("rust", "test", 300)))
    lines, _ = table(logs)
    assert lines["Rust"].endswith("8.3 of 6 min  OVER BUDGET")


def test_a_torn_file_is_said_and_hides_no_other(logs):
    (logs / "ctest" / "a.xml").write_text("<testsuites>")
    (logs / "ctest" / "b.xml").write_text(junit(("Gemm", "matmul", 60)))
    lines, text = table(logs)
    assert "a.xml: not read" in text
    assert " 1.0 of 6 min" in lines["GEMM"]


def test_progress_is_said_twice_a_minute_and_at_the_end():
    times = iter(range(0, 1000, 10))
    lines = ["configure\n"] + [f"  [{n}/9] Building {n}.o\n" for n in range(1, 10)]
    log, said = io.StringIO(), []
    ninja_progress.progress(lines, log, said.append, clock=lambda: next(times))
    assert log.getvalue() == "".join(lines)
    assert 2 <= len(said) <= 5
    assert said[-1].startswith("9 of 9 steps, ")
