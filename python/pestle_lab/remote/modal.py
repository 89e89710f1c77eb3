"""--on modal:GPU: a container of Modal's for one command. Modal keeps no job: when the client ends,
so does the command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from .. import packing
from ..errors import TRANSPORT, LabError
from . import agent, folder
from .jobs import LAB, Options
from .target import Target

APP = Path(__file__).with_name("modal_app.py")


class Client:
    def __init__(self, target: Target, root: Path, options: Options, say: Callable[[str], None]):
        self.target, self.root, self.options, self.say = target, root, options, say

    def _refuse(self, *_):
        raise LabError("Modal keeps no jobs: --attach, --cancel and --jobs are for ssh and SLURM")

    attach = cancel = jobs = _refuse

    def run(self, arguments: list[str], argv: list[str] | None = None) -> int:
        program = shutil.which("modal")
        if program is None:
            raise LabError(
                "modal is not installed here: pip install modal, then modal token new", TRANSPORT
            )
        words = folder.relative_arguments(arguments, self.root)
        known = folder.manifest(self.root)
        with tempfile.TemporaryDirectory(prefix="pestle-lab-") as temporary:
            place = Path(temporary)
            job = self._stage(place, known, argv or ["-c", LAB, *words])
            self.say(f"{len(known)} files, on {self.target.name} of Modal's")
            done = subprocess.run(
                [program, "run", str(APP)],
                env=os.environ | {"PESTLE_LAB_MODAL_JOB": str(job)}, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            ended = agent.read_json(place / "result/exit.json")
            if ended is None:
                raise LabError(f"modal run ended with {done.returncode}, and no answer", TRANSPORT)
            self._bring(place / "result", ended["files"])
        code = ended["code"]
        return code if code >= 0 else 128 - code

    def _stage(self, place: Path, known: dict, argv: list[str]) -> Path:
        staged = place / "staged"
        staged.mkdir()
        (place / "result").mkdir()
        for name in known:
            (staged / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.root / name, staged / name)
        job = {
            "argv": argv, "manifest": known, "env": self.options.env, "staged": str(staged),
            "result": str(place / "result"), "gpu": self.target.name,
            "timeout": self.options.modal_timeout,
            "wheel": str(packing.place(place / "wheel", self.options.wheel).path),
        }  # fmt: skip
        (place / "job.json").write_text(json.dumps(job))
        return place / "job.json"

    def _bring(self, result: Path, files: list[dict]) -> None:
        for entry in files:
            path, why = folder.place(self.root, entry["path"], entry["before"])
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(result / entry["sha256"], path)
            self.say(f"fetched {path.relative_to(self.root)}" + (f" ({why})" if why else ""))
