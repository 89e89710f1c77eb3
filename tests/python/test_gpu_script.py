"""tools/gpu.sh run: steps once each, resumed, sharded, failing when one fails. On the CPU here."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PESTLE = Path(os.environ.get("PESTLE_BIN", ROOT / "build/bin/pestle"))


@pytest.fixture
def tree(tmp_path):
    """A tree of its own, so that no earlier run's results are there."""
    (tmp_path / "tools").mkdir()
    for name in ("gpu.sh", "gpu_run.py"):
        shutil.copy(ROOT / "tools" / name, tmp_path / "tools" / name)
    return tmp_path


def run(tree, *arguments, pestle=PESTLE):
    out = tree / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    environment = {**os.environ, "OUT": str(out), "PESTLE_BIN": str(pestle)}
    smoke = ["--device", "cpu", "--tags-check", "smoke", "--tags-bench", "smoke"]
    result = subprocess.run(
        [tree / "tools/gpu.sh", "run", *arguments, *smoke],
        env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return result, out


def test_steps_run_once_and_their_lines_come_back(tree):
    result, out = run(tree, "swap_nibbles", "hadamard", "--only", "check")
    assert result.returncode == 0, result.stdout + result.stderr
    lines = [json.loads(line) for line in (out / "check.jsonl").read_text().splitlines()]
    assert sorted(line["op"] for line in lines) == ["hadamard", "swap_nibbles"]
    assert all(line["ok"] and line["tags"]["smoke"]["run"] > 0 for line in lines)
    again, out = run(tree, "swap_nibbles", "hadamard", "--only", "check")
    assert "0 passed, 0 failed, 2 done before" in again.stdout
    assert len((out / "check.jsonl").read_text().splitlines()) == 2


def test_shards_split_the_ops(tree):
    first, _ = run(tree, "swap_nibbles", "hadamard", "--only", "check", "--shard", "1/2")
    assert "1 passed" in first.stdout
    assert "hadamard" not in first.stdout
    second, out = run(tree, "swap_nibbles", "hadamard", "--only", "check", "--shard", "2/2")
    assert "1 passed" in second.stdout
    assert len((out / "check.jsonl").read_text().splitlines()) == 2


def test_a_bench_step_may_have_several_ops(tree):
    result, out = run(tree, "swap_nibbles", "hadamard", "--only", "bench", "--batch", "2",
                      "--seconds", "0.01")  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert "=== bench.swap_nibbles+1.smoke: passed" in result.stdout
    lines = [json.loads(line) for line in (out / "bench.jsonl").read_text().splitlines()]
    assert {line["op"] for line in lines} == {"swap_nibbles", "hadamard"}


def test_a_run_without_time_says_what_is_left(tree):
    result, _ = run(tree, "swap_nibbles", "--only", "check", "--minutes", "0")
    assert result.returncode == 75
    assert "1 still to do" in result.stdout


def test_a_failing_step_fails_the_run_and_is_tried_again(tree):
    broken = tree / "pestle"
    broken.write_text(f'#!/bin/sh\n{PESTLE} "$@"\n[ "$1" != check ]\n')
    broken.chmod(0o755)
    result, out = run(tree, "swap_nibbles", "--only", "check", pestle=broken)
    assert result.returncode == 1
    assert (out / "failed.jsonl").exists()
    assert not (out / "check.jsonl").exists()
    assert "FAILED: check.swap_nibbles.smoke" in result.stdout
    again, _ = run(tree, "swap_nibbles", "--only", "check", pestle=broken)
    assert "1 failed, 0 done before" in again.stdout


def test_sanitizer_runs_say_what_they_found(tree, monkeypatch):
    """With a stand-in for compute-sanitizer that finds something in one op."""
    fake = tree / "compute-sanitizer"
    fake.write_text(
        '#!/bin/sh\nwhile [ "${1#*/pestle}" = "$1" ]; do shift; done\n"$@"\n'
        'case "$*" in *swap*) n=1 ;; *) n=0 ;; esac\n'
        'echo "========= ERROR SUMMARY: $n errors"\n[ $n = 0 ]\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tree}:{os.environ['PATH']}")
    tools = "synccheck,memcheck"
    result, out = run(tree, "swap_nibbles", "hadamard", "--sanitizer", "--tools", tools)
    assert result.returncode == 1
    assert "2 passed, 2 failed" in result.stdout
    good = [json.loads(line) for line in (out / "sanitizer.jsonl").read_text().splitlines()]
    bad = [json.loads(line) for line in (out / "failed.jsonl").read_text().splitlines()]
    assert {(line["op"], line["findings"]) for line in good} == {("hadamard", 0)}
    assert {(line["op"], line["findings"]) for line in bad} == {("swap_nibbles", 1)}
    assert all(line["tags"]["smoke"]["run"] > 0 for line in good)


def test_a_sanitizer_that_says_nothing_is_a_failure(tree, monkeypatch):
    fake = tree / "compute-sanitizer"
    fake.write_text("#!/bin/sh\nexit 0\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tree}:{os.environ['PATH']}")
    result, _ = run(tree, "hadamard", "--sanitizer")
    assert result.returncode == 1


def test_the_cost_of_a_build_is_ninjas_last_word(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libpestle.so").write_bytes(bytes(3 << 20))
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops/a.cu.o").write_bytes(bytes(1 << 20))
    (tmp_path / "CMakeCache.txt").write_text("CMAKE_CUDA_ARCHITECTURES:STRING=80-real\n")
    rows = ["# ninja log v6", "0\t900000\t1\tops/a.cu.o\tx", "0\t60000\t2\tops/a.cu.o\tx",
            "0\t30000\t2\tops/b.cpp.o\tx", "0\t5000\t2\tops/gone.cu.o\tx"]  # fmt: skip
    (tmp_path / ".ninja_log").write_text("\n".join(rows) + "\n")
    out = tmp_path / "build.jsonl"
    command = [sys.executable, ROOT / "tools/build_cost.py", tmp_path, "--out", out]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
    assert "1 CUDA files for 80-real: 1.0 minutes, 1.0 MiB" in result.stdout
    assert json.loads(out.read_text())["library_bytes"] == 3 << 20
    small = subprocess.run([*command, "--most-mib", "2"], capture_output=True, text=True)
    assert small.returncode == 1


def test_refusals_of_one_reason_are_one_line():
    from tools import gpu_run

    refusals = [{"op": "a", "impl": "fast", "where": f"M={m}", "reason": "odd"} for m in (1, 3)]
    refusals.append({"op": "a", "impl": "fast", "where": "M=5", "reason": "strided"})
    text = json.dumps({"op": "a", "refusals": refusals}) + "\n" + json.dumps({"op": "b"}) + "\n"
    first, second = map(json.loads, gpu_run.brief(text).splitlines())
    assert [(r["where"], r["reason"], r["times"]) for r in first["refusals"]] == [
        ("M=1", "odd", 2),
        ("M=5", "strided", 1),
    ]
    assert second == {"op": "b"}


def test_a_sanitizers_findings_are_shown_once_each():
    from tools import gpu_run

    said = ["= first", *(["= Race between a and b", "= at c"] * 100), "= SUMMARY: 200"]
    shown = gpu_run.ending("\n".join(said), "racecheck")
    assert shown == ["= first", "= Race between a and b", "= at c", "= SUMMARY: 200"]
    assert gpu_run.ending("\n".join(said), None) == said[-40:]


def test_jobs_at_once_share_the_cores_evenly():
    from tools import gpu_run

    shares = gpu_run.shares(list(range(64)), 16)
    assert [len(set(share)) for share in shares] == [8] * 16
    assert all(sum(core in share for share in shares) == 2 for core in range(64))
    assert all(len(set(share)) == 2 for share in gpu_run.shares([0, 1], 5))
    assert gpu_run.shares([3, 4], 1) == [None]


def test_a_gpu_takes_the_next_bench_when_it_is_done(tmp_path, monkeypatch):
    from types import SimpleNamespace

    from tools import gpu_run

    monkeypatch.setattr(gpu_run, "ROOT", tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    program = tmp_path / "pestle"
    program.write_text("")
    run = gpu_run.Run(SimpleNamespace(minutes=1, done=None), program)
    slow = threading.Event()
    ran = []

    def step(step, gpu):
        if step.name == "bench.long":
            slow.wait(30)
        ran.append((step.name, gpu))
        if len(ran) == 3:  # all the others: the GPU that is not busy had them
            slow.set()

    monkeypatch.setattr(run, "step", step)
    weights = {"short": 1, "long": 9, "middle": 4, "other": 2}
    run.alone([gpu_run.Step("bench", name, [], weight) for name, weight in weights.items()])
    assert [name for name, _ in ran] == ["bench.middle", "bench.other", "bench.short", "bench.long"]
    assert len({gpu for _, gpu in ran[:3]}) == 1


def test_ops_without_such_cases_are_not_checked():
    from types import SimpleNamespace

    from tools import gpu_run

    options = SimpleNamespace(tags_check="huge", device="cpu", host_gib=0, repeats=20)
    ops = ["swap_nibbles", "repack_zeros", "adaln_backward"]  # contract, none, file
    steps = gpu_run.check_steps(PESTLE, ops, options, lambda part: part == "check")
    assert [step.name for step in steps] == ["check.swap_nibbles.huge", "check.adaln_backward.huge"]
