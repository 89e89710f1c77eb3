"""Files of tuned choices, as `pestle tune` writes them and programs read them; no GPU is needed."""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PESTLE = os.environ.get("PESTLE_BIN", str(ROOT / "build/bin/pestle"))
CHOICE = {
    "key": "bf16 bf16 bf16 4608x12288x3072 b1 kn f32",
    "way": "library",
    "variant": 7,
    "version": 130100,
    "us": 509.9,
}
FILE = {
    "pestle_tuned": 1,
    "gpu": "NVIDIA H200",
    "compute_capability": 90,
    "multiprocessors": 132,
    "choices": [CHOICE],
}


def run(*arguments, tuned=None):
    environment = os.environ | ({"PESTLE_TUNED": str(tuned)} if tuned else {})
    return subprocess.run([PESTLE, *arguments], capture_output=True, text=True, env=environment)


def written(folder, content):
    path = folder / "tuned.json"
    path.write_text(json.dumps(content))
    return path


def test_a_file_is_shown(tmp_path):
    shown = run("tune", "--show", str(written(tmp_path, FILE)))
    assert shown.returncode == 0, shown.stderr
    assert "NVIDIA H200, compute capability 90, 132 multiprocessors" in shown.stdout
    assert CHOICE["key"] in shown.stdout


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pestle_tuned": 2}, "format 2"),
        ({"choices": [CHOICE | {"variant": 8}]}, "variant 8"),
        ({"choices": [CHOICE | {"key": "bf16"}]}, "names no product"),
    ],
)
def test_a_wrong_file_is_refused_and_left_out_of_programs(tmp_path, change, words):
    path = written(tmp_path, FILE | change)
    refused = run("tune", "--show", str(path))
    assert refused.returncode == 17
    assert words in refused.stderr
    other = run("ops", tuned=path)
    assert other.returncode == 0
    assert "PESTLE_TUNED is left out" in other.stderr
    assert words in other.stderr


def test_a_right_file_is_read_in_silence(tmp_path):
    quiet = run("ops", tuned=written(tmp_path, FILE))
    assert (quiet.returncode, quiet.stderr) == (0, "")


def test_tuning_needs_a_gpu_and_a_call():
    assert run("tune", "matmul").returncode == 11
    # 13: built without CUDA; 15: with it, and no GPU is here.
    without = run("tune", "matmul", "--case", "B= M=8 N=8 K=8", "--device", "cuda:63")
    assert without.returncode in (13, 15), without.stderr
