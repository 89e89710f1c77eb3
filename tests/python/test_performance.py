"""Results that are not what their samples say are rejected; docs/performance.md is made of them."""

import copy
import importlib.util
import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("performance", ROOT / "tools/performance.py")
performance = importlib.util.module_from_spec(spec)
spec.loader.exec_module(performance)


def timing(samples):
    return {"samples_us": samples}


GPU = {"name": "GPU", "driver": "580", "cuda": 13000}
BENCH = {
    "op": "negate",
    "impl": "cuda/negate_fast",
    "case": "M=8",
    "us": 20.0,
    "bytes": 40000,
    "gb_per_s": 2.0,
    "percent_of_ceiling": 95.0,
    "timing": timing([21.0, 20.0, 19.0]),
    "copy_timing": timing([19.0, 18.0, 20.0]),
    "peers": {"eager": 30.0, "compile": 25.0},
    "results_agree": True,
    "machine": {"commit": "c0ffee", "cpu": "CPU"},
    "gpu": GPU,
}
CHECK = {
    "op": "negate",
    "ok": True,
    "tags": {"smoke": {"run": 5, "refused": 1, "skipped": 0, "failed": 0, "not_run": 2}},
    "not_run": {"needs a second device": 2},
    "failures": [],
    "skips": [],
    "machine": {"commit": "c0ffee"},
    "gpu": GPU,
}
MUTANTS = {
    "op": "negate",
    "mutants": {"no-op": "caught", "wrong scale column": "does not apply"},
    "machine": {"commit": "c0ffee"},
    "gpu": GPU,
}


class AnyCommit:
    unknown = None

    @staticmethod
    def fault(_commit):
        return None


def faults_of(line, ancestors=AnyCommit):
    return performance.line_faults(line, ancestors)


def changed(line, **values):
    return {**copy.deepcopy(line), **values}


def test_right_lines_pass():
    assert [faults_of(line) for line in (BENCH, CHECK, MUTANTS)] == [[], [], []]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (changed(BENCH, us=19.0), "median 20"),
        (changed(BENCH, gb_per_s=2.1), "gb_per_s"),
        (changed(BENCH, percent_of_ceiling=99.0), "percent_of_ceiling"),
        (changed(BENCH, results_agree=False), "other results"),
        (changed(BENCH, timing=timing([])), "no samples"),
        (changed(BENCH, timing=timing([0.0, 20.0, 21.0])), "no time"),
        (changed(CHECK, ok=False, failures=[{}]), "1 checks failed"),
        (changed(CHECK, skips=[{"where": "M=1", "reason": "too big"}]), "skipped M=1: too big"),
        (changed(CHECK, not_run={}), "no named want"),
        (changed(MUTANTS, mutants={"no-op": "SURVIVED"}), "mutant survived: no-op"),
    ],
)
def test_wrong_lines_are_said(line, words):
    assert any(words in fault for fault in faults_of(line)), faults_of(line)


def test_commits_are_ancestors(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "one")
    first = git("rev-parse", "--short=12", "HEAD")
    git("checkout", "-q", "-b", "side")
    git("commit", "-q", "--allow-empty", "-m", "aside")
    aside = git("rev-parse", "--short=12", "HEAD")
    git("checkout", "-q", "-")
    git("checkout", "-q", "--detach", first)
    git("commit", "-q", "--allow-empty", "-m", "two")
    ancestors = performance.Ancestors(tmp_path)
    assert ancestors.unknown is None
    assert ancestors.fault(first) is None
    assert "no ancestor" in ancestors.fault(aside)
    assert "no ancestor" in ancestors.fault("0123456789ab")
    for unclear in ("", "unknown", first + "-dirty"):
        assert "does not say" in ancestors.fault(unclear)
    clone = tmp_path / "clone"
    git("clone", "-q", "--depth", "1", tmp_path.as_uri(), str(clone))
    shallow = performance.Ancestors(clone)
    assert shallow.unknown == "this is a shallow clone"
    assert shallow.fault(aside) is None


def test_unreadable_lines_are_said(tmp_path):
    (tmp_path / "a.jsonl").write_text("{\n" + json.dumps(BENCH) + "\n[]\n")
    lines, faults = performance.read_results(tmp_path, AnyCommit)
    assert len(lines) == 1
    assert [fault.split(": ")[0] for fault in faults] == ["a.jsonl:1", "a.jsonl:3"]


def test_page_shows_the_last_line_of_each():
    page = performance.render([changed(BENCH, us=99.0), BENCH, CHECK, MUTANTS])
    assert "## GPU, driver 580" in page
    assert "| negate_fast | 20 | 2 | 95 % | 1.25 x compile |" in page
    assert "99" not in page
    assert "| `negate` | 5 | 1 | 2 | 1 |" in page
    assert "Not run: needs a second device." in page


def test_committed_page_is_what_the_results_give():
    ancestors = performance.Ancestors()
    lines, faults = performance.read_results(ROOT / performance.RESULTS, ancestors)
    assert faults == []
    assert (ROOT / performance.PAGE).read_text() == performance.render(lines)
