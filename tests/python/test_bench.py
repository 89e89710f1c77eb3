"""pestle bench: A/B with another build of the library, and cases from a file."""

import json
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("PESTLE_BUILD_DIR", ROOT / "build"))
PESTLE = os.environ.get("PESTLE_BIN", BUILD / "bin/pestle")
SHORT = ["--seconds", "0.2", "--footprint", "16", "--json"]


def bench(*arguments):
    return subprocess.run(
        [PESTLE, "bench", *arguments], capture_output=True, text=True, timeout=120
    )


def test_another_build_is_timed_in_turn():
    library = str(BUILD / "lib/libpestle.so")
    result = bench("softmax", "--case", "S=64x256", "--vs", library, *SHORT)
    assert result.returncode == 0, result.stderr
    versus = json.loads(result.stdout)["versus"]
    assert versus["impl"] == library
    assert len(versus["timing"]["samples_us"]) > 1
    assert "no difference" in versus["verdict"] or library in versus["verdict"]


def test_what_is_no_such_library_is_an_error(tmp_path):
    other = tmp_path / "other.so"
    other.write_text("no library")
    result = bench("softmax", "--case", "S=64x256", "--vs", str(other), *SHORT)
    assert result.returncode != 0
    assert "other.so" in result.stderr


def test_a_file_adds_cases_of_the_named_ops(tmp_path):
    file = tmp_path / "more.json"
    cases = [{"op": "softmax", "case": "S=7x9"}, {"op": "reduce", "case": "M=7x9 dims=2"}]
    file.write_text(json.dumps({"cases": cases}))
    listed = bench("softmax", "--tags", "bar", "--cases", str(file), "--list-cases")
    rows = [json.loads(line) for line in listed.stdout.splitlines()]
    assert [row["case"] for row in rows].count("S=7x9") == 1
    assert {row["op"] for row in rows} == {"softmax"}
    file.write_text('{"rows": []}')
    assert bench("softmax", "--cases", str(file), "--list-cases").returncode != 0


def test_the_committed_cases_are_calls():
    listed = bench("--tags", "bar", "--cases", str(ROOT / "bench/bars_cuda.json"), "--list-cases")
    assert listed.returncode == 0, listed.stderr
    known = {(row["op"], row["case"]) for row in map(json.loads, listed.stdout.splitlines())}
    for entry in json.loads((ROOT / "bench/bars_cuda.json").read_text())["cases"]:
        assert (entry["op"], entry["case"]) in known
    huge = bench("--tags", "huge", "--cases", str(ROOT / "bench/huge_cuda.json"), "--list-cases")
    assert huge.returncode == 0, huge.stderr
