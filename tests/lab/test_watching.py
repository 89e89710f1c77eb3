"""pestle-lab watch: what is said of a kernel's file each time that it is saved."""

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pestle_lab.watching import Watched
from rich.console import Console

HERE = Path(__file__).parent
GOOD = """\
# kernel: double/mine
# language = "python"
import beside


def run(out, x):
    beside.twice(out, x)
"""
SLOW = GOOD.replace("    beside", "    beside.time.sleep(0.01)\n    beside")
WRONG = GOOD + "    out.add_(1)\n"
BESIDE = "import time\n\ndef twice(out, x):\n    out.copy_(2 * x)\n"


@pytest.fixture
def watched(tmp_path):
    folder, copies = tmp_path / "work", tmp_path / "copies"
    folder.mkdir()
    copies.mkdir()
    (folder / "double.problem.py").write_text((HERE / "double.problem.py").read_text())
    (folder / "beside.py").write_text(BESIDE)
    (folder / "mine.py").write_text(GOOD)
    console = Console(file=io.StringIO(), width=1000)
    return Watched(folder / "mine.py", [folder], "cpu", "smoke", "M=8 N=64", 0.2, console, copies)


def said(watched, text: str) -> str:
    """Of the file with this text, saved now."""
    watched.path.write_text(text)
    begun = watched.console.file.tell()
    watched.once()
    return watched.console.file.getvalue()[begun:]


def test_a_version_is_held_to_the_last_good_one(watched):
    assert said(watched, GOOD).startswith("ok 2 cases") and watched.good
    assert "SLOWER beside the last good version" in said(watched, SLOW)
    kept = watched.good
    assert "wrong_result" in (text := said(watched, WRONG)) and "version" not in text
    assert "not TOML" in said(watched, GOOD.replace('"python"', "python"))
    assert watched.good is kept
    assert "FASTER beside the last good version" in said(watched, GOOD)
    assert "version" not in said(watched, GOOD)  # saved as it was


def test_the_command_sees_a_save_and_is_ended(watched):
    command = [sys.executable, "-m", "pestle_lab", "watch", "mine.py", "--device", "cpu"]
    log, scratch = watched.copies / "log", watched.copies / "scratch"
    scratch.mkdir()
    with open(log, "w") as file:
        process = subprocess.Popen(
            command, cwd=watched.path.parent, stderr=file,
            env=os.environ | {"TMPDIR": str(scratch)},
            # Also where the tests run in the background of a shell, which ignores it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
    for count, text in ((1, WRONG), (2, None)):
        until = time.monotonic() + 120
        while log.read_text().count(" cases") < count:
            assert time.monotonic() < until and process.poll() is None, log.read_text()
            time.sleep(0.2)
        time.sleep(1)
        if text:
            watched.path.write_text(text)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    words = [line.split()[0] for line in log.read_text().splitlines()]
    assert words == ["watching", "ok", "wrong_result", "wrong_result", "2", "ended"]
    assert not list(scratch.glob("pestle-lab-watch-*"))
