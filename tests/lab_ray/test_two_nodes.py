"""pestle-lab sweep on a Ray cluster of two nodes, through ray://, with a worker and a whole node
killed in the middle. Not part of make test, since it takes minutes: make
test-lab-ray."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pestle_lab import errors

LAB = Path(__file__).parents[1] / "lab"
HEAD = """\
# kernel: double/{name}
# language = "python"
import os, signal, time, torch
from pathlib import Path
"""
ONCE = """\
def run(out, x):
    if not (mark := Path({mark!r})).exists():
        mark.write_text("killed")
        os.kill(os.getppid(), signal.SIGKILL)
    torch.mul(x, 2, out=out)
"""
ALWAYS = """\
def run(out, x):
    with open({mark!r}, "a") as file:
        file.write("killed\\n")
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
"""
# Waits on the node that is to die; elsewhere it is honest. A worker is the child of its raylet.
NODE = """\
def run(out, x):
    mark = Path({mark!r})
    stat = Path(f"/proc/{{os.getppid()}}/stat").read_text()
    if stat.rpartition(")")[2].split()[1] == mark.read_text():
        mark.with_suffix(".begun").write_text("")
        time.sleep(120)
    torch.mul(x, 2, out=out)
"""


@pytest.fixture
def port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def await_server(port):
    until = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert time.monotonic() < until, "the client's server does not answer"
            time.sleep(0.1)


@pytest.fixture
def nodes(tmp_path, monkeypatch, port):
    """A head with one core, where the client's server is, and a node with one core."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PESTLE_LAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_worker_niceness", "0")
    from ray.cluster_utils import Cluster

    made = Cluster()
    try:
        made.add_node(num_cpus=1, ray_client_server_port=port)
        made.other = made.add_node(num_cpus=1)
        await_server(port)
        yield made
    finally:
        made.shutdown()


@pytest.fixture
def folder(tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    (work / "double.problem.py").write_text((LAB / "double.problem.py").read_text())
    texts = {"mine": "def run(out, x): torch.mul(x, 2, out=out)\n", "once": ONCE, "always": ALWAYS,
             "node": NODE}  # fmt: skip
    for name, text in texts.items():
        text = text.format(mark=str(tmp_path / name))
        (work / f"{name}.py").write_text(HEAD.format(name=name) + text)
    return work


def start(folder, port, *words):
    return subprocess.Popen(
        [sys.executable, "-m", "pestle_lab", "sweep", *words, "--on", f"ray://127.0.0.1:{port}",
         "--mode", "warm", "--seconds", "0.05", "--history", "h.jsonl", "--out", "r.json"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | {"PYTHONPATH": ""},
    )  # fmt: skip


def statuses(folder):
    made = json.loads((folder / "r.json").read_text())
    return {k["name"]: [c["status"] for c in k["cases"]] for k in made["kernels"]}


def kept(folder):
    return [json.loads(line)["kernel"] for line in (folder / "h.jsonl").read_text().splitlines()]


def test_workers_that_die(nodes, folder, port):
    sweep = start(folder, port, "double/mine", "double/once", "always.py", "--retries", "1",
                  "--case", "M=4 N=64")  # fmt: skip
    said = sweep.communicate(timeout=300)[0]
    assert sweep.returncode == errors.TRANSPORT, said
    assert (folder / "r.json").exists(), said
    assert statuses(folder) == {
        "double/mine": ["ok"], "double/once": ["ok"], "double/always": ["lost"]}  # fmt: skip
    assert sorted(kept(folder)) == ["double/mine", "double/once"]
    assert (folder.parent / "always").read_text() == "killed\n" * 2
    assert "lost M=4 N=64" in said and "Traceback" not in said


def test_a_node_that_dies(nodes, folder, port):
    """Its item runs again on the other."""
    raylet = nodes.other.all_processes["raylet"][0].process.pid
    mark, until = folder.parent / "node", time.monotonic() + 200
    mark.write_text(str(raylet))
    cases = [word for m in range(1, 5) for word in ("--case", f"M={m} N=64")]
    sweep = start(folder, port, "double/node", *cases)
    while not mark.with_suffix(".begun").exists():
        assert sweep.poll() is None and time.monotonic() < until, sweep.stdout.read()
        time.sleep(0.1)
    nodes.remove_node(nodes.other, allow_graceful=False)
    said = sweep.communicate(timeout=300)[0]
    assert sweep.returncode == 0, said
    assert [s for own in statuses(folder).values() for s in own] == ["ok"] * 4
    assert kept(folder) == ["double/node"] * 4


def test_without_room_the_rest_is_given_up(nodes, folder, port):
    done = start(folder, port, "double/mine", "--device", "cuda", "--patience", "2")
    said = done.communicate(timeout=300)[0]
    assert done.returncode == errors.TRANSPORT, said
    assert "no node of the cluster has a GPU and 1 cores" in said
    closed = subprocess.run(
        [sys.executable, "-m", "pestle_lab", "sweep", "double/mine", "--on", "ray://127.0.0.1:1"],
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    assert closed.returncode == errors.TRANSPORT and "--on ray://127.0.0.1:1: " in closed.stderr
