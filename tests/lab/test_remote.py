"""pestle-lab run --on ssh://...: against a real sshd on the loopback address, with connections,
clients and jobs killed in the middle."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from pestle_lab import errors
from pestle_lab.remote import folder as folders
from pestle_lab.remote import installing, jobs, target

HERE = Path(__file__).parent
HEAD = '# kernel: double/{name}\n# language = "python"\nimport torch\n'
COUNT = """
import pathlib, sys, time
pathlib.Path("made").mkdir()
for i in range(25):
    print(i, flush=True)
    pathlib.Path("made/last.txt").write_text(str(i))
    time.sleep(0.1)
sys.exit(7)
"""


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "work"
    root.mkdir()
    (root / "double.problem.py").write_text((HERE / "double.problem.py").read_text())
    (root / "mine.py").write_text(HEAD.format(name="mine") + "def run(out, x): out.copy_(2 * x)\n")
    return root


def client(server, folder, **options):
    """A client, and the list that it says things into."""
    said = []
    own = {"python": sys.executable, "key": server.user, "ssh": server.ssh, "gpu": None}
    return jobs.Client(
        target.parse(server.url), folder, jobs.Options(**own | options), said.append
    ), said


def wait_for(condition, seconds=60.0):
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.05)
    return found


def lab(server, folder, *arguments, code=0):
    done = subprocess.run(
        [sys.executable, "-m", "pestle_lab", "run", *server.options, *arguments],
        cwd=folder, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


def test_check_over_ssh_brings_its_report_back_though_a_kernel_is_wrong(server, folder):
    (folder / "wrong.py").write_text(HEAD.format(name="wrong") + "def run(out, x): out.copy_(x)\n")
    done = lab(
        server, folder, "--gpu", "none", "check", "double/mine", str(folder / "wrong.py"),
        "--case", "M=3 N=5", "--out", "made/r.json", "--json", code=errors.WRONG_RESULT,
    )  # fmt: skip
    report = json.loads((folder / "made/r.json").read_text())
    assert [k["summary"]["passed"] for k in report["kernels"]] == [1, 0]
    assert json.loads(done.stdout) == report
    assert "3 of 3 files sent" in done.stderr and "wrong_result" in done.stderr
    assert list((server.base / "jobs").iterdir()) == []


def test_only_what_changed_is_sent(server, folder, capfd):
    listing = "import pathlib; print(*sorted(str(p) for p in pathlib.Path().rglob('*')))"
    (folder / "tool.sh").write_text(f"#!/bin/sh\n# {folder}\n")
    (folder / "tool.sh").chmod(0o755)
    first, said = client(server, folder)
    assert first.run([], ["-c", listing]) == 0
    assert said[0].startswith(("1 of 3 files", "3 of 3 files"))
    (folder / "mine.py").write_text(f"# other than before: {folder}\n")
    (folder / "tool.sh").rename(folder / "renamed.sh")
    again, said = client(server, folder)
    assert (
        again.run([], ["-c", f"{listing}; import os; print(os.access('renamed.sh', os.X_OK))"]) == 0
    )
    assert said[0].startswith("1 of 3 files")
    assert capfd.readouterr().out.splitlines()[1:] == [
        "double.problem.py mine.py renamed.sh",
        "True",
    ]


def test_a_killed_connection_is_made_anew(server, folder, capfd):
    one, said = client(server, folder)
    code = []
    thread = threading.Thread(target=lambda: code.append(one.run([], ["-c", COUNT])))
    thread.start()
    for _ in range(2):
        before = one.offsets["stdout"]
        wait_for(lambda before=before: one.offsets["stdout"] > before)
        assert server.drop_connections() >= 1
    thread.join(60)
    assert code == [7], said
    assert sum("connection lost" in sentence for sentence in said) >= 2, said
    assert capfd.readouterr().out.split() == [str(i) for i in range(25)]
    assert (folder / "made/last.txt").read_text() == "24"


KILLED = """
import sys
from pathlib import Path
from pestle_lab.remote import jobs, target
url, key, script, *ssh = sys.argv[1:]
options = jobs.Options(python=sys.executable, key=Path(key), ssh=ssh, gpu=None)
client = jobs.Client(target.parse(url), Path.cwd(), options, lambda s: print(s, flush=True))
client.run([], ["-c", script])
"""


def test_a_killed_client_leaves_a_job_that_can_be_attached(server, folder, capfd):
    lost = subprocess.Popen(
        [sys.executable, "-c", KILLED, server.url, str(server.user), COUNT, *server.ssh],
        cwd=folder, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    job = next(line.split()[1] for line in lost.stdout if line.startswith("job "))
    lost.kill()
    lost.wait()
    assert not (folder / "made").exists()
    one, _ = client(server, folder)
    assert job in [j["id"] for j in one.jobs()]
    assert one.attach(job) == 7
    assert capfd.readouterr().out.split() == [str(i) for i in range(25)]
    assert (folder / "made/last.txt").read_text() == "24"
    with pytest.raises(errors.LabError, match=f"no job {job} here"):
        client(server, folder)[0].attach(job)


def test_a_gpu_is_one_jobs_at_a_time(server, folder, capfd, tmp_path):
    go = tmp_path / "go"
    hold = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)"
    shown = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    first, _ = client(server, folder, gpu=3)
    holder = threading.Thread(target=lambda: first.run([], ["-c", hold]))
    holder.start()
    wait_for(lambda: (server.folder / "locks/gpu-3").exists())
    wait_for(lambda: [j for j in first.jobs() if j["state"] == "running"])
    assert client(server, folder, gpu=4)[0].run([], ["-c", shown]) == 0  # the other GPU is free
    waiting = [client(server, folder, gpu=gpu) for gpu in (3, None)]
    threads = [threading.Thread(target=c.run, args=([], ["-c", shown])) for c, _ in waiting]
    for thread in threads:
        thread.start()
    for (_, said), lock in zip(waiting, ("gpu-3", "host"), strict=True):
        wait_for(
            lambda said=said, lock=lock: [
                s for s in said if s.startswith(f"waits for {lock}, which job")
            ]
        )
    assert capfd.readouterr().out.split() == ["4"]
    go.touch()
    for thread in (holder, *threads):
        thread.join(60)
    assert capfd.readouterr().out.split() == ["3"]  # and nothing where there is no GPU


def test_a_cancelled_job_and_a_job_whose_process_is_gone(server, folder):
    script = "import time\nopen('begun', 'w').write('yes')\ntime.sleep(60)"
    one, _ = client(server, folder)
    failed = []

    def run():
        try:
            one.run([], ["-c", script])
        except errors.LabError as error:
            failed.append(error)

    for how, sentence in (("cancel", "ended by --cancel"), ("kill", "gone without a word")):
        thread = threading.Thread(target=run)
        thread.start()
        (job,) = wait_for(lambda: [j for j in one.jobs() if j["state"] == "running"])
        place = server.base / "jobs" / job["id"]
        wait_for((place / "tree/begun").exists)
        if how == "cancel":
            one.cancel(job["id"])
        else:
            state = json.loads((place / "state.json").read_text())
            runner = int(
                Path(f"/proc/{state['pid']}/stat").read_text().rpartition(")")[2].split()[1]
            )
            os.kill(runner, signal.SIGKILL)
            os.killpg(state["pid"], signal.SIGKILL)
        thread.join(60)
        assert sentence in str(failed[-1]) and failed[-1].code == errors.TRANSPORT
        assert (folder / "begun").read_text() == "yes"
        (folder / "begun").unlink()


def test_what_cannot_be_reached_is_said(server, folder, tmp_path):
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(errors.LabError, match=r"has no pestle\[lab\]") as found:
        client(server, folder, python=str(bare))[0].run(["list"])
    assert found.value.code == errors.TRANSPORT
    other = server.folder / "host"  # a key that the server does not know
    with pytest.raises(errors.LabError, match="Permission denied"):
        client(server, folder, key=other)[0].run(["list"])
    closed = jobs.Client(target.parse("ssh://127.0.0.1:1"), folder, jobs.Options(), print)
    with pytest.raises(errors.LabError, match="refused"):
        closed.jobs()


def test_a_machine_without_pestle_gets_it(server, folder):
    """A Python of its own, that has neither; PyTorch and the rest stand elsewhere there."""
    bare = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    elsewhere = Path(typer.__file__).parents[1]
    words = [
        "--install",
        "--gpu",
        "none",
        "--python",
        str(bare),
        "--env",
        f"PYTHONPATH={elsewhere}",
    ]
    for setting in ("PIP_NO_INDEX", "PIP_NO_DEPS", "PIP_DISABLE_PIP_VERSION_CHECK"):
        words += ["--env", f"{setting}=1"]
    done = lab(server, folder, *words, "list")
    assert "Successfully installed pestle" in done.stderr and "double/mine" in done.stdout
    (place,) = (server.base / "venvs").iterdir()
    assert (place / "bin/pestle-lab").exists() and not list((server.base / "jobs").iterdir())
    again = lab(server, folder, *words, "env")  # it is there
    assert "installed" not in again.stderr and "0 of 1 files sent" in again.stderr


def test_what_cannot_be_installed_is_said(server, folder):
    one, _ = client(server, folder, env={"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""})
    wheel = folder / "pestle-9.9-py3-none-win_amd64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("empty", "")
    options = replace(one.options, wheel=wheel)
    with pytest.raises(errors.LabError, match=r"could not be installed there.*Next: ") as found:
        installing.installed(one.target, options, print)
    assert found.value.code == errors.TRANSPORT
    with pytest.raises(errors.LabError, match="not for local"):
        installing.installed(target.parse("local"), options, print)


@pytest.mark.parametrize("text", [
    "ssh://", "ssh://-oProxyCommand=x", "ssh://a@-b", "ssh://a:secret@b", "ssh://a/b", "ssh://a:99999",
    "slurm:", "modal", "slurm:-x", "ftp://a",
])  # fmt: skip
def test_a_target_that_is_none(text):
    with pytest.raises(errors.LabError) as found:
        target.parse(text)
    assert found.value.code == errors.USAGE and "secret" not in str(found.value)


def test_targets():
    assert target.parse("ssh://me@[::1]:2200") == target.Target("ssh", "::1", "me", 2200)
    assert (
        target.parse("slurm:gpu-long").name == "gpu-long"
        and target.parse("modal:H100:8").name == "H100:8"
    )


def test_files_from_there_stay_in_the_folder(folder, tmp_path):
    (folder / "link").symlink_to(tmp_path)
    for name in ("../x", "/tmp/x", "a/../../x", ".git/hooks/post-checkout", "link/x", "link"):
        with pytest.raises(errors.LabError):
            folders.place(folder, name, None)
    assert folders.place(folder, "new/r.json", None) == (folder / "new/r.json", "")
    before = folders.manifest(folder)["mine.py"]["sha256"]
    assert folders.place(folder, "mine.py", before) == (folder / "mine.py", "")
    (folder / "mine.py").write_text("edited while the job ran")
    path, why = folders.place(folder, "mine.py", before)
    assert path == folder / "mine.py.remote" and "changed here" in why


def test_arguments_hold_in_the_jobs_folder(folder):
    here = [
        "check",
        str(folder / "mine.py"),
        "--kernels=.",
        "--case",
        "M=3 N=5",
        "--out",
        "new.json",
    ]
    assert folders.relative_arguments(here, folder) == [
        "check", "mine.py", "--kernels=.", "--case", "M=3 N=5", "--out", "new.json"]  # fmt: skip
    with pytest.raises(errors.LabError, match="lies outside"):
        folders.relative_arguments(["check", "--kernels=../"], folder)
