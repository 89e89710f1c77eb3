"""tools/step_table.py: README.md's first table says what bench/results/dit_step.jsonl says."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tool():
    spec = importlib.util.spec_from_file_location("step_table", ROOT / "tools/step_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(shape, variant, step_ms, error=0.0):
    return {"shape": shape, "variant": variant, "step_ms": step_ms, "block_ms": {},
            "weights_mb": 512, "peak_mb": 2048, "error": error}  # fmt: skip


MADE = {
    "device": "NVIDIA H100",
    "versions": {"torch": "2.11.0", "pestle": "0.1.0"},
    "blocks": 2,
    "rows": [
        row("flux", "bf16, eager", 3000),
        row("flux", "bf16, torch.compile", 2000, 0.001),
        row("flux", "pestle int8", 1000, 0.02),
        row("wan", "bf16, eager", 5000),
        row("wan", "bf16, torch.compile", 4000),
    ],
}


def test_readme_says_what_was_measured_last(tool):
    assert tool.parts()[1] == tool.section(tool.last_line())


@pytest.fixture
def elsewhere(tool, tmp_path, monkeypatch):
    monkeypatch.setattr(tool, "README", tmp_path / "README.md")
    monkeypatch.setattr(tool, "RESULTS", tmp_path / "dit_step.jsonl")
    tool.README.write_text(f"# Name\n\n{tool.BEGIN}{tool.END}\nrest\n")
    return tool


def test_a_run_becomes_a_line_and_a_table(elsewhere, tmp_path):
    made = tmp_path / "step.json"
    made.write_text(json.dumps(MADE))
    elsewhere.add(str(made), "abc")
    text = elsewhere.README.read_text()
    assert text.startswith("# Name\n\n<!-- step") and text.endswith("\nrest\n")
    assert "| **pestle int8** | 1,000 | 2.00 | 0.50 | 2.00 | 0.020 |" in text
    assert "| bf16, eager | 3,000 | 0.67 | 0.50 | 2.00 |  |" in text
    line = json.loads(elsewhere.RESULTS.read_text())
    assert line["machine"] == {"commit": "abc"} and line["rows"] == MADE["rows"]
    elsewhere.README.write_text(text.replace("1,000", "900"))
    assert elsewhere.parts()[1] != elsewhere.section(elsewhere.last_line())


@pytest.mark.parametrize("change", [{"device": "CPU"}, {"rows": []},
                                    {"rows": [row("tiny-flux", "bf16, eager", 1)]}])  # fmt: skip
def test_only_runs_on_a_gpu_are_taken(elsewhere, tmp_path, change):
    made = tmp_path / "step.json"
    made.write_text(json.dumps(MADE | change))
    with pytest.raises(SystemExit, match="from a GPU"):
        elsewhere.add(str(made), "abc")
    assert not elsewhere.RESULTS.exists() and "|" not in elsewhere.README.read_text()


def test_a_run_of_some_rows_leaves_the_others(elsewhere, tmp_path):
    """Of each row the last run that has it, beside what compiled bf16 took in that run."""
    made = tmp_path / "step.json"
    for rows in (MADE["rows"], [row("flux", "bf16, torch.compile", 1800, 0.001),
                                row("flux", "torchao int8, compiled", 900, 0.03)]):  # fmt: skip
        made.write_text(json.dumps(MADE | {"rows": rows}))
        elsewhere.add(str(made), "abc")
    text = elsewhere.README.read_text()
    assert "| **pestle int8** | 1,000 | 2.00 | 0.50 | 2.00 | 0.020 |" in text
    assert "| torchao int8, compiled | 900 | 2.00 | 0.50 | 2.00 | 0.030 |" in text
    assert "| bf16, torch.compile | 2,000 | 1.00 |" in text and "| 5,000 |" in text
