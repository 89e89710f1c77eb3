"""pestle-lab sanitize and profile. No GPU and none of NVIDIA's programs is needed: stubs stand in
their place, which say how they were called and run the command that they were given."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from pestle_lab import checking, errors, kernels, options, problems, seeding
from pestle_lab.engine import cases
from pestle_lab.profiling import command, ncu, profilers, sanitizer

HERE = Path(__file__).parent
HEAD = '# kernel: double/{name}\n# language = "python"\n'
# Runs what follows its options, the first word of which is Python.
STUB = """\
#!{python}
import json, os, pathlib, subprocess, sys
words = sys.argv[1:]
with open(os.environ["STUB_LOG"], "a") as log:
    log.write(json.dumps([pathlib.Path(sys.argv[0]).name, words, dict(os.environ)]) + "\\n")
if "--import" in words:
    print(pathlib.Path(os.environ["STUB_CSV"]).read_text())
    sys.exit()
if said := os.environ.get("STUB_SAYS"):
    print(said)
    sys.exit(1)
code = subprocess.run(words[words.index({python!r}):]).returncode
for i, word in enumerate(words):
    if word == "--export":
        pathlib.Path(words[i + 1]).touch()
    if word.startswith("--output="):
        pathlib.Path(word.partition("=")[2]).touch()
    if word.startswith("--log-file="):
        text = os.environ["STUB_FINDS"]
        pathlib.Path(word.partition("=")[2]).write_text(text)
        code = 86 if " at " in text else code
sys.exit(code)
"""
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
MEMCHECK = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at double_kernel(float *, int)+0x70 in mine.cu:12
=========     by thread (31,0,0) in block (0,0,0)
=========
========= Invalid __global__ write of size 4 bytes
=========     at double_kernel(float *, int)+0x70 in mine.cu:12
=========
========= ERROR SUMMARY: 2 errors
"""
RACECHECK = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at reduce(float *)+0x90 in mine.cu:30
=========     and Read access at reduce(float *)+0xb0 in mine.cu:31 [992 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """A folder with a problem and kernels, and the stubs on the PATH."""
    (tmp_path / "double.problem.py").write_text((HERE / "double.problem.py").read_text())
    (tmp_path / "mine.py").write_text(
        HEAD.format(name="mine") + "def run(out, x): out.copy_(2 * x)\n"
    )
    (tmp_path / "wrong.py").write_text(
        HEAD.format(name="wrong") + "def run(out, x): out.copy_(x)\n"
    )
    stubs = tmp_path / "bin"
    stubs.mkdir()
    for name in ("ncu", "nsys", "compute-sanitizer"):
        (stubs / name).write_text(STUB.format(python=sys.executable))
        (stubs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{stubs}:{os.environ['PATH']}")
    monkeypatch.setenv("STUB_LOG", str(tmp_path / "calls"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def called(bench) -> list:
    return [json.loads(line) for line in (bench / "calls").read_text().splitlines()]


def sanitized(bench, name, tools, **more):
    return command.sanitized(
        kernels.get(f"{name}.py", []), problems.get("double", [bench]), ["M=3 N=5", "M=8 N=64"],
        tools, "cpu", bench / "found", folders=[bench], seed=1, timeout=60, as_json=False,
        path=bench / "r.json", **more,
    )  # fmt: skip


def test_findings_end_with_11_and_are_in_the_report(bench, monkeypatch, capfd):
    monkeypatch.setenv("STUB_FINDS", MEMCHECK)
    assert sanitized(bench, "mine", ["memcheck"]) == errors.SANITIZER
    (made,) = json.loads((bench / "r.json").read_text())["kernels"]
    found = made["sanitizer"]["memcheck"]
    assert found["findings"] == 2 and "mine.cu:12" in found["first"]
    assert Path(found["log"]).read_text() == MEMCHECK
    counts = {name: made["summary"][name] for name in ("passed", "unsupported", "failed")}
    assert counts == {"passed": 2, "unsupported": 0, "failed": 0}
    ((program, words, environment),) = called(bench)
    assert program == "compute-sanitizer" and "--tool=memcheck" in words
    assert {"--error-exitcode=86", "--target-processes=all"} < set(words)
    assert environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] == "1"
    assert "mine.cu:12" in capfd.readouterr().err


def test_a_clean_tool_and_a_wrong_kernel_end_with_4(bench, monkeypatch):
    monkeypatch.setenv("STUB_FINDS", CLEAN)
    assert sanitized(bench, "wrong", ["synccheck"]) == errors.WRONG_RESULT


def test_a_tool_that_fails_is_no_clean_tool(bench, monkeypatch):
    monkeypatch.setenv("STUB_SAYS", "no device that it knows")
    with pytest.raises(errors.LabError, match="ended with 1: no device that it knows") as found:
        sanitized(bench, "mine", ["memcheck"])
    assert found.value.code == errors.CRASH


def test_what_sanitizers_print(tmp_path):
    race = sanitizer.read("racecheck", RACECHECK, tmp_path)
    assert race.findings == 1 and "mine.cu:30" in race.first and "mine.cu:31" in race.first
    assert sanitizer.read("memcheck", CLEAN, tmp_path).json() == {
        "findings": 0, "first": "", "log": str(tmp_path)}  # fmt: skip
    assert sanitizer.read("memcheck", "========= COMPUTE-SANITIZER\n", tmp_path) is None
    every = ("mine.py", list(sanitizer.TOOLS))
    assert sanitizer.chosen(["mine.py"]) == sanitizer.chosen(["all", "mine.py"]) == every
    racecheck = ("mine.py", ["racecheck"])
    assert sanitizer.chosen(["racecheck", "mine.py"]) == racecheck
    assert sanitizer.chosen(["mine.py", "racecheck", "racecheck"]) == racecheck
    for words in (["leak", "mine.py"], ["memcheck"]):
        with pytest.raises(errors.LabError, match="takes one kernel, and not"):
            sanitizer.chosen(words)


def table(**metrics) -> str:
    names = ["ID", "Kernel Name", *metrics]
    units = ["", "", *("" for _ in metrics)]
    values = ["0", "double_kernel", *metrics.values()]
    lines = [",".join(f'"{cell}"' for cell in row) for row in (names, units, values)]
    return "==PROF== noise\n" + "\n".join(lines) + "\n"


BAD = {
    "gpu__time_duration.sum": "12,345",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "12.5",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": "31",
    "dram__bytes_read.sum": "2,000,000",
    "dram__bytes_write.sum": "1,000,000",
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct": "12.5",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": "3200",
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": "100",
    ncu.CONFLICTS: "50",
    ncu.WAVEFRONTS: "100",
    "smsp__inst_executed_op_local_ld.sum": "64",
    "sm__maximum_warps_per_active_cycle_pct": "12.5",
    "launch__occupancy_limit_registers": "2",
    "launch__occupancy_limit_warps": "16",
    "launch__waves_per_multiprocessor": "1.1",
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": "7.5",
}


def test_ncu_is_read_into_sentences_and_a_checklist():
    (bad,) = ncu.launches(table(**BAD), 1_000_000)
    assert bad.figures["time, ns"] == 12345 and bad.figures["bytes moved / bytes declared"] == 3
    assert bad.figures["sectors of a request, loads"] == 32
    expected = (
        "3.00 times the bytes",
        "neighbouring lanes",
        "bank conflicts are 50 %",
        "64 instructions access local memory",
        "limited by registers",
        "1.10 waves",
        "neither memory nor maths",
        "long_scoreboard 7.50: waits for memory",
    )
    for words in expected:
        assert any(words in sentence for sentence in bad.findings), words
    assert bad.checklist["stores use whole sectors"] is None
    assert [item for item, good in bad.checklist.items() if good] == ["fills the GPU"]
    busy = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
    moved = {"dram__bytes_read.sum": "600000", "dram__bytes_write.sum": "400000"}
    good = BAD | moved | {busy: "91"}
    (made,) = ncu.launches(table(**good), 1_000_000)
    assert made.checklist["near a limit"] and made.checklist["moves no more bytes than the problem"]
    with pytest.raises(errors.LabError, match="profiled no kernel"):
        ncu.launches("==WARNING== No kernels were profiled.\n", 1)


def profiled(bench, tool, name="mine", more=()):
    return command.profiled(
        tool, kernels.get(f"{name}.py", []), problems.get("double", [bench]), "M=3 N=5", "cpu",
        bench / "profiles", "full", list(more), folders=[bench], seed=1, timeout=60, as_json=True,
    )  # fmt: skip


def test_profile_ncu(bench, monkeypatch, capfd):
    (bench / "table.csv").write_text(table(**BAD))
    monkeypatch.setenv("STUB_CSV", str(bench / "table.csv"))
    assert profiled(bench, "ncu", more=["--launch-count=1"]) == errors.OK
    made = json.loads(capfd.readouterr().out)
    assert made["case"]["status"] == "ok" and made["launches"][0]["kernel"] == "double_kernel"
    (_, words, _), (_, read, _) = called(bench)
    joined = " ".join(words)
    for part in ("--nvtx --nvtx-include kernel/", "--clock-control none", "--set full",
                 "--import-source 1", "--launch-count=1"):  # fmt: skip
        assert part in joined
    assert read[:2] == ["--import", made["files"][0]] and "--print-units" in read
    monkeypatch.setenv("STUB_SAYS", "==ERROR== ERR_NVGPUCTRPERM - no permission")
    with pytest.raises(errors.LabError, match="SYS_ADMIN") as found:
        profiled(bench, "ncu")
    assert found.value.code == errors.UNSUPPORTED
    assert not Path(made["files"][0]).exists(), "an old report passes for a new one"


def test_profile_nsys_judges_what_was_written(bench, capfd):
    assert profiled(bench, "nsys", "wrong") == errors.WRONG_RESULT
    assert json.loads(capfd.readouterr().out)["files"] == [
        str(bench / "profiles/double_wrong_nsys.nsys-rep")
    ]
    ((_, words, _),) = called(bench)
    assert words[0] == "profile" and "--trace=cuda,nvtx,osrt" in words and "--stats=true" in words
    assert not any(word.startswith("--capture-range") for word in words), "there is no CUDA here"


def test_profile_torch_and_what_is_missing(bench, monkeypatch):
    def lab(*arguments, code=0):
        done = subprocess.run([sys.executable, "-m", "pestle_lab", *arguments],
                              capture_output=True, text=True)  # fmt: skip
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    made = json.loads(lab("profile", "torch", "mine.py", "--json", "--device", "cpu").stdout)
    assert json.loads(Path(made["files"][0]).read_text())["traceEvents"]
    assert "aten::mul" in [row["name"] for row in made["rows"]]
    with pytest.raises(errors.LabError, match="would run on cpu") as found:
        command.sanitize(["mine.py"], device="cpu")
    assert found.value.code == errors.UNSUPPORTED
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("CUDA_HOME", "/nonexistent")
    for tool in ("ncu", "nsys"):
        with pytest.raises(errors.LabError, match=f"{tool} is not installed: Nsight") as found:
            profilers.calls.program(tool, profilers._WHERE[tool])
        assert found.value.code == errors.UNSUPPORTED


RUNGS = kernels.find([kernels.BUILT_IN])


@pytest.mark.parametrize("name", RUNGS)
def test_what_is_called_where_no_case_is_named_is_one_that_the_kernel_takes(name):
    """Rungs in CUDA C++ take f32, which is not the first case's dtype."""
    kernel, problem = RUNGS[name], problems.get(RUNGS[name].problem, [])
    text = options.text_to_profile(kernel, problem)
    assert not checking.out_of_domain(kernel, cases.make(problem, text))
    assert text in problem.suites["performance"]
    texts, suite = options.texts_to_check(kernel, problem, "smoke")
    assert any(not checking.out_of_domain(kernel, cases.make(problem, t)) for t in texts)
    assert (suite == "smoke") == (texts == problem.cases("smoke"))
    assert options.texts_to_check(kernel, problem, "performance")[1] == "performance"
    assert options.texts_to_check(kernel, problem, "smoke", ["x"]) == (["x"], "smoke")


def test_a_kernel_that_takes_nothing_says_why(bench):
    (bench / "f16.py").write_text(
        HEAD.format(name="f16") + '# dtypes = ["f16"]\n' + "def run(out, x): out.copy_(2 * x)\n"
    )
    kernel, problem = kernels.get("f16.py", []), problems.get("double", [bench])
    why = "the kernel takes f16"
    with pytest.raises(errors.LabError, match=f"nothing was called.*{why}") as found:
        options.text_to_profile(kernel, problem)
    assert found.value.code == errors.UNSUPPORTED
    assert options.texts_to_check(kernel, problem, "smoke") == (problem.cases("smoke"), "smoke")
    with pytest.raises(errors.LabError, match=f"nothing was called.*{why}"):
        sanitized(bench, "f16", ["memcheck"])


def test_analyze_ncu(tmp_path, monkeypatch, capsys):
    script = str(seeding.TEMPLATES / "gemv/analyze_ncu.py")
    (tmp_path / "a.csv").write_text(table(**BAD))
    (tmp_path / "b.csv").write_text(table(**BAD | {"gpu__time_duration.sum": "999"}))
    monkeypatch.chdir(tmp_path)

    def analyze(*arguments, code=0) -> str:
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(script, run_name="__main__")
        assert ended.value.code == code
        return capsys.readouterr()

    shown = analyze("a.csv", "b.csv", "--compare", "--output", "both.csv").out
    (line,) = [line for line in shown.splitlines() if line.startswith("time, ns")]
    assert line.split()[-2:] == ["12345", "999"]
    assert "a: double_kernel,b: double_kernel" in (tmp_path / "both.csv").read_text()
    assert "- global loads use 12 % of what they fetch" in analyze("a.csv").out
    assert "no file c.csv" in analyze("c.csv", code=errors.USAGE).err
