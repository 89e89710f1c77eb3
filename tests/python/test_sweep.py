"""pestle bench --sweep: forms follow from the contracts, a run can be resumed, bars are judged."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("PESTLE_BUILD_DIR", ROOT / "build"))
PESTLE = os.environ.get("PESTLE_BIN", BUILD / "bin/pestle")
FORMS = str(ROOT / "bench/sweep_cuda.json")
sys.path.insert(0, str(ROOT / "tools"))
spec = importlib.util.spec_from_file_location(
    "performance_sweep", ROOT / "tools/performance_sweep.py"
)
performance_sweep = importlib.util.module_from_spec(spec)
sys.modules["performance_sweep"] = performance_sweep
spec.loader.exec_module(performance_sweep)


def sweep(*arguments):
    command = [PESTLE, "bench", "--sweep", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def forms(*arguments):
    listed = sweep("--list-cases", *arguments)
    assert listed.returncode == 0, listed.stderr
    return [json.loads(line) for line in listed.stdout.splitlines()]


def test_forms_follow_from_the_contracts():
    found = forms()
    assert {"op": "softmax", "case": "S={rows}x{width}"} in found
    assert {"op": "adaln", "case": "M={rows} K={width} x=f32 scale=f32 shift=f32 G=2"} in found
    # No product, and nothing that arithmetic bounds.
    assert not {"matmul", "attention", "gemv_nvfp4"} & {form["op"] for form in found}


def test_every_op_bound_by_memory_has_a_shape_that_is_a_call():
    """Else a sweep would leave an op out without a word."""
    found = forms("--cases", FORMS)
    assert {form["op"] for form in forms()} <= {form["op"] for form in found}
    for form in found:
        text = form["case"]
        for place, value in [
            ("{rows}", "256"),
            ("{width}", "4096"),
            ("{rows/8}", "32"),
            ("{rows/64}", "4"),
            ("{width/16}", "256"),
            ("{width/128}", "32"),
            ("{rows*width}", "1048576"),
            ("{width/32*34}", "4352"),
            ("{width/32*18}", "2304"),
            ("{width/256*144}", "2304"),
            ("{width/256*210}", "3360"),
        ]:
            text = text.replace(place, value)
        assert "{" not in text, text
        listed = subprocess.run(
            [PESTLE, "bench", form["op"], "--case", text, "--list-cases"],
            capture_output=True,
            text=True,
        )
        assert listed.returncode == 0, (form, listed.stderr)


def test_a_sweep_goes_on_where_it_ended(tmp_path):
    out = tmp_path / "sweep.jsonl"
    few = ["quantize_nvfp4", "--rows", "16", "--widths", "512,520", "--seconds", "0.001"]
    first = sweep(*few, "--out", str(out))
    assert first.returncode == 0, first.stderr
    # 520 is no multiple of 16: no call; the contract has forms with g given, and computed.
    assert "4 points, 2 measured, 0 known, 2 no calls" in first.stderr
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(lines) == 2
    for line in lines:
        assert not performance_sweep.sweep_faults(line)
        assert set(line["us"]) == {"normal", "weights", "heavy", "integers"}
        assert line["class"] == "quantised" and line["width"] == 512
    again = sweep(*few, "--out", str(out))
    assert "0 measured, 2 known" in again.stderr
    assert len(out.read_text().splitlines()) == 2


def test_a_budget_ends_it_and_says_so():
    result = sweep("swap_nibbles", "--rows", "16,32", "--widths", "64", "--budget", "1e-9")
    assert "the same command goes on with what is left" in result.stderr


def test_an_op_that_is_none_is_refused():
    result = sweep("matmul")
    assert result.returncode == 11
    assert "matmul" in result.stderr


def point(kind, rows, normal, weights, width=4096):
    return {
        "sweep": "negate",
        "form": "M={rows} K={width} x=f32",
        "rows": rows,
        "width": width,
        "class": kind,
        "impl": "cuda/negate_fast",
        "bytes": rows * width * 8,
        "agree": True,
        "us": {"normal": 100 / normal, "weights": 100 / weights},
        "copy_us": {"normal": 100.0, "weights": 100.0},
    }


def test_bars_are_judged_by_kind():
    good = [point("plain", rows, 0.95, 0.95) for rows in (256, 4096, 32768)]
    assert performance_sweep.all_met(good)
    slow = [point("plain", rows, 0.93, 0.93) for rows in (256, 4096, 32768)]
    assert performance_sweep.summaries(slow)[0].missed == ["median"]
    cliff = [*good[1:], point("plain", 256, 0.95, 0.84)]
    (found,) = performance_sweep.summaries(cliff)
    assert found.missed == ["least"]
    assert found.least_at.startswith("256 x 4096, weights")
    assert found.least_large > 0.94  # 256 x 4096 f32 are 8 MiB
    assert performance_sweep.all_met([{**line, "class": "quantised"} for line in cliff])
    data = [point("quantised", rows, 0.95, 0.91) for rows in (256, 4096, 32768)]
    (found,) = performance_sweep.summaries(data)
    assert found.missed == ["data"] and found.slowest_data == "weights"


def test_the_last_line_of_a_point_counts_and_faults_are_found():
    slow, fast = point("plain", 256, 0.5, 0.5), point("plain", 256, 0.97, 0.97)
    assert performance_sweep.summaries([slow, fast])[0].median > 0.96
    assert performance_sweep.sweep_faults({**fast, "agree": False})
    assert performance_sweep.sweep_faults({**fast, "copy_us": {"normal": 1.0}})
    assert "`x=f32`" in "\n".join(performance_sweep.table([fast]))
