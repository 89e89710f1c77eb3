"""smoke_deploy.py of a seeded gemv folder, against a real sshd: what comes back from kernels that
fail, and what is said where nothing is reached."""

import json
import os
import signal
import subprocess
import sys

import pytest
from pestle_lab import errors, seeding

KERNELS = """
import os
from kernel_utils.backends import BACKENDS
from nvfp4_reference_kernel import ref_kernel

BACKENDS.register("right", ref_kernel)
BACKENDS.register("wrong", lambda data: data[-1].zero_())
BACKENDS.register("crashes", lambda data: os.abort())
"""
# So that a client can be killed in the middle.
SLOW = """
import time
from kernel_utils.backends import BACKENDS
from nvfp4_reference_kernel import ref_kernel

print("begun", flush=True)
time.sleep(SECONDS)
BACKENDS.register("slow", ref_kernel)
"""


@pytest.fixture
def project(tmp_path):
    seeding.write("gemv", tmp_path / "gemv")
    return tmp_path / "gemv"


def words(server, *arguments, program=("smoke_deploy.py",), **changed):
    """The command's, with those of the server's own options that are not `changed` (None: none)."""
    options = {"ssh": f"127.0.0.1:{server.port}", "ssh_key": server.user, "python": sys.executable,
               "gpu": "none"} | changed  # fmt: skip
    made = [sys.executable, *program]
    for name, value in options.items():
        made += [f"--{name.replace('_', '-')}={value}"] if value is not None else []
    for option in server.ssh:
        made += ["--ssh-option", option]
    return [*made, *arguments]


def deploy(server, project, *arguments, code=0, **changed):
    done = subprocess.run(
        words(server, *arguments, **changed), cwd=project, capture_output=True, text=True,
        timeout=600, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_what_kernels_that_fail_leave_comes_back(server, project):
    (project / "nvfp4_mine.py").write_text(KERNELS)
    (project / "results_remote").mkdir()
    (project / "results_remote/smoke_test_results.json").write_text("of an earlier job")
    done = deploy(
        server, project, "--backends", "right", "wrong", "crashes", "--reference", "right",
        "--save", "--profile", "--no-timing", code=1, gpu="0",
    )  # fmt: skip
    assert done.stdout.count("Correctness: PASS") == 2
    assert done.stdout.count("Correctness: FAIL") == 4 and "reference: right" in done.stdout
    made = json.loads((project / "results_remote/smoke_test_results.json").read_text())
    kinds = {b["backend_name"]: b["correctness_tests"][0]["error_type"] for b in made["backends"]}
    assert kinds == {"right": None, "wrong": "wrong_result", "crashes": "crash"}
    traces = {path.name for path in (project / "profiles_remote").iterdir()}
    assert traces == {f"right_{test}_profile.json" for test in ("tiny_single", "small_batch")}
    assert not (project / "results").exists() and not (project / "profiles").exists()


def test_new_kernels_and_as_a_module(server, project):
    (project / "nvfp4_mine.py").write_text(KERNELS)
    done = deploy(
        server, project, "--new", "right", "--no-timing",
        program=("-m", "kernel_utils.smoke_deploy"),
    )  # fmt: skip
    assert "Backends: reference, right" in done.stdout
    assert not list(project.glob("*_remote"))


def takes_interrupts():
    """Also where the tests run in the background of a shell, which ignores them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def started(server, project, *arguments):
    """A client, and the job that it started."""
    client = subprocess.Popen(
        words(server, *arguments), cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, preexec_fn=takes_interrupts,
    )  # fmt: skip
    job = next(line.split()[2] for line in client.stderr if " job " in line)
    assert client.stdout.readline() == "begun\n"
    return client, job


def test_a_client_that_is_gone(server, project):
    """Ctrl-C says how the job is got, which brings what it wrote to the same places."""
    (project / "nvfp4_mine.py").write_text(SLOW.replace("SECONDS", "5"))
    client, job = started(server, project, "--backends", "slow", "--save", "--no-timing")
    client.send_signal(signal.SIGINT)
    said = client.communicate(timeout=60)[1]
    assert client.returncode == 130 and "Traceback" not in said
    assert f"smoke_deploy.py --ssh 127.0.0.1:{server.port} --attach {job}" in said
    assert "Correctness: PASS" in deploy(server, project, "--attach", job).stdout
    assert (project / "results_remote/smoke_test_results.json").exists()


def test_a_job_that_is_ended(server, project):
    (project / "nvfp4_mine.py").write_text(SLOW.replace("SECONDS", "600"))
    client, job = started(server, project, "--backends", "slow", "--save")
    deploy(server, project, "--cancel", job)
    assert "ended by --cancel" in client.communicate(timeout=60)[1]
    assert client.returncode == errors.TRANSPORT


@pytest.mark.parametrize(("changed", "said", "advice"), [
    ({"ssh": "me@no-such-host.invalid:22"}, "Could not resolve", "correct the host's name"),
    ({"ssh": "127.0.0.1:1"}, "Connection refused", "correct the port"),
    ({"ssh_key": "HOST_KEY"}, "Permission denied", "with --ssh-key FILE"),
    ({"ssh": "localhost:PORT"}, "Host key verification", "compare the key: ssh -p"),
    ({"python": "/nowhere/python3"}, "/nowhere/python3", "with --python PATH"),
    ({"python": "BARE"}, "has no pestle[lab]", "installed with --install"),
], ids=["host", "port", "key", "host key", "python", "package"])  # fmt: skip
def test_what_is_not_reached_says_what_to_do_next(server, project, tmp_path, changed, said, advice):
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    known = {"HOST_KEY": str(server.folder / "host"), "BARE": str(bare)}
    changed = {k: known.get(v, v).replace("PORT", str(server.port)) for k, v in changed.items()}
    done = deploy(server, project, "--save", code=errors.TRANSPORT, **changed)
    assert said in done.stderr and advice in done.stderr, done.stderr
    assert done.stdout == "" and not list(project.glob("*_remote"))


@pytest.mark.parametrize(("changed", "said"), [
    ({"gpu": "x"}, "--gpu x: expected a number"),
    ({"ssh": "-oProxyCommand=x"}, "expected ssh://USER@HOST:PORT"),
    ({"ssh": "me:secret@host"}, "no passwords here"),
    ({"ssh_key": "none.pem"}, "--ssh-key none.pem: there is no such file"),
    ({"ssh": None}, "--ssh"),
], ids=str)  # fmt: skip
def test_wrong_usage(server, project, changed, said):
    done = deploy(server, project, code=errors.USAGE, **changed)
    assert said in done.stderr and "secret" not in done.stderr
