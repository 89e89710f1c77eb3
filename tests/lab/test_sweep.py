"""pestle-lab sweep on Ray, on this machine alone; tests/lab_ray has a cluster of two nodes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pestle_lab import errors
from pestle_lab.sweeping import cluster
from pestle_lab.sweeping.items import Item

HERE = Path(__file__).parent
HEAD = """\
# kernel: double/{name}
# language = "python"
import os, signal, torch
from pathlib import Path
"""
# The process that a kernel runs in is the child of Ray's worker.
DIES_ONCE = """\
def run(out, x):
    if not (mark := Path({mark!r})).exists():
        mark.write_text("killed")
        os.kill(os.getppid(), signal.SIGKILL)
    torch.mul(x, 2, out=out)
"""
CUDA = """\
// kernel: double/cuda
// language = "cuda"
// arguments = ["out", "x", "M", "N", "stream"]
"""


@pytest.fixture
def folder(tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    (work / "double.problem.py").write_text((HERE / "double.problem.py").read_text())
    texts = {
        "once": DIES_ONCE.format(mark=str(tmp_path / "mark")),
        "wrong": "def run(out, x): torch.mul(x, 3, out=out)\n",
    }
    for name, text in texts.items():
        (work / f"{name}.py").write_text(HEAD.format(name=name) + text)
    (work / "cuda.cu").write_text(CUDA)
    return work


def test_a_sweep_survives_its_worker_and_tells_what_failed(folder):
    done = subprocess.run(
        [sys.executable, "-m", "pestle_lab", "sweep", "double/wrong", "once.py",
         "double/cuda", "--case", "M=4 N=64", "--mode", "warm", "--seconds", "0.05",
         "--device", "cpu", "--history", "h.jsonl", "--json", "--html", "r.html"],
        capture_output=True, text=True, cwd=folder, timeout=600,
        env=os.environ | {"HOME": str(folder.parent)},  # Ray's token is written there
    )  # fmt: skip
    assert done.returncode == errors.WRONG_RESULT, done.stderr
    assert "Traceback" not in done.stderr
    assert (folder.parent / "mark").read_text() == "killed"
    made = json.loads(done.stdout)
    found = {k["name"]: k["cases"][0]["status"] for k in made["kernels"]}
    assert found == {"double/wrong": "wrong_result", "double/once": "ok",
                     "double/cuda": "no_device"}  # fmt: skip
    lines = [json.loads(line) for line in (folder / "h.jsonl").read_text().splitlines()]
    assert [line["kernel"] for line in lines] == ["double/once"]
    assert all(line["median_us"] > 0 and line["machine"] for line in lines)
    assert "double/wrong" in done.stderr and "[3/3]" in done.stderr
    assert "no_device M=4 N=64" in done.stderr
    assert "double/once" in (folder / "r.html").read_text()


class Nodes(cluster.Cluster):
    """A cluster's description without a cluster."""

    def __init__(self, *nodes):
        self.nodes = nodes

    def resources(self):
        return list(self.nodes)


def test_what_an_item_asks_of_ray():
    nodes = Nodes({"CPU": 16.0}, {"CPU": 8.0, "GPU": 2.0, "accelerator_type:H100": 1.0})
    assert nodes.kinds() == ["H100"] and nodes.has_gpus()
    on_cpu, on_gpu = (Item("x", "x", "M=1", device) for device in ("cpu", "cuda"))
    assert nodes.needs(on_cpu) == {"CPU": 8}
    assert nodes.needs(on_gpu) == {"GPU": 1, "CPU": 1}
    named = nodes.needs(Item("x", "x", "M=1", "cuda", "H200"))
    assert nodes._has_room(nodes.needs(on_gpu)) and not nodes._has_room(named)
    assert cluster._words(named) == "a GPU H200 and 1 cores"


@pytest.mark.parametrize("text", ["ray://", "ray://host", "ray://host:x", "host:10001", "ssh://a"])
def test_an_address_that_is_none(text):
    with pytest.raises(errors.LabError, match="expected local or ray://HOST:PORT"):
        cluster.address(text)
