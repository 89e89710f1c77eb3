"""A connection to an agent: by OpenSSH's own client, so that keys, agents, known hosts, jump hosts
and ~/.ssh/config are the user's, or to a process of this machine."""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ..errors import TRANSPORT, LabError
from . import agent
from .target import Target

SOURCE = Path(agent.__file__).read_bytes()
SILENCE = 30.0  # seconds without a word after which a connection is taken for dead
# The agent's source comes first; then messages.
BOOT = (
    "import sys; source = sys.stdin.buffer.read({size}); agent = dict(__name__='agent'); "
    "exec(compile(source, 'agent', 'exec'), agent); agent['serve'](source)"
)
# What ssh or the shell there says, and what to do about it: the first that fits.
_ADVICE = (
    ("Could not resolve hostname", "correct the host's name, or name it in ~/.ssh/config"),
    ("Connection refused", "correct the port, or start an SSH server there"),
    ("HOST IDENTIFICATION HAS CHANGED", "if the machine was made anew: ssh-keygen -R {host}"),
    ("Host key verification failed", "connect once by hand and compare the key: {by_hand}"),
    ("Permission denied", "name a key that it takes with --ssh-key FILE; by hand: {by_hand}"),
    ("timed out", "is the machine up, and may this one reach it? By hand: {by_hand}"),
    ("No route to host", "is the machine up, and may this one reach it? By hand: {by_hand}"),
    ("unreachable", "is the machine up, and may this one reach it? By hand: {by_hand}"),
    ("No such file or directory", "name a Python that is there with --python PATH"),
    ("not found", "name a Python that is there with --python PATH"),
    ("", "try it by hand: {by_hand}"),
)


def unreachable(target: Target, said: str) -> LabError:
    """A first connection that came to nothing, and what to do next."""
    next_step = ""
    if target.kind == "ssh":
        words = next(words for sign, words in _ADVICE if sign in said)
        host = f"'[{target.host}]:{target.port}'" if target.port else target.host
        next_step = f". Next: {words.format(host=host, by_hand=target.by_hand)}"
    return LabError(f"{target.text}: {said}{next_step}", TRANSPORT)


class Dropped(Exception):
    """The connection is gone; the job need not be."""


class Link:
    """One connection; a context manager."""

    def __init__(self, command: list[str]):
        self.command = command
        self.pending = b""

    def __enter__(self) -> Link:
        self.errors = tempfile.TemporaryFile()
        try:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                start_new_session=True,  # Ctrl-C is for the client, which says what comes
            )  # fmt: skip
        except FileNotFoundError:
            raise LabError(
                f"{self.command[0]} is not installed here: it makes the connection", TRANSPORT
            ) from None
        self._write(SOURCE)
        return self

    def __exit__(self, *_) -> None:
        self.process.kill()
        self.process.wait()
        for file in (self.process.stdin, self.process.stdout, self.errors):
            with contextlib.suppress(BrokenPipeError):
                file.close()

    def said(self) -> str:
        """What the connection's program wrote about itself."""
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace").strip()

    def _dropped(self) -> Dropped:
        try:
            code = self.process.wait(5)
        except subprocess.TimeoutExpired:
            code = "still there"
        return Dropped(self.said() or f"{self.command[0]} ended with {code}")

    def _write(self, data: bytes) -> None:
        try:
            self.process.stdin.write(data)
            self.process.stdin.flush()
        except OSError:
            raise self._dropped() from None

    def _more(self, until: float) -> None:
        left = until - time.monotonic()
        if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
            raise Dropped(f"nothing was heard for {SILENCE:g} s")
        data = os.read(self.process.stdout.fileno(), 1 << 20)
        if not data:
            raise self._dropped()
        self.pending += data

    def receive(self) -> tuple[dict, bytes]:
        """The next message; SILENCE is for one step of it, not for the whole."""
        while b"\n" not in self.pending:
            self._more(time.monotonic() + SILENCE)
        line, _, self.pending = self.pending.partition(b"\n")
        try:
            message = json.loads(line)
            size = message.pop("bytes")
        except (ValueError, AttributeError, KeyError):
            raise LabError(
                f"the other side wrote {line[:200].decode(errors='replace')!r} where its agent's "
                "answer belongs: does its shell print something at each start?",
                TRANSPORT,
            ) from None
        while len(self.pending) < size:
            self._more(time.monotonic() + SILENCE)
        payload, self.pending = self.pending[:size], self.pending[size:]
        if "refused" in message:
            raise LabError(message["refused"], TRANSPORT)
        return message, payload

    def ask(self, do: str, payload: bytes = b"", **request) -> dict:
        return self.ask_for_bytes(do, payload, **request)[0]

    def ask_for_bytes(self, do: str, payload: bytes = b"", **request) -> tuple[dict, bytes]:
        self.send(do, payload, **request)
        return self.receive()

    def send(self, do: str, payload: bytes = b"", **request) -> None:
        packed = io.BytesIO()
        agent.write_message(packed, {"do": do, **request}, payload)
        self._write(packed.getvalue())


def command(target: Target, python: str, key: Path | None, options: list[str]) -> list[str]:
    boot = ["-c", BOOT.format(size=len(SOURCE))]
    if target.kind != "ssh":
        return [sys.executable, *boot]
    made = [shutil.which("ssh") or "ssh", "-T"]
    # No question can be answered here; and a dead link is to be noticed within 15 s.
    for option in ("BatchMode=yes", "ConnectTimeout=15", "ServerAliveInterval=5", *options):
        made += ["-o", option]
    if key:
        if not key.is_file():
            raise LabError(f"--ssh-key {key}: there is no such file")
        made += ["-i", str(key), "-o", "IdentitiesOnly=yes"]
    if target.port:
        made += ["-p", str(target.port)]
    host = f"{target.user}@{target.host}" if target.user else target.host
    return [*made, "--", host, shlex.join([python, *boot])]
