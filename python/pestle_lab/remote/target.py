"""Where a job runs: what stands behind --on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from ..errors import LabError

FORMS = "local, ssh://USER@HOST:PORT, slurm:PARTITION or modal:GPU"


@dataclass(frozen=True)
class Target:
    kind: str  # local, ssh, slurm, modal
    host: str = ""
    user: str = ""
    port: int | None = None
    name: str = ""  # SLURM's partition, Modal's GPU

    @property
    def text(self) -> str:
        if self.kind == "ssh":
            host = f"[{self.host}]" if ":" in self.host else self.host
            user = f"{self.user}@" if self.user else ""
            return f"ssh://{user}{host}" + (f":{self.port}" if self.port else "")
        return f"{self.kind}:{self.name}" if self.name else self.kind

    @property
    def by_hand(self) -> str:
        """What reaches it without the lab."""
        port = f"-p {self.port} " if self.port else ""
        return f"ssh {port}" + (f"{self.user}@" if self.user else "") + self.host


def parse(text: str) -> Target:
    if text == "local":
        return Target("local")
    if text.startswith("ssh://"):
        return _ssh(text)
    kind, _, name = text.partition(":")
    if kind in ("slurm", "modal") and re.fullmatch(r"[A-Za-z0-9][\w.,:-]*", name):
        return Target(kind, name=name)
    raise LabError(f"the target {text}: expected {FORMS}")


def parse_gpu(text: str) -> int | None:
    if text == "none":
        return None
    if text.isdigit():
        return int(text)
    raise LabError(f"--gpu {text}: expected a number, or none for the processor alone")


def _ssh(text: str) -> Target:
    try:
        parts = urlsplit(text)
        host, user, port = parts.hostname or "", parts.username or "", parts.port
    except ValueError as error:
        raise LabError(f"the target {text}: {error}") from None
    if parts.password is not None:
        raise LabError(
            f"the target {text.replace(parts.password, '...')}: no passwords here; use a key"
        )
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise LabError(
            f"the target {text}: nothing follows the port; expected ssh://USER@HOST:PORT"
        )
    # What begins with a dash would be an option of ssh's.
    word = r"[\w:][\w.:%-]*"
    if not re.fullmatch(word, host) or (user and not re.fullmatch(word, user)):
        raise LabError(f"the target {text}: expected ssh://USER@HOST:PORT")
    return Target("ssh", host=host, user=user, port=port)
