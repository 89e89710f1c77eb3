"""A job from here: send what changed, start it, follow it over as many connections as it takes, and
bring back what it wrote, whatever it ended with."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import INTERNAL, TRANSPORT, LabError
from . import agent, folder
from .link import Dropped, Link, command, unreachable
from .target import Target

# Not -m: it would find modules of the job's folder before those that are installed.
LAB = (
    "import sys; sys.path[:1] = []; from pestle_lab.app import main; "
    "sys.argv[0] = 'pestle-lab'; main()"
)


@dataclass
class Options:
    python: str = "python3"
    key: Path | None = None
    ssh: list[str] = field(default_factory=list)  # OpenSSH's -o
    gpu: int | None = 0
    env: dict[str, str] = field(default_factory=dict)
    sbatch: list[str] = field(default_factory=list)
    patience: float = 60.0  # seconds that a lost connection is tried again
    keep: bool = False  # leave the job's folder there
    wheel: Path | None = None  # of pestle, for --install and Modal's image; else the installed one
    modal_timeout: int = 3600  # seconds


class Client:
    """One target and the folder that jobs are about. `say` gets sentences for the user."""

    def __init__(self, target: Target, root: Path, options: Options, say: Callable[[str], None]):
        self.target, self.root, self.options, self.say = target, root, options, say
        self.offsets = dict.fromkeys(agent.STREAMS, 0)
        self.name_here = lambda name: name  # of what a job wrote
        self.program = f"pestle-lab run --on {target.text}"  # which the user began with
        self.needs_lab = True  # there, for the jobs
        self.reached = False  # what never answered is no connection lost

    def _link(self) -> Link:
        options = self.options
        return Link(command(self.target, options.python, options.key, options.ssh))

    def _once(self, do: str, **request) -> dict:
        try:
            with self._link() as link:
                return link.ask(do, **request)
        except Dropped as dropped:
            raise unreachable(self.target, str(dropped)) from None

    def jobs(self) -> list[dict]:
        return self._once("jobs")["jobs"]

    def cancel(self, job: str) -> None:
        self._once("cancel", job=job)

    def run(self, arguments: list[str], argv: list[str] | None = None) -> int:
        """The exit code of a command of the lab (or of `argv` for Python, in its place)."""
        known = folder.manifest(self.root)
        spec = self._spec(arguments, argv)
        try:
            with self._link() as link:
                self._greet(link)
                self._send(link, known)
                link.ask("start", spec=spec, manifest=known)
                self.say(f"job {spec['id']} on {self.target.text}")
                return self._finish(link, spec["id"])
        except Dropped as dropped:
            self._must_have_answered(dropped)
            return self._again(spec["id"], dropped, lambda link: self._restart(link, spec, known))

    def attach(self, job: str) -> int:
        try:
            with self._link() as link:
                self._greet(link)
                return self._finish(link, job)
        except Dropped as dropped:
            self._must_have_answered(dropped)
            return self._again(job, dropped)

    def _must_have_answered(self, dropped: Dropped) -> None:
        if not self.reached:
            raise unreachable(self.target, str(dropped))

    def _spec(self, arguments: list[str], argv: list[str] | None) -> dict:
        words = folder.relative_arguments(arguments, self.root)
        return {
            "id": time.strftime("%m%d-%H%M%S-", time.gmtime()) + secrets.token_hex(3),
            "argv": argv or ["-c", LAB, *words],
            "command": ["pestle-lab", *words],
            "started": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
            "launcher": "slurm" if self.target.kind == "slurm" else "process",
            "partition": self.target.name,
            "sbatch": self._sbatch(),
            "gpu": self.options.gpu,
            "env": self.options.env,
        }

    def _sbatch(self) -> list[str]:
        """One GPU, unless something else is asked for."""
        given = self.options.sbatch
        asks = any(word.startswith(("--gpus", "--gres", "-G")) for word in given)
        return given if asks or self.options.gpu is None else ["--gpus=1", *given]

    def _greet(self, link: Link) -> None:
        there = link.ask("hello")
        self.reached = True
        if self.needs_lab and not there["lab"]:
            raise LabError(
                f"{there['executable']} on {there['host']} has no pestle[lab]: name the Python "
                "that has it with --python PATH, or have it installed with --install",
                TRANSPORT,
            )

    def _send(self, link: Link, known: dict[str, dict]) -> None:
        names = {entry["sha256"]: name for name, entry in known.items()}
        missing = link.ask("need", sha256=list(names))["missing"]
        size = 0
        for digest in missing:
            data = (self.root / names[digest]).read_bytes()
            size += len(data)
            link.ask("put", data, sha256=digest)
        self.say(f"{len(missing)} of {len(known)} files sent, {size} bytes")

    def _restart(self, link: Link, spec: dict, known: dict) -> None:
        """The connection may have gone before the job was started; if it was, this does nothing."""
        self._send(link, known)
        link.ask("start", spec=spec, manifest=known)

    def _again(self, job: str, dropped: Dropped, before: Callable[[Link], None] | None = None):
        """The same job over new connections, until there was none for too long."""
        until, pause = time.monotonic() + self.options.patience, 0.5
        while True:
            self.say(f"connection lost ({dropped}); job {job} goes on; trying again")
            time.sleep(pause)
            try:
                with self._link() as link:
                    if before:
                        before(link)
                        before = None
                    until, pause = time.monotonic() + self.options.patience, 0.5
                    return self._finish(link, job)
            except Dropped as again:
                dropped, pause = again, min(2 * pause, 10.0)
            if time.monotonic() > until:
                raise LabError(
                    f"{self.target.text}: no connection for {self.options.patience:g} s: "
                    f"{dropped}. {self.how_to_attach(job)}",
                    TRANSPORT,
                )

    def how_to_attach(self, job: str) -> str:
        return f"To get it later: {self.program} --attach {job}"

    def _finish(self, link: Link, job: str) -> int:
        try:
            ended = self._follow(link, job)
            self._bring(link, job, ended["files"])
            if not self.options.keep:
                link.ask("drop", job=job)
        except KeyboardInterrupt:
            self.say(f"job {job} goes on. {self.how_to_attach(job)} (to end it: --cancel {job})")
            raise
        if ended["code"] is None:
            raise LabError(f"job {job}: {ended['why']}", TRANSPORT)
        return ended["code"]

    def _follow(self, link: Link, job: str) -> dict:
        link.send("follow", job=job, offsets=self.offsets)
        while True:
            message, payload = link.receive()
            event = message["event"]
            if event == "log":
                stream = getattr(sys, message["stream"])
                stream.flush()
                stream.buffer.write(payload)
                stream.buffer.flush()
                self.offsets[message["stream"]] += len(payload)
            elif event == "state" and message["state"] == "waiting":
                self.say(f"waits for {message['lock']}, which {message['holder']} holds")
            elif event == "state" and message["state"] == "queued":
                self.say(f"queued as SLURM's job {message['slurm']}")
            elif event == "end":
                return message

    def _bring(self, link: Link, job: str, files: list[dict]) -> None:
        for entry in files:
            name, before = self.name_here(entry["path"]), entry["before"]
            known = self.root / name
            if known.is_file() and (found := agent.hash_of(known)) == entry["sha256"]:
                continue  # fetched by an earlier connection
            if name != entry["path"] and known.is_file():
                before = found  # a name of ours: what an earlier job brought
            path, why = folder.place(self.root, name, before)
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f".{path.name}.partial")
            with open(partial, "wb") as out:
                while True:
                    piece = link.ask_for_bytes(
                        "fetch", job=job, path=entry["path"], offset=out.tell()
                    )[1]
                    if not piece:
                        break
                    out.write(piece)
            if agent.hash_of(partial) != entry["sha256"]:
                partial.unlink()
                raise LabError(f"{entry['path']} changed while it was fetched", INTERNAL)
            partial.replace(path)
            self.say(f"fetched {path.relative_to(self.root)}" + (f" ({why})" if why else ""))
