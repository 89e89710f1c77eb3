"""The examples run as their pages say, on a CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def run(script, *options, status=0):
    command = [sys.executable, str(EXAMPLES / script), *options]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment)
    assert done.returncode == status, done.stdout + done.stderr
    return done


@pytest.mark.parametrize("shape", ["tiny-flux", "tiny-wan"])
def test_a_step_of_a_diffusion_transformer(shape, tmp_path):
    made = tmp_path / "step.json"
    variants = ["pestle int8", "pestle fp8", "pestle nvfp4 weights"]
    options = ["--shape", shape, "--variant", *variants, "--seconds", "0.01"]
    page = tmp_path / "step.md"
    table = run("dit_step.py", *options, "--json", str(made), "--markdown", str(page)).stdout
    rows = {row["variant"]: row for row in json.loads(made.read_text())["rows"]}
    assert list(rows) == ["bf16, eager", *variants]
    exact = rows["bf16, eager"]
    for name, most, size in (
        ("int8", 0.03, 0.51),
        ("fp8", 0.08, 0.51),
        ("nvfp4 weights", 0.25, 0.3),
    ):
        row = rows[f"pestle {name}"]
        assert f"pestle {name}" in table and f"\n| pestle {name} | " in page.read_text()
        assert 0 < row["error"] < most
        assert row["weights_mb"] < size * exact["weights_mb"]
        assert row["step_ms"] > 0


@pytest.mark.parametrize("name", ["fp8", "int8"])
def test_a_step_beside_comfy_kitchen(name, tmp_path):
    pytest.importorskip("comfy_kitchen")
    made = tmp_path / "step.json"
    options = ["--shape", "tiny-wan", "--seconds", "0.01", "--json", str(made)]
    run("dit_step.py", *options, "--variant", f"comfy-kitchen {name}")
    found = json.loads(made.read_text())
    assert found["versions"]["comfy-kitchen"] and found["device"] == "CPU"
    exact, row = found["rows"]
    assert row["variant"] == f"comfy-kitchen {name}" and 0 < row["error"] < 0.08
    assert row["weights_mb"] < exact["weights_mb"]


def test_a_step_begins_nothing_after_its_limit(tmp_path):
    made = tmp_path / "step.json"
    options = ["--shape", "tiny-wan", "--limit", "0", "--json", str(made)]
    done = run("dit_step.py", *options, "--variant", "pestle fp8")
    assert "tiny-wan: pestle fp8: left out, 0 s are over" in done.stderr
    assert json.loads(made.read_text())["rows"] == []


def test_a_step_names_what_it_leaves_out(tmp_path):
    (tmp_path / "torchao.py").write_text("raise ImportError('not today')")
    command = [
        sys.executable,
        str(EXAMPLES / "dit_step.py"),
        "--shape",
        "tiny-wan",
        "--seconds",
        "0.01",
    ]
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [*command, "--variant", "torchao int8, compiled"],
        capture_output=True, text=True, timeout=600, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "left out, torchao: not today" in done.stderr
    assert "torchao" not in done.stdout


def test_ways_of_compiling_are_compared(tmp_path):
    """Without kernels: what is compiled when, and that nothing is left out."""
    made = tmp_path / "lines.jsonl"
    options = ["--shape", "tiny-flux", "--backend", "eager", "--rounds", "1", "--seconds", "2000"]
    made.write_text('{"an": "earlier line"}\n')
    told = run("comfy_compile_bench.py", *options, "--json", str(made)).stdout
    earlier, line = map(json.loads, made.read_text().splitlines())
    assert earlier == {"an": "earlier line"}
    rows = {row["way"]: row for row in line["rows"]}
    assert len(rows) == 6 and "left out" not in told
    bars = {bar["what"]: bar for bar in line["bars"]}
    assert len(bars) == 5 and all(bar["held"] is not None for bar in bars.values())
    assert bars["recompiles of two new resolutions"]["held"] and line["machine"]["commit"]
    first, new = {}, {}
    for way, row in rows.items():
        first[way], new[way] = row["graphs"], row["recompiles"]
        assert row["step_ms"] > 0 and way in told
    eager = rows.pop("eager")
    two = {"pestle": 2, "per block": 2, "pestle fp8-row": 2, "pestle int8-row": 2}
    assert first == {"eager": None, "whole model": 1, **two}
    # The second resolution opens what was fixed; graphs that are open need none.
    assert new["pestle"] == [0, 0] and new["whole model"] == [1, 0] and new["per block"] == [2, 0]
    assert all(row["all_first_step_s"] is not None for row in rows.values())
    assert all(row["error"] < (0.08 if "fp8" in way else 0.03) for way, row in rows.items())
    assert rows["pestle int8-row"]["weights_mib"] < 0.51 * eager["weights_mib"]


def test_a_search_finds_the_same_in_every_format(tmp_path):
    pytest.importorskip("transformers")
    if not (ROOT / ".venv/bin/pip").exists():
        pytest.skip("the model is fetched by .venv's pip, which a GPU machine lacks")
    script = ROOT / "tools/demo_model.sh"
    model = subprocess.run([script], capture_output=True, text=True, timeout=600)
    assert model.returncode == 0, model.stderr
    made = tmp_path / "search.json"
    folder = (ROOT / model.stdout.strip()).parent
    run("minilm_search.py", "--model", str(folder), "--format", "fp8", "nvfp4", "--json", str(made))
    rows = json.loads(made.read_text())
    assert [row["format"] for row in rows] == ["f32", "fp8", "nvfp4"]
    assert rows[0]["same"] == 1 and rows[0]["right"] > 0.5
    for row, least in zip(rows[1:], (0.95, 0.8), strict=True):
        assert row["same"] >= least
        assert abs(row["right"] - rows[0]["right"]) < 0.05
        assert row["cosine"] > 0.96
        assert row["megabytes"] < 0.3 * row["before_mb"]
