"""tools/gpu_evidence.py: what it reads from the results of its parts, and how old evidence is."""

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def evidence():
    spec = importlib.util.spec_from_file_location("evidence", ROOT / "tools/gpu_evidence.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_checks_are_summed_and_failures_named(evidence, tmp_path):
    counts = {"run": 5, "refused": 2, "skipped": 1, "failed": 0}
    good = {"op": "a", "tags": {"edge": counts, "smoke": counts}, "failures": []}
    bad = {"op": "b", "tags": {"edge": {**counts, "failed": 1}}, "failures": ["b M=3: off by 2"]}
    (tmp_path / "check.jsonl").write_text(json.dumps(good) + "\n")
    (tmp_path / "failed.jsonl").write_text(json.dumps(bad) + "\n")
    (tmp_path / "log.txt").write_text(
        "=== check.a.smoke: passed, 1 s\n=== check.b.x: FAILED (1), 1 s\n"
    )
    line = evidence.check_line(tmp_path, 1)
    assert (line["ops"], line["run"], line["failed"], line["skipped"]) == (2, 15, 1, 3)
    assert (
        line["complete"] and line["steps_failed"] == ["b.x"] and line["failures"] == bad["failures"]
    )
    assert not evidence.check_line(tmp_path, 75)["complete"]
    assert not evidence.check_line(tmp_path / "nothing", None)["complete"]


def test_a_wheels_run_that_was_stopped_is_not_complete(evidence, tmp_path):
    log = "torch 2.11\n\ntest_a.py: 1 failed, 2 passed (1 s)\nall: 1 failed, 2 passed\n"
    (tmp_path / "gpu-torch.log").write_text(log)
    (tmp_path / "gpu-torch.aoti.log").write_text(log.replace("1 failed, 2 passed", "7 passed"))
    (tmp_path / "gpu-torch.failures.txt").write_text("=== test_a.py::test_x[1] (call)\nE assert\n")
    line = evidence.wheel_line(tmp_path, 1)
    assert (line["passed"], line["failed"]) == (9, 1)
    assert line["complete"] and line["failures"] == ["test_a.py::test_x[1]"]
    (tmp_path / "gpu-torch.log").write_text("stopped before its end\n\n" + log)
    assert not evidence.wheel_line(tmp_path, 1)["complete"]


def test_host_costs_are_read_by_name(evidence, tmp_path):
    row = f"{'no_grad':16} {'pestle.swap_nibbles':42} {4.5:6.2f} us {1.1:5.2f} x torch.add\n"
    (tmp_path / "gpu-torch.host.txt").write_text(row + "import pestle beyond torch: 40 ms\n")
    assert evidence.host_line(tmp_path)["us"] == {"no_grad: pestle.swap_nibbles": 4.5}


def test_figures_are_counted_and_an_early_end_is_not_complete(evidence, tmp_path):
    file = tmp_path / "sweep.jsonl"
    assert not evidence.figures_line("sweep", file, 0)["complete"]
    file.write_text('{"sweep": "a"}\n{"sweep": "b"}\nnoise\n')
    assert evidence.figures_line("sweep", file, 0)["figures"] == 2
    assert not evidence.figures_line("sweep", file, None)["complete"]


def test_a_bench_that_time_ended_is_not_complete_and_says_what_it_left(evidence, tmp_path):
    file, log = tmp_path / "sweep.jsonl", tmp_path / evidence.LOG
    file.write_text('{"sweep": "a"}\n')
    told = "sweep: 9 points, 1 measured, 0 known, 2 no calls or too large, {} left\n"
    log.write_text(told.format(0))
    assert evidence.figures_line("sweep", file, 0)["complete"]
    log.write_text(told.format(6))
    line = evidence.figures_line("sweep", file, 0)
    assert not line["complete"] and line["left"] == 6
    # An absent peer is left out too, but not for want of time.
    log.write_text("flux: te: left out, not installed\nwan: bf16: left out, 40 s are over\n")
    (tmp_path / "step.json").write_text('{"rows": [{"shape": "a", "variant": "b", "step_ms": 1}]}')
    line = evidence.step_line(tmp_path / "step.json", 0)
    assert not line["complete"] and line["left"] == 1


def test_what_a_part_prints_is_kept_beside_its_figures(evidence, tmp_path, capfd):
    command = ["sh", "-c", "echo out; echo faulty >&2; exit 3"]
    status, _ = evidence.timed(command, tmp_path / "a", tmp_path, 9)
    assert status == 3 and (tmp_path / "a" / evidence.LOG).read_text() == "out\nfaulty\n"
    assert "faulty" in capfd.readouterr().out


def test_a_step_names_the_fastest_way_of_each_shape(evidence, tmp_path):
    file = tmp_path / "step.json"
    rows = [("flux", "bf16", 9.0), ("flux", "pestle int8", 5.0), ("wan", "bf16", 90.0)]
    rows = [{"shape": shape, "variant": way, "step_ms": ms} for shape, way, ms in rows]
    file.write_text(json.dumps({"rows": rows}))
    line = evidence.step_line(file, 0)
    assert line["best"] == {"flux": "pestle int8: 5.0 ms", "wan": "bf16: 90.0 ms"}
    assert line["complete"] and line["figures"] == 3
    assert not evidence.step_line(tmp_path / "none.json", 0)["complete"]


def test_the_crates_tests_are_summed(evidence, tmp_path):
    text = "=== cuda\ntest one ... ok\ntest two ... FAILED\n"
    text += "test result: FAILED. 5 passed; 1 failed; 0 ignored\n"
    text += "=== kaio\ntest result: ok. 7 passed; 0 failed; 0 ignored\n"
    (tmp_path / "gpu-rust.log").write_text(text)
    line = evidence.rust_line(tmp_path, 1)
    assert (line["passed"], line["failed"], line["failures"]) == (12, 1, ["two"])
    assert line["complete"] and not evidence.rust_line(tmp_path / "nothing", 0)["complete"]


def test_parts_share_the_minutes_and_what_failed_is_told(evidence, tmp_path, monkeypatch, capsys):
    given = {}

    def way(name, **more):
        def go(folder, seconds):
            given[name] = round(seconds / 60)
            return [{"part": name, "complete": True, **more}], 7

        return go

    (tmp_path / "build/gpu").mkdir(parents=True)
    (tmp_path / "build/gpu/commit.txt").write_text("abc123\n")
    monkeypatch.setattr(evidence, "ROOT", tmp_path)
    monkeypatch.setattr(evidence, "gpu", lambda: {"name": "H200"})
    monkeypatch.setenv("OUT", str(tmp_path))
    monkeypatch.setattr(evidence, "WAYS", {"check": (way("check"), 3), "step": (way("step"), 1)})
    assert evidence.run(8, ["check", "step"]) == 0
    assert given == {"check": 6, "step": 8}
    monkeypatch.setattr(evidence, "WAYS", {"step": (way("step", failed=1), 1)})
    assert evidence.run(None, ["step"]) == 1
    rows = [json.loads(line) for line in (tmp_path / "evidence.jsonl").read_text().splitlines()]
    assert [row["part"] for row in rows] == ["check", "step", "step"]
    assert rows[0]["machine"] == {"commit": "abc123"} and rows[0]["seconds"] == 7
    assert '"part": "step"' in capsys.readouterr().out


def test_a_part_that_does_not_exist_is_refused_with_the_names(evidence, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["gpu_evidence.py", "run", "5", "cheque"])
    assert evidence.main() == 2
    told = capsys.readouterr().err
    assert "no part cheque" in told and "sweep" in told


def test_the_age_counts_commits_of_device_code_alone(evidence, tmp_path, monkeypatch, capsys):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", tmp_path, *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    for name in ("a.cpp", "ops/a.cu", "ops/b.cuh", "README.md", "backends/cuda/host/x.cpp"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
        git("add", "-A")
        git("commit", "-qm", name)
    machine = {"commit": git("rev-parse", "HEAD~3")}
    row = {"machine": machine, "complete": True, "failed": 0, "gpu": {"name": "H200"}}
    rows = [{"part": part, **row} for part in ("check", "wheel")]
    (tmp_path / "evidence.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(evidence, "ROOT", tmp_path)
    monkeypatch.setattr(evidence, "RESULTS", tmp_path / "evidence.jsonl")
    evidence.age()
    told = capsys.readouterr().out.splitlines()
    assert "0 failed; 2 commits of device code since" in told[0]
    assert told[2] == "GPU evidence, host: none"
