"""Pestle on a machine that has none: the wheel of this one, in an environment of its own there."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from .. import packing
from ..errors import TRANSPORT, LabError
from .jobs import Client, Options
from .target import Target

ANSWER = "python.txt"
# Beside the agent, which knows where its files lie. What is there already, as PyTorch, is used.
_SCRIPT = f"""
import fcntl, hashlib, os, pathlib, subprocess, sys
sys.path.insert(0, os.path.abspath(".."))
import agent
(wheel,) = pathlib.Path().glob("pestle-*.whl")
name = agent.hash_of(wheel)[:16] + "-" + hashlib.sha256(sys.executable.encode()).hexdigest()[:8]
folder = agent.default_base() / "venvs" / name
folder.mkdir(parents=True, exist_ok=True)
fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX)
python = folder / "bin/python"
if not (folder / "done").exists():
    for words in (
        [sys.executable, "-m", "venv", "--clear", "--system-site-packages", folder],
        [python, "-m", "pip", "install", "--progress-bar=off", f"{{wheel.resolve()}}[lab]"],
    ):
        code = subprocess.run(words, stdout=sys.stderr).returncode
        if code:
            sys.exit(code)
    (folder / "done").touch()
pathlib.Path("{ANSWER}").write_text(str(python))
"""


def installed(where: Target, options: Options, say: Callable[[str], None]) -> Options:
    """The options with a Python there that has the Pestle of this machine."""
    if where.kind != "ssh":
        raise LabError(f"--install is for machines reached by SSH, and not for {where.text}")
    with tempfile.TemporaryDirectory(prefix="pestle-lab-install-") as temporary:
        folder = Path(temporary) / "sent"
        packing.place(folder, options.wheel)
        client = Client(where, folder, options, say)
        client.needs_lab = False
        if client.run([], ["-c", _SCRIPT]):
            raise LabError(
                f"{where.text}: Pestle could not be installed there, as is said above. Next: name "
                "a Python of version 3.10 or later that has venv and pip with --python PATH, or "
                "install pestle[lab] there by hand",
                TRANSPORT,
            )
        return replace(options, python=(folder / ANSWER).read_text())
