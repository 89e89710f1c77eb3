"""A real sshd on the loopback address, with keys of its own, for as long as a test needs it."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")


def _key(path: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """`options` are what `pestle-lab run` needs to reach it."""

    def __init__(self, folder: Path):
        self.folder, self.port = folder, _free_port()
        host, user = _key(folder / "host"), _key(folder / "user")
        (folder / "authorized").write_text(user.with_suffix(".pub").read_text())
        known = folder / "known"
        known.write_text(
            f"[127.0.0.1]:{self.port} {host.with_suffix('.pub').read_text().rsplit(' ', 1)[0]}\n"
        )
        self.base = folder / "cache/remote"
        there = {"PESTLE_LAB_CACHE": str(folder / "cache"),
                 "PYTHONPATH": os.environ.get("PYTHONPATH", "")}  # fmt: skip
        (folder / "config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {host}\nUsePAM no\n"
            f"AuthorizedKeysFile {folder / 'authorized'}\nPasswordAuthentication no\n"
            f"StrictModes no\nPidFile {folder / 'pid'}\nPermitRootLogin yes\nMaxStartups 50\n"
            f"SetEnv {' '.join(f'{k}={v}' for k, v in there.items() if v)}\n"
        )
        self.user = user
        self.ssh = [f"UserKnownHostsFile={known}", "GlobalKnownHostsFile=/dev/null",
                    "StrictHostKeyChecking=yes"]  # fmt: skip
        self.url = f"ssh://127.0.0.1:{self.port}"
        self.options = ["--on", self.url, "--ssh-key", str(user), "--python", sys.executable]
        self.options += [word for option in self.ssh for word in ("--ssh-option", option)]

    def __enter__(self):
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # it drops its rights there
        self.log = open(self.folder / "log", "w+")
        self.process = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(self.folder / "config")], stderr=self.log
        )
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return self
            assert self.process.poll() is None, (self.folder / "log").read_text()
            time.sleep(0.1)
        raise AssertionError("sshd does not listen")

    def __exit__(self, *_):
        self.drop_connections()
        self.process.kill()
        self.process.wait()
        self.log.close()

    def drop_connections(self) -> int:
        """Kills the processes that serve connections, and no job; how many there were."""
        parents, names = {}, {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit():
                    name, _, rest = (entry / "stat").read_text().rpartition(")")
                    names[int(entry.name)] = name.partition("(")[2]
                    parents[int(entry.name)] = int(rest.split()[1])
        killed = 0
        for process, name in names.items():
            above = process
            while above in parents and above != self.process.pid:
                above = parents[above]
            if above == self.process.pid != process and name.startswith("sshd"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                    killed += 1
        return killed
