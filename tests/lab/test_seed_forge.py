"""pestle-lab seed forge, and every command of what it writes, each in a process of its own."""

import json
import os
import subprocess
import sys

import pytest

QUICK = ["--warmup", "1", "--iterations", "3"]


def run(folder, *command, code=0, env=None):
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | (env or {}),
    )
    assert done.returncode == code, (command, done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def python(folder, *arguments, **more):
    return run(folder, sys.executable, *arguments, **more)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seed") / "forge"
    python(".", "-m", "pestle_lab", "seed", "forge", str(folder))
    return folder


def test_an_existing_folder_is_left_alone(project):
    done = python(".", "-m", "pestle_lab", "seed", "forge", str(project), code=2)
    assert "not an empty folder" in done.stderr
    done = python(".", "-m", "pestle_lab", "seed", "nothing", str(project / "new"), code=2)
    assert "forge" in done.stderr


def test_env_check(project):
    assert "is right" in python(project, "-m", "forge_cute_py.env_check").stdout


def test_smoke_suite(project):
    arguments = ["bench/run.py", "--suite", "smoke", "--out", "results.json", *QUICK]
    assert "copy_transpose 1024 x 1024" in python(project, *arguments).stdout
    made = json.loads((project / "results.json").read_text())
    assert [c["op"] for c in made["cases"]] == [
        "copy_transpose", "reduce", "reduce_sum", "softmax_online"
    ]  # fmt: skip
    assert made["suite"] == "smoke" and made["env"]["torch_version"]
    for case in made["cases"]:
        assert case["status"] == "ok" and set(case["times_ms"]) == {"mean_ms", "p50_ms", "p90_ms"}
        assert case["bandwidth_gbps"] > 0


def test_the_benchmarks_are_a_package(project):
    """As `python -m bench.run`; a suite's own counts, and lists that are no numbers."""
    done = python(project, "-m", "bench.run", "--op", "softmax_online", *QUICK)
    assert "softmax_online 256 x 2048" in done.stdout and "reduce" not in done.stdout
    done = python(project, "-m", "bench.benchmark_reduce", "--m-sizes", "8,x", code=2)
    assert "is no list of numbers" in done.stderr


def test_a_kernel_that_is_wrong_ends_with_4(project, tmp_path):
    """As it would be after an edit: the smoke suite says so, and gives no time."""
    copy = tmp_path / "copy"
    run(".", "cp", "-r", str(project), str(copy))
    kernel = copy / "forge_cute_py/kernels/reduce.py"
    kernel.write_text(kernel.read_text() + "    out.mul_(1.5)\n")
    (copy / "own.yaml").write_text(
        "suites:\n"
        "  mine: {cases: [{op: reduce_sum, shape: [[4, 8], 16], dtype: float32}]}\n"
        "  other: {cases: [{op: copy_transpose, shape: [5, 6], dtype: float32, tile_size: 7}]}\n"
    )
    arguments = ["bench/run.py", "--suites", "own.yaml", "--out", "r.json", *QUICK]
    python(copy, *arguments, "--suite", "mine", code=4)
    cases = json.loads((copy / "r.json").read_text())["cases"]
    assert [c["status"] for c in cases] == ["wrong_result"] * 2 and "times_ms" not in cases[0]
    done = python(copy, *arguments, "--suite", "other", code=5)
    assert "tile_size is 7" in done.stdout
    done = python(copy, *arguments, "--suite", "mine", "--op", "reduce", code=2)
    assert "has no case of reduce" in done.stderr


@pytest.mark.parametrize("arguments", [
    ["benchmark_copy_transpose.py", "--m", "64", "--n", "96", "--tile-size", "32"],
    ["benchmark_reduce.py", "--m-sizes", "8,16", "--n-sizes", "64", "--dtypes", "float32,float16",
     "--dims", "-1", "0", "--no-compile"],
    ["benchmark_online_softmax.py", "--backend", "ref", "--m-sizes", "8", "--n-sizes", "64"],
    ["benchmark_online_softmax.py", "--backend", "kernel", "--m-sizes", "2", "--long"],
], ids=lambda a: " ".join(a[:3]))  # fmt: skip
def test_benchmarks(project, arguments):
    name, *rest = arguments
    assert "GB/s" in python(project, f"bench/{name}", *rest, *QUICK).stdout


def test_what_is_missing_is_said(project):
    done = python(project, "bench/benchmark_online_softmax.py", "--backend", "none", code=2)
    assert "Unknown softmax_online backend 'none'" in done.stderr
    blocked = {
        "PYTHONPATH": os.pathsep.join([str(project / "none"), os.environ.get("PYTHONPATH", "")])
    }
    (project / "none").mkdir(exist_ok=True)
    (project / "none/modal.py").write_text("raise ModuleNotFoundError('blocked')\n")
    done = python(project, "bench/modal_bench.py", "--suite", "smoke", code=1, env=blocked)
    assert "modal is not installed" in done.stderr


def test_its_own_tests_pass(project):
    assert "passed" in python(project, "-m", "pytest", "-q").stdout


def fake_tool(folder, name):
    """Stands for a profiler: says how it was called, and runs the command."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text('#!/bin/sh\necho "called $0 $*"\nfor last; do :; done\nexit ${FAKE_CODE:-0}\n')
    path.chmod(0o755)


@pytest.mark.parametrize(("tool", "program", "default"), [
    ("ncu", "ncu", "--set full"),
    ("nsys", "nsys", "profile"),
    ("sanitizer", "compute-sanitizer", "--tool memcheck --error-exitcode 11"),
])  # fmt: skip
def test_profile_script(project, tmp_path, tool, program, default):
    script = str(project / "scripts/profile.sh")
    base = tmp_path / "base"
    base.mkdir()
    for needed in ("bash", "sed", "date", "mkdir", "dirname", "cat", "env", "sh"):
        found = run(".", "sh", "-c", f"command -v {needed}").stdout.strip()
        (base / needed).symlink_to(found)
    done = run(project, script, tool, "--", "true", code=9, env={"PATH": str(base)})
    assert f"{program} is not installed" in done.stderr
    fake_tool(tmp_path / "tools", program)
    there = {"PATH": f"{tmp_path / 'tools'}:{base}", "FAKE_CODE": "7"}
    # The sanitizer's log is the tool's own file, which this one does not write.
    code = 7 if tool != "sanitizer" else 1
    done = run(project, script, tool, "--option", "--", "mine", "x", code=code, env=there)
    called = done.stdout
    assert default in called and "--option" in called and called.rstrip().endswith("mine x")
    assert f"profiles/{tool}_" in called


def test_profile_script_s_usage(project):
    script = str(project / "scripts/profile.sh")
    for wrong in (["perf", "--", "true"], ["ncu", "true"], ["nsys", "--extract", "--", "true"], []):
        run(project, script, *wrong, code=2)


def test_ncu_extract(project, tmp_path):
    table = tmp_path / "r.csv"
    table.write_text(
        '"ID","Kernel Name","gpu__time_duration.sum","lts__t_sector_hit_rate.pct",'
        '"smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",'
        '"smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio"\n'
        '"","","us","%","",""\n"0","mine(int)","12.5","40.0","0.5","3.5"\n'
    )
    done = python(project, "scripts/ncu_extract.py", str(table), "--json", "--kernel", "mine")
    assert json.loads(done.stdout) == [
        {"kernel": "mine(int)", "time": "12.5 us", "L2 hits, %": "40.0 %",
         "top stalls": "long_scoreboard, barrier"}
    ]  # fmt: skip
    python(project, "scripts/ncu_extract.py", str(table), "--kernel", "other", code=1)


INSTALLED = """
import pestle.compat, torch
first = pestle.compat.install_forge()
import forge_cute_py
from forge_cute_py import ops, ref
from forge_cute_py.util.autotuner import AutotuneConfig, Autotuner
from forge_cute_py.ops.softmax_online import softmax_fwd
assert pestle.compat.install_forge() is first is forge_cute_py
assert ops.get_softmax_online_backend() == "ref"
assert ops.list_softmax_online_backends() == ("ref", "kernel")
x = torch.randn(6, 20)
out = torch.full((20, 6), torch.nan)
assert torch.ops.forge_cute_py._copy_transpose(x, out, 32) is None
assert torch.equal(out, x.mT)
row = torch.full((6,), torch.nan)
torch.ops.forge_cute_py._reduce(x, row, -1, "max")
assert torch.equal(row, x.amax(1))
torch.ops.forge_cute_py._reduce_sum(x, row, 1)
torch.testing.assert_close(row, x.sum(1))
y, dx = torch.empty_like(x), torch.empty_like(x)
for backend in ("ref", "kernel"):
    ops.set_softmax_online_backend(backend)
    torch.ops.forge_cute_py._softmax_fwd(x, y, -1)
    torch.testing.assert_close(y, torch.softmax(x, -1))
    torch.ops.forge_cute_py._softmax_backward(x, y, dx, -1)
    torch.testing.assert_close(dx, ref.softmax_backward(x, y))
calls = []
ops.register_softmax_online_backend(
    "kernel", lambda x, dim: calls.append(1) or torch.softmax(x, dim), overwrite=True)
ops.softmax_online(x)
assert calls == [1], "a kernel that was replaced is not the one that runs"
def work(x, scale, *, steps):
    for _ in range(steps):
        x = x * scale
    return x
tuned = Autotuner(work, ["x"], [AutotuneConfig(str(n), {"steps": n}) for n in (400, 1)])
assert tuned.choose(x, 1.0).kwargs == {"steps": 1}
assert Autotuner(work, ["x"], tuned.configs).choose(x, 2.0).kwargs == {"steps": 1}
from forge_cute_py import kernels
for wrong in ("cuda", "cute"):
    try: kernels.use(wrong); ops.copy_transpose(x)
    except ValueError as error: assert wrong in str(error) or "on a GPU" in str(error), error
    else: raise SystemExit(f"{wrong} was taken")
kernels.use("pestle")
from importlib import import_module
ran, before = [], kernels.rung
def ladder(name, *tensors):
    assert all(t.is_contiguous() for t in tensors), name
    def run(out, *given):
        assert all(t.is_contiguous() for t in given if isinstance(t, torch.Tensor)), name
        ran.append(name), out.zero_()
    return run
modules = [import_module(f"forge_cute_py.kernels.{name}")
           for name in ("copy_transpose", "reduce", "softmax_online")]
for module in modules: module.rung = ladder
ops.register_softmax_online_backend(
    "kernel", modules[2].softmax, modules[2].softmax_backward, overwrite=True)
leaf = torch.randn(4, 8, requires_grad=True)
ops.copy_transpose(x), ops.reduce(x), ops.reduce_sum(x), ops.softmax_online(leaf).sum().backward()
torch.ops.forge_cute_py._copy_transpose(x, out, 16)
assert ran == ["copy_transpose_vectors", "reduce_vectors", "reduce_vectors", "softmax_registers",
               "softmax_backward_registers", "copy_transpose_vectors"], ran
for module in modules: module.rung = before
for dim in (0, 1):
    for call in (ops.softmax_online, ref.softmax_online, softmax_fwd):
        try: call(x, dim)
        except ValueError as error: assert "expects dim=-1" in str(error), error
        else: raise SystemExit(f"{call} took dim {dim}")
try: ops.set_softmax_online_backend("missing_backend")
except ValueError as error: assert "Unknown softmax_online backend" in str(error), error
assert tuned._question((x,), {}) != tuned._question((x.double(),), {})
print("all well")
"""


def test_install_forge(tmp_path):
    done = python(tmp_path, "-c", INSTALLED, env={"FORGE_CUTE_PY_CACHE_DIR": str(tmp_path / "c")})
    assert "all well" in done.stdout
    assert len(list((tmp_path / "c").glob("*.json"))) == 1


def test_install_forge_does_not_take_a_name_that_is_taken(tmp_path):
    (tmp_path / "forge_cute_py.py").write_text("")
    text = "import forge_cute_py, pestle.compat as c\ntry: c.install_forge()\nexcept RuntimeError as e: print(e)"  # noqa: E501
    assert "imported already" in python(tmp_path, "-c", text).stdout
