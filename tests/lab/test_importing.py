"""Results of nvbench, gpu-mode and flashinfer-bench, as `pestle-lab report` reads them."""

import csv
import json

import pytest
from schema import published
from test_commands import lab

NVBENCH = {
    "devices": [{"id": 0, "name": "NVIDIA H200"}],
    "benchmarks": [{
        "name": "copy",
        "states": [
            {"name": "Device=0 N=2^20", "device": 0, "is_skipped": False,
             "axis_values": [{"name": "N", "type": "int64", "value": "1048576"}],
             "summaries": [
                 {"tag": "nv/cold/sample_size", "data": [{"name": "value", "value": "4096"}]},
                 {"tag": "nv/cold/time/gpu/mean", "data": [{"name": "value", "value": "1.25e-05"}]},
                 {"tag": "nv/cold/bw/global/bytes_per_second",
                  "data": [{"name": "value", "value": "6.7e11"}]},
                 {"tag": "nv/batch/time/gpu/mean", "data": [{"name": "value", "value": "9e-06"}]},
             ]},
            {"name": "Device=0 N=3", "device": 0, "is_skipped": True, "skip_reason": "too small",
             "axis_values": [{"name": "N", "type": "int64", "value": "3"}], "summaries": []},
        ],
    }],
}  # fmt: skip
GPU_MODE = {
    "success": True, "system": {"gpu": "NVIDIA B200"},
    "runs": {"leaderboard": {"run": {"passed": True, "result": {
        "benchmark-count": "2", "benchmark.0.spec": "k: 16384; l: 1; m: 7168",
        "benchmark.0.runs": "100", "benchmark.0.mean": "18500.0", "benchmark.0.best": "18100.0",
        "benchmark.1.spec": "k: 64", "benchmark.1.status": "fail", "benchmark.1.error": "mismatch",
    }}}},
}  # fmt: skip
LINES = "benchmark-count: 1\nbenchmark.0.spec: size: 1024\nbenchmark.0.mean: 1000.0\ncheck: pass\n"


def trace(status: str, **performance) -> str:
    return json.dumps({
        "definition": "gemm", "solution": "mine", "workload": {"uuid": "w", "axes": {"M": 128}},
        "evaluation": {"status": status, "environment": {"hardware": "NVIDIA H100", "libs": {}},
                       "performance": performance or None, "correctness": None},
    })  # fmt: skip


FLASHINFER = "\n".join([
    trace("PASSED", latency_ms=1.25, reference_latency_ms=2.5, speedup_factor=2.0),
    trace("INCORRECT_SHAPE"),
])  # fmt: skip
GIVEN = {
    "nvbench": (json.dumps(NVBENCH), [
        ("copy", "N=1048576", "ok", "cold", "12.500"), ("copy", "N=1048576", "ok", "warm", "9.000"),
        ("copy", "N=3", "unsupported", "", "")]),
    "gpu-mode": (json.dumps(GPU_MODE), [
        ("given", "leaderboard: k: 16384; l: 1; m: 7168", "ok", "cold", "18.500"),
        ("given", "leaderboard: k: 64", "wrong_result", "", "")]),
    "lines of gpu-mode": (LINES, [("given", "benchmark: size: 1024", "ok", "cold", "1.000")]),
    "flashinfer-bench": (FLASHINFER, [
        ("gemm/mine", "M=128", "ok", "cold", "1250.000"),
        ("gemm/mine", "M=128", "wrong_shape", "", "")]),
}  # fmt: skip


@pytest.mark.parametrize("name", GIVEN)
def test_results_of_others_are_reports(name, tmp_path):
    text, wanted = GIVEN[name]
    (tmp_path / "given.json").write_text(text)
    lab(tmp_path, "report", "given.json", "--csv", "r.csv", "--out", "r.json", "--html", "r.html")
    rows = list(csv.DictReader((tmp_path / "r.csv").read_text().splitlines()))
    rows = [row for row in rows if row["case"] != "geometric mean"]
    columns = ("kernel", "case", "status", "mode", "median µs")
    assert [tuple(row[c] for c in columns) for row in rows] == wanted
    published(json.loads((tmp_path / "r.json").read_text()))
    assert "pestle-lab report" in (tmp_path / "r.html").read_text()


def test_what_is_said_beside_times(tmp_path):
    (tmp_path / "n.json").write_text(json.dumps(NVBENCH))
    assert "670.0" in lab(tmp_path, "report", "n.json").stdout
    (tmp_path / "f.jsonl").write_text(FLASHINFER)
    assert "0.5000" in lab(tmp_path, "report", "f.jsonl").stdout


def test_what_is_of_no_known_program_is_refused(tmp_path):
    (tmp_path / "x.json").write_text('{"times": [1, 2]}')
    assert "no result of nvbench" in lab(tmp_path, "report", "x.json", code=2).stderr
