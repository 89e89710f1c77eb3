"""pestle-lab run --on slurm:PARTITION and modal:GPU, with stubs of sbatch, squeue and modal that
run the job. Neither has run against a cluster or Modal itself."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from pestle_lab import errors
from pestle_lab.remote import jobs, modal, target

# Jobs are processes of this machine, one file each: NUMBER holds the process.
SBATCH = """\
#!{python}
import json, os, pathlib, subprocess, sys
if "no-such" in " ".join(sys.argv):
    sys.exit("sbatch: error: invalid partition specified: no-such")
state = pathlib.Path(os.environ["STUB_STATE"])
output = next(w.partition("=")[2] for w in sys.argv if w.startswith("--output="))
job = subprocess.Popen(["sh", sys.argv[-1]], stdin=subprocess.DEVNULL,
                       stdout=open(output, "wb"), stderr=subprocess.STDOUT, start_new_session=True)
(state / "41").write_text(json.dumps([job.pid, sys.argv[1:]]))
print("41;cluster")
"""
SQUEUE = """\
#!{python}
import json, os, pathlib, sys
pid = json.loads((pathlib.Path(os.environ["STUB_STATE"]) / "41").read_text())[0]
stat = pathlib.Path(f"/proc/{{pid}}/stat")
if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
    sys.exit("slurm_load_jobs error: Invalid job id specified")
print("RUNNING")
"""
MODAL_PROGRAM = """\
#!{python}
import importlib.util, sys
sys.path.insert(0, {folder!r})
assert sys.argv[1] == "run"
spec = importlib.util.spec_from_file_location("modal_app", sys.argv[2])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.app.entrypoint()
"""
MODAL_MODULE = """\
import json, os, pathlib


class Image:
    def __init__(self, *steps):
        self.steps = list(steps)

    @classmethod
    def from_registry(cls, *args, **named):
        return cls(["from_registry", *args])

    def __getattr__(self, name):
        return lambda *args, **named: Image(*self.steps, [name, *args])


class App:
    def __init__(self, name, image):
        self.image = image

    def function(self, gpu, timeout):
        log = pathlib.Path(os.environ["STUB_STATE"]) / "modal"
        log.write_text(json.dumps({"gpu": gpu, "timeout": timeout, "image": self.image.steps}))

        def decorate(function):
            def remote(*args):
                if gpu == "NONE":
                    raise SystemExit("no such GPU")
                (tree,) = [step[1] for step in self.image.steps if step[0] == "add_local_dir"]
                os.environ["PESTLE_LAB_MODAL_TREE"] = tree
                return function(*json.loads(json.dumps(args)))  # nothing but plain data travels
            function.remote = remote
            return function
        return decorate

    def local_entrypoint(self):
        def decorate(function):
            self.entrypoint = function
            return function
        return decorate
"""
SCRIPT = """
import os, pathlib, sys
print("begins", os.environ.get("ADDED"), flush=True)
print("complains", file=sys.stderr)
pathlib.Path("made").mkdir()
pathlib.Path("made/r.json").write_text(pathlib.Path("given.txt").read_text() * 2)
sys.exit(4)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    stubs = tmp_path / "bin"
    (tmp_path / "state").mkdir()
    (tmp_path / "work").mkdir()
    stubs.mkdir()
    texts = {"sbatch": SBATCH, "squeue": SQUEUE, "modal": MODAL_PROGRAM}
    for name, text in texts.items():
        (stubs / name).write_text(text.format(python=sys.executable, folder=str(stubs)))
        (stubs / name).chmod(0o755)
    (stubs / "modal.py").write_text(MODAL_MODULE)
    monkeypatch.setenv("PATH", f"{stubs}:{os.environ['PATH']}")
    monkeypatch.setenv("STUB_STATE", str(tmp_path / "state"))
    (tmp_path / "work/given.txt").write_text("text")
    return tmp_path / "work"


def client(folder, text, **options):
    said = []
    kind = modal.Client if text.startswith("modal") else jobs.Client
    return kind(target.parse(text), folder, jobs.Options(**options), said.append), said


def submitted(folder) -> tuple[int, list[str]]:
    return json.loads((folder.parent / "state/41").read_text())


def test_slurm_from_submitting_to_artifacts(folder, capfd):
    one, said = client(folder, "slurm:gpu-long", sbatch=["--time=5"], env={"ADDED": "here"})
    assert one.run([], ["-c", SCRIPT]) == 4
    shown = capfd.readouterr()
    assert shown.out == "begins here\n" and "complains" in shown.err
    assert (folder / "made/r.json").read_text() == "texttext"
    _, words = submitted(folder)
    assert {"--parsable", "--partition=gpu-long", "--gpus=1", "--time=5"} < set(words)
    assert "1 of 1 files sent, 4 bytes" in said and one.jobs() == []
    again, _ = client(folder, "slurm:cpu", gpu=None)
    assert again.run([], ["-c", "pass"]) == 0
    assert "--gpus=1" not in submitted(folder)[1]


def test_slurm_says_what_went_wrong(folder, monkeypatch):
    with pytest.raises(errors.LabError, match="invalid partition specified: no-such") as found:
        client(folder, "slurm:no-such")[0].run([], ["-c", "pass"])
    assert found.value.code == errors.TRANSPORT
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(errors.LabError, match="there is no sbatch here"):
        client(folder, "slurm:gpu")[0].run([], ["-c", "pass"])


def test_a_job_that_slurm_kills_is_lost_and_its_files_come(folder):
    one, _ = client(folder, "slurm:gpu")
    begun = "import time\nopen('begun', 'w').write('yes')\ntime.sleep(60)"
    failed = []

    def run():
        try:
            one.run([], ["-c", begun])
        except errors.LabError as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    until = time.monotonic() + 30
    while not [j for j in one.jobs() if j["state"] == "running"]:
        assert time.monotonic() < until
        time.sleep(0.1)
    (job,) = one.jobs()
    base = Path(os.environ["PESTLE_LAB_CACHE"]) / "remote/jobs" / job["id"]
    while not (base / "tree/begun").exists():
        time.sleep(0.05)
    state = json.loads((base / "state.json").read_text())
    for group in (submitted(folder)[0], state["pid"]):
        os.killpg(group, signal.SIGKILL)
    thread.join(60)
    assert "gone without a word" in str(failed[0]) and failed[0].code == errors.TRANSPORT
    assert (folder / "begun").read_text() == "yes"


def test_modal_from_image_to_artifacts(folder, capfd):
    one, said = client(folder, "modal:H100:2", env={"ADDED": "x"})
    assert one.run([], ["-c", SCRIPT]) == 4
    assert "begins x" in capfd.readouterr().out
    assert (folder / "made/r.json").read_text() == "texttext"
    called = json.loads((folder.parent / "state/modal").read_text())
    assert called["gpu"] == "H100:2" and called["timeout"] == 3600
    steps = [step[0] for step in called["image"]]
    assert steps == ["from_registry", "add_local_file", "run_commands", "add_local_dir"]
    assert "fetched made/r.json" in said


def test_modal_says_what_went_wrong(folder, monkeypatch):
    with pytest.raises(errors.LabError, match="modal run ended with 1, and no answer") as found:
        client(folder, "modal:NONE")[0].run([], ["-c", "pass"])
    assert found.value.code == errors.TRANSPORT
    with pytest.raises(errors.LabError, match="keeps no jobs"):
        client(folder, "modal:H100")[0].attach("x")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(errors.LabError, match="modal token new"):
        client(folder, "modal:H100")[0].run(["list"])
