"""Clocks of a GPU, by a stand-in for nvidia-smi."""

import os
import time

import pytest
from pestle_lab import errors
from pestle_lab.engine import clocks
from test_commands import HERE, HONEST, lab

SMI = """\
#!/bin/sh
echo "$@" >> {log}
case "$*" in
  *--loop-ms*) i=0; while :; do i=$((i+1)); m=1980; [ $i -gt 6 ] && m=900
    echo "$m, 3201, 40, 300.1, 0x0000000000000000"; sleep 0.02; done ;;
  *--lock-gpu-clocks=5,5*) echo "not permitted"; exit 4 ;;
esac
"""


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """The log of its calls."""
    folder = tmp_path / "bin"
    folder.mkdir()
    log, program = tmp_path / "log", folder / "nvidia-smi"
    program.write_text(SMI.format(log=log))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return log


def test_clocks_are_held_and_given_free(smi):
    with pytest.raises(ZeroDivisionError), clocks.locked("cuda:1", 1500):
        assert smi.read_text().split() == ["--id=1", "--lock-gpu-clocks=1500,1500"]
        _ = 1 / 0
    assert smi.read_text().split()[-1] == "--reset-gpu-clocks"


def test_what_the_driver_refuses_is_an_error(smi):
    with pytest.raises(errors.LabError, match="not permitted"), clocks.locked("cuda", 5):
        raise AssertionError("timed all the same")


def test_there_are_none_on_a_cpu(tmp_path):
    (tmp_path / "double.problem.py").write_text((HERE / "double.problem.py").read_text())
    (tmp_path / "mine.py").write_text(HONEST)
    done = lab(tmp_path, "bench", "double/mine", "--device", "cpu", "--lock-clocks", "1500",
               code=errors.UNSUPPORTED)  # fmt: skip
    assert "--lock-clocks is of a GPU" in done.stderr
    with clocks.Watch("cpu") as watch:
        assert watch.low([(0.0, 1e9, 5)]) == 0


def test_samples_of_a_low_clock_are_flagged(smi):
    """Its clock falls after six looks; the median of all is of those before."""
    with clocks.Watch("cuda") as watch:
        while len(watch.lines) < 9:
            time.sleep(0.005)
    del watch.lines[9:]
    first, fall, last = (watch.lines[i][0] for i in (0, 6, 8))
    assert watch.low([(first, (watch.lines[5][0] + fall) / 2, 7), (fall, last, 5)]) == 5
    assert watch.lines[0][1]["power.draw"] == "300.1"
