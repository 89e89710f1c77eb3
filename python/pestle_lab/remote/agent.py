"""The other machine's side of `pestle-lab run --on`: keeps files by their content, makes a job's
folder of them, starts it detached, and serves its logs and what it wrote.

It is sent along with each connection and needs the standard library alone (Python 3.8 or later), so
nothing of it is installed there. A message is a line of JSON whose `bytes` says how many raw bytes
follow it. Below its folder:

    store/SHA256     files as they came, shared by jobs
    jobs/ID/         spec.json, manifest.json, tree/, stdout, stderr, state.json, exit.json
    locks/           held by runners: `host`, `gpu-N`
"""

import contextlib
import fcntl
import getpass
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

POLL = 0.1  # seconds between looks at a log, a lock or a request to end
LOOK = 2.0  # seconds between looks for the process of a job
SHARED = 6.0  # seconds that a shared file system may take to show a file of another machine
BEAT = 2.0  # seconds after which a silent job is known to be there
GRACE = 10.0  # seconds that a job has to end itself
KEPT_DAYS = 30  # of files that no job has asked for since
PIECE = 1 << 20
STREAMS = ("stdout", "stderr")
# What programs leave behind that nobody asked for.
LITTER = {"__pycache__", ".pytest_cache", ".git"}


class Refused(Exception):
    """A sentence for the user."""


def read_message(stream):
    """(message, payload), or None at the end of the stream."""
    line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    message = json.loads(line)
    size = message.pop("bytes", 0)
    payload = stream.read(size) if size else b""
    return (message, payload) if len(payload) == size else None


def write_message(stream, message, payload=b""):
    stream.write(json.dumps({**message, "bytes": len(payload)}).encode() + b"\n" + payload)
    stream.flush()


def hash_of(path):
    found = hashlib.sha256()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(PIECE), b""):
            found.update(piece)
    return found.hexdigest()


def write_json(path, value):
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(value))
    partial.replace(path)


def read_json(path):
    return json.loads(path.read_text()) if path.exists() else None


def inside(root, name):
    """root/name, which must not lead out of it."""
    path = Path(name)
    if not name or path.is_absolute() or ".." in path.parts:
        raise Refused(f"the path {name!r} leads out of the folder")
    return root / path


def default_base():
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("PESTLE_LAB_CACHE", Path(cache) / "pestle-lab")) / "remote"


def written(tree, manifest):
    """What a job wrote: files of its folder that did not come with it, or have other contents."""
    found = []
    for path in sorted(tree.rglob("*")):
        relative = path.relative_to(tree)
        if path.is_symlink() or not path.is_file() or LITTER & set(relative.parts):
            continue
        name, digest = relative.as_posix(), hash_of(path)
        before = manifest.get(name, {}).get("sha256")
        if before != digest:
            found.append({"path": name, "sha256": digest, "before": before})
    return found


# --- the job's own process ---------------------------------------------------------------------


class Cancelled(Exception):
    pass


class Runner:
    """Waits for its locks, runs the command and writes down how it ended. Its process belongs to
    no connection."""

    def __init__(self, folder):
        self.folder = folder
        self.spec = read_json(folder / "spec.json")
        self.locks = folder.parent.parent / "locks"
        self.held = []

    def state(self, word, **more):
        write_json(self.folder / "state.json", {"state": word, "since": time.time(), **more})

    def _asked_to_end(self):
        return (self.folder / "cancel").exists()

    def _lock(self, name, shared=False):
        self.locks.mkdir(parents=True, exist_ok=True)
        path = self.locks / name
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        waiting = False
        while True:
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not waiting:
                    holder = os.pread(file, 200, 0).decode(errors="replace") or "another job"
                    self.state("waiting", lock=name, holder=holder)
                    waiting = True
            if self._asked_to_end():
                raise Cancelled
            time.sleep(POLL)
        os.ftruncate(file, 0)
        os.pwrite(file, f"job {self.spec['id']} of {getpass.getuser()}".encode(), 0)
        self.held.append(file)

    def lock(self):
        """A GPU's job shares the host with those of other GPUs; a job without one has it alone."""
        gpu = self.spec["gpu"]
        if self.spec["launcher"] == "slurm":
            return  # which has given the job its GPU
        self._lock("host", shared=gpu is not None)
        if gpu is not None:
            self._lock(f"gpu-{gpu}")

    def environment(self):
        made = dict(os.environ)
        made["PYTHONUNBUFFERED"] = "1"
        if self.spec["launcher"] != "slurm":
            gpu = self.spec["gpu"]
            made["CUDA_VISIBLE_DEVICES"] = "" if gpu is None else str(gpu)
        made.update(self.spec["env"])
        return made

    def command(self):
        return [sys.executable, *self.spec["argv"]]

    def run(self):
        """The command's exit code; 128 + N if signal N ended it."""
        with open(self.folder / "stdout", "ab") as out, open(self.folder / "stderr", "ab") as err:
            process = subprocess.Popen(
                self.command(), cwd=self.folder / "tree", env=self.environment(),
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
                # The lock is held for as long as the command is there, even without its runner.
                pass_fds=self.held,
            )  # fmt: skip
        self.state("running", pid=process.pid)
        asked = None
        while process.poll() is None:
            if asked is None and self._asked_to_end():
                asked = time.monotonic()
                self._signal(process, signal.SIGINT)
            elif asked is not None and time.monotonic() - asked > GRACE:
                self._signal(process, signal.SIGKILL)
            time.sleep(POLL)
        if asked is not None:
            raise Cancelled
        code = process.returncode
        return code if code >= 0 else 128 - code

    @staticmethod
    def _signal(process, which):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, which)

    def main(self):
        # Not ignored, as shells do for jobs in the background: the command inherits that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        alive = os.open(self.folder / "alive", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(alive, fcntl.LOCK_EX)
        ended = {"code": None, "why": ""}
        try:
            self.state("starting")
            self.lock()
            ended["code"] = self.run()
        except Cancelled:
            ended["why"] = "ended by --cancel"
        except Exception as error:
            ended["why"] = f"could not be run: {type(error).__name__}: {error}"
        ended["files"] = written(self.folder / "tree", read_json(self.folder / "manifest.json"))
        write_json(self.folder / "exit.json", ended)


# --- what a connection asks for ----------------------------------------------------------------


class Agent:
    def __init__(self, source, answers, base=None):
        self.source, self.answers = source, answers
        self.base = Path(base) if base else default_base()
        self.store = self.base / "store"
        self.gone_since = None

    def job(self, name):
        if not name or not all(c.isalnum() or c == "-" for c in name):
            raise Refused(f"{name!r} is no job's name")
        return self.base / "jobs" / name

    def known_job(self, name):
        folder = self.job(name)
        if not (folder / "manifest.json").exists():
            raise Refused(f"no job {name} here: it was fetched or dropped, or never was")
        return folder

    def hello(self, request, payload):
        version = None
        with contextlib.suppress(Exception):
            version = importlib.metadata.version("pestle")
        return {
            "python": sys.version.split()[0],
            "lab": importlib.util.find_spec("pestle_lab") is not None,
            "version": version,
            "executable": sys.executable,
            "host": os.uname().nodename,
        }

    def need(self, request, payload):
        """Which contents are not here; the others are marked as used."""
        self.store.mkdir(parents=True, exist_ok=True)
        missing = []
        for digest in request["sha256"]:
            path = self.store / digest
            if path.exists():
                os.utime(path)
            else:
                missing.append(digest)
        self._prune()
        return {"missing": missing}

    def _prune(self):
        oldest = time.time() - KEPT_DAYS * 86400
        for path in self.store.iterdir():
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < oldest:
                    path.unlink()

    def put(self, request, payload):
        digest = hashlib.sha256(payload).hexdigest()
        if digest != request["sha256"]:
            raise Refused("a file arrived with other contents than it left with")
        partial = self.store / f".{digest}.{os.getpid()}"
        partial.write_bytes(payload)
        partial.replace(self.store / digest)
        return {}

    def start(self, request, payload):
        """Asked again for a job that is there, it starts nothing: the first answer may have been
        lost with its connection."""
        spec, manifest = request["spec"], request["manifest"]
        folder = self.job(spec["id"])
        if (folder / "state.json").exists():
            return {}
        shutil.rmtree(folder, ignore_errors=True)
        tree = folder / "tree"
        tree.mkdir(parents=True)
        for name, entry in manifest.items():
            path = inside(tree, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(inside(self.store, entry["sha256"]), path)
            path.chmod(0o755 if entry["executable"] else 0o644)
        for stream in STREAMS:
            (folder / stream).touch()
        write_json(folder / "spec.json", spec)
        write_json(folder / "manifest.json", manifest)
        (folder / "agent.py").write_bytes(self.source)
        if spec["launcher"] == "slurm":
            return self._submit(folder, spec)
        write_json(folder / "state.json", {"state": "starting", "since": time.time()})
        # No pipe of this connection's may stay open in it, or the connection would not end.
        with open(folder / "runner.log", "wb") as log:
            subprocess.Popen(
                [sys.executable, str(folder / "agent.py"), "run", str(folder)], cwd="/",
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        return {}

    @staticmethod
    def _submit(folder, spec):
        script = folder / "job.sh"
        quoted = " ".join(
            "'" + str(word).replace("'", "'\\''") + "'"
            for word in (sys.executable, folder / "agent.py", "run", folder)
        )
        script.write_text(f"#!/bin/sh\nexec {quoted}\n")
        command = ["sbatch", "--parsable", f"--partition={spec['partition']}",
                   f"--job-name=pestle-lab-{spec['id']}", f"--output={folder / 'runner.log'}",
                   *spec["sbatch"], str(script)]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
        except FileNotFoundError:
            raise Refused("there is no sbatch here: SLURM's commands are not on the PATH") from None
        if done.returncode:
            raise Refused(f"sbatch refused the job: {(done.stderr or done.stdout).strip()}")
        number = done.stdout.strip().split(";")[0]
        if not number.isdigit():
            raise Refused(f"sbatch answered {done.stdout.strip()!r}, which is no job's number")
        state = {"state": "queued", "since": time.time(), "slurm": number}
        write_json(folder / "slurm.json", state)
        if not (folder / "state.json").exists():  # the runner may have been quicker
            write_json(folder / "state.json", state)
        return {"slurm": number}

    def _alive(self, folder):
        if (slurm := read_json(folder / "slurm.json")) is not None:
            command = ["squeue", "--noheader", f"--jobs={slurm['slurm']}", "--format=%T"]
            done = subprocess.run(command, capture_output=True, text=True)
            # squeue forgets what has ended; a scheduler that does not answer says nothing of a job.
            gone = "Invalid job id" in done.stderr or (done.returncode == 0 and not done.stdout)
            return not gone
        if time.time() - (folder / "state.json").stat().st_mtime < 3:
            return True  # its runner may not be there yet
        file = os.open(folder / "alive", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(file)
        return False

    def _lost(self, folder):
        """How a job ended whose process is gone; None while it is there."""
        if self._alive(folder):
            self.gone_since = None
            return None
        now = time.monotonic()
        self.gone_since = self.gone_since or now
        if (folder / "slurm.json").exists() and now - self.gone_since < SHARED:
            return None
        ended = read_json(folder / "exit.json")  # it may have ended between the two looks
        if ended is None:
            log = folder / "runner.log"
            said = log.read_text(errors="replace")[-1000:].strip() if log.exists() else ""
            why = "its process is gone without a word" + (f": {said}" if said else "")
            files = written(folder / "tree", read_json(folder / "manifest.json"))
            ended = {"code": None, "why": why, "files": files}
            write_json(folder / "exit.json", ended)
        return ended

    def follow(self, request, payload):
        """Logs from the offsets on, as they grow, until the job has ended."""
        folder = self.known_job(request["job"])
        offsets = {name: request["offsets"][name] for name in STREAMS}
        said, looked, beat = None, 0.0, time.monotonic()
        while True:
            ended = read_json(folder / "exit.json")
            if ended is None and time.monotonic() - looked > LOOK:
                ended, looked = self._lost(folder), time.monotonic()
            state = read_json(folder / "state.json")
            if state != said and ended is None:
                write_message(self.answers, {"event": "state", **state})
                said, beat = state, time.monotonic()
            if self._send(folder, offsets):
                beat = time.monotonic()
                continue
            if ended is not None:
                return {"event": "end", **ended}
            if time.monotonic() - beat > BEAT:
                write_message(self.answers, {"event": "beat"})
                beat = time.monotonic()
            time.sleep(POLL)

    def _send(self, folder, offsets):
        """Whether a log had more."""
        more = False
        for name in STREAMS:
            with open(folder / name, "rb") as file:
                file.seek(offsets[name])
                piece = file.read(PIECE)
            if piece:
                write_message(self.answers, {"event": "log", "stream": name}, piece)
                offsets[name] += len(piece)
                more = True
        return more

    def fetch(self, request, payload):
        path = inside(self.known_job(request["job"]) / "tree", request["path"])
        with open(path, "rb") as file:
            file.seek(request["offset"])
            return {}, file.read(PIECE)

    def drop(self, request, payload):
        folder = self.known_job(request["job"])
        if not (folder / "exit.json").exists():
            raise Refused("the job has not ended")
        shutil.rmtree(folder, ignore_errors=True)
        return {}

    def cancel(self, request, payload):
        folder = self.known_job(request["job"])
        (folder / "cancel").touch()
        slurm, state = read_json(folder / "slurm.json"), read_json(folder / "state.json")
        if slurm is not None and state["state"] == "queued":
            subprocess.run(["scancel", slurm["slurm"]], check=False)
        return {}

    def jobs(self, request, payload):
        found = []
        root = self.base / "jobs"
        for folder in sorted(root.iterdir()) if root.exists() else []:
            spec, ended = read_json(folder / "spec.json"), read_json(folder / "exit.json")
            if spec is None:
                continue
            state = read_json(folder / "state.json") or {"state": "starting"}
            found.append({
                "id": spec["id"], "command": spec["command"], "started": spec["started"],
                "state": "ended" if ended else state["state"],
                "code": ended["code"] if ended else None,
            })  # fmt: skip
        return {"jobs": found}

    def serve(self, requests):
        while (message := read_message(requests)) is not None:
            request, payload = message
            try:
                made = getattr(self, request.pop("do"))(request, payload)
            except BrokenPipeError:
                return
            except Refused as refusal:
                made = {"refused": str(refusal)}
            except Exception as error:
                made = {"refused": f"{type(error).__name__}: {error}"}
            answer, data = made if isinstance(made, tuple) else (made, b"")
            write_message(self.answers, answer, data)


def serve(source, base=None):
    with contextlib.suppress(BrokenPipeError):
        Agent(source, sys.stdout.buffer, base).serve(sys.stdin.buffer)
    # Python's own attempt to empty a pipe that is gone.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    Runner(Path(sys.argv[2])).main()
