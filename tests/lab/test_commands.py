"""pestle-lab as a user calls it: exit codes, JSON, HTML, compiled kernels, gpu-mode submissions."""

import contextlib
import csv
import io
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from pestle_lab import app, checking, errors, kernels, options, problems
from pestle_lab.engine import cases
from schema import published

HERE = Path(__file__).parent
HEAD = '# kernel: double/{name}\n# language = "python"\nimport torch\n'
HONEST = HEAD.format(name="mine") + "def run(out, x):\n    torch.mul(x, 2, out=out)\n"
COMPILED = """\
// kernel: double/compiled
// language = "cpp"
// arguments = ["out", "x", "M", "x.size1", "x.numel", "stream"]
// dtypes = ["f32"]
// constraints = ["memory contiguous|offset"]
#include <cstdint>
extern "C" int run(float* out, const float* x, int64_t m, int64_t n, int64_t count, void*) {
  if (m * n != count) return 7;
  for (int64_t i = 0; i < m * n; ++i) out[i] = 2 * x[i];
  return 0;
}
"""
SUBMISSION = """\
#!POPCORN leaderboard nvfp4_gemv
import torch

TABLE = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6])


def decode(codes, scales):
    codes = codes.view(torch.uint8).permute(2, 0, 1).int()
    values = torch.stack((TABLE[codes & 15], TABLE[codes >> 4]), -1).flatten(-2)
    return values * scales.permute(2, 0, 1).float().repeat_interleave(16, -1)


def custom_kernel(data):
    a, b, sfa, sfb, _, _, c = data
    c.copy_((decode(a, sfa).double() @ decode(b[:1], sfb[:1]).double().mT).permute(1, 2, 0))
    return c
"""


def lab(folder: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess:
    """The command as `pestle-lab` runs it, but in this process, which has imported PyTorch."""
    words = ["pestle-lab", *arguments]
    if arguments[0] not in ("report", "history", "env", "sol", "new"):
        words += ["--kernels", str(folder)]
    said, complained, before = io.StringIO(), io.StringIO(), (sys.argv, Path.cwd())
    try:
        sys.argv = words
        os.chdir(folder)
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complained):
            app.main()
    except SystemExit as end:
        done = subprocess.CompletedProcess(words, end.code, said.getvalue(), complained.getvalue())
    finally:
        sys.argv = before[0]
        os.chdir(before[1])
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


@pytest.fixture
def folder(tmp_path):
    """A user's folder: a problem and a kernel."""
    (tmp_path / "double.problem.py").write_text((HERE / "double.problem.py").read_text())
    (tmp_path / "mine.py").write_text(HONEST)
    return tmp_path


def test_list_names_what_is_there(folder):
    found = json.loads(lab(folder, "list", "--json").stdout)
    assert "double" in found["problems"] and "nvfp4_gemv" in found["problems"]
    assert "double/mine" in [k["name"] for k in found["kernels"]]


def test_nothing_slow_is_imported_before_the_kernel_s_process_is_started():
    """Both import PyTorch, for seconds, and at the same time."""
    text = "import sys, pestle_lab.start; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", text], check=True)


def test_the_process_that_was_started_first_is_the_one_that_is_used(folder):
    from pestle_lab.engine import child

    child.prepare()
    (started,) = child._spare
    lab(folder, "check", "double/mine")
    assert child._spare == [] and started.process.poll() is not None
    assert not Path(started.folder.name).exists()


LEAVES_A_CHILD = """
from pestle_lab.engine import child
print(child.take().process.pid)
"""


def test_a_kernel_s_process_does_not_outlive_its_parent():
    done = subprocess.run([sys.executable, "-c", LEAVES_A_CHILD], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


def test_check_writes_a_report(folder):
    lab(folder, "check", "double/mine", "--suite", "all", "--out", "r.json", "--html", "r.html")
    report = json.loads((folder / "r.json").read_text())
    published(report)
    assert report["exit_code"] == 0 and report["kernels"][0]["summary"]["failed"] == 0
    first = report["kernels"][0]["cases"][0]
    assert first["correctness"]["checks"]["new values at the same addresses"] == "ok"
    _assert_self_contained((folder / "r.html").read_text())


def _assert_self_contained(page: str) -> None:
    class Parser(HTMLParser):
        open: list[str] = []  # noqa: RUF012

        def handle_starttag(self, tag, attributes):
            for key, value in attributes:
                assert key not in ("src", "href"), (tag, key, value)
            if tag not in ("meta", "br", "polyline", "circle", "rect"):
                self.open.append(tag)

        def handle_endtag(self, tag):
            if tag in self.open:
                while self.open.pop() != tag:
                    pass

    parser = Parser()
    parser.open = []
    parser.feed(page)
    assert parser.open == [], "tags that are not closed"


def test_exit_codes(folder):
    (folder / "wrong.py").write_text(HEAD.format(name="wrong") + "def run(out, x): out.copy_(x)\n")
    (folder / "broken.py").write_text(HEAD.format(name="broken") + "def run(out, x): 1 / 0\n")
    done = lab(folder, "check", "double/wrong", code=errors.WRONG_RESULT)
    assert "again: --case" in done.stderr
    lab(folder, "check", "double/broken", code=errors.CRASH)
    lab(folder, "check", "double/wrong", "double/broken", code=errors.WRONG_RESULT)
    lab(folder, "check", "double/mine", "--case", "M=two N=3", code=errors.USAGE)
    lab(folder, "check", "double/mine", "--case", "M=2 N=3 x=f64", code=errors.USAGE)


@pytest.mark.parametrize("name", kernels.find([kernels.BUILT_IN]))
def test_a_plain_check_of_a_shipped_kernel_checks_something(name):
    """Rungs take f32 and two dimensions alone; smoke's few cases may have neither."""
    kernel = kernels.find([kernels.BUILT_IN])[name]
    problem = problems.get(kernel.problem, [])
    texts, _ = options.texts_to_check(kernel, problem, "smoke")
    assert any(not checking.out_of_domain(kernel, cases.make(problem, text)) for text in texts)


def test_a_compiled_kernel(folder, monkeypatch):
    (folder / "compiled.cpp").write_text(COMPILED)
    lab(folder, "check", "double/compiled", "--case", "M=3 N=5", "--case", "M=3 N=5 memory=offset")
    done = lab(
        folder,
        "check",
        "double/compiled",
        "--case",
        "M=3 N=5 memory=strided",
        code=errors.UNSUPPORTED,
    )
    assert "nothing was checked" in done.stderr
    (folder / "compiled.cpp").write_text(COMPILED.replace("return 0;", "return zero;"))
    done = lab(folder, "check", "double/compiled", code=errors.COMPILE_ERROR)
    assert "zero" in done.stderr
    monkeypatch.setenv("CXX", "no-such-compiler")
    done = lab(folder, "build", "double/compiled", code=errors.UNSUPPORTED)
    assert "no C++ compiler no-such-compiler: install g++" in done.stderr


def test_bench_keeps_a_history_and_compare_gives_a_verdict(folder):
    slow = HONEST.replace("double/mine", "double/slow") + "    __import__('time').sleep(0.05)\n"
    (folder / "slow.py").write_text(slow)
    lab(
        folder,
        "bench",
        "double/mine",
        "--seconds",
        "0.3",
        "--mode",
        "warm",
        "--out",
        "r.json",
        "--history",
        "h.jsonl",
        "--baseline",
        "double/slow",
    )
    report = json.loads((folder / "r.json").read_text())
    published(report)
    beside = report["kernels"][0]["cases"][0]["baseline"]
    assert beside["name"] == "double/slow" and beside["verdict"] == "FASTER"
    summary = report["kernels"][0]["summary"]
    assert summary["geomean_ratio"] == beside["ratio"] < 0.5
    assert summary["geomean_pct_sol"] > 0
    case = report["kernels"][0]["cases"][0]
    assert case["timing"]["warm"]["median_us"] > 0
    assert case["correctness"]["checks"]["after timing"] == "ok"
    assert len((folder / "h.jsonl").read_text().splitlines()) == 1
    lab(folder, "report", "r.json", "--html", "r.html", "--csv", "r.csv", "--markdown", "r.md")
    _assert_self_contained((folder / "r.html").read_text())
    (row,) = csv.DictReader((folder / "r.csv").read_text().splitlines())
    assert float(row["median µs"]) == pytest.approx(case["timing"]["warm"]["median_us"], abs=1e-3)
    assert row["kernel"] == "double/mine" and row["mode"] == "warm" and row["status"] == "ok"
    assert (folder / "r.md").read_text().splitlines()[-1].startswith("| double/mine | M=256 N=1024")
    assert row["median µs"] in lab(folder, "report", "r.json").stdout
    done = lab(
        folder,
        "compare",
        "double/mine",
        "double/slow",
        "--seconds",
        "0.5",
        "--mode",
        "warm",
        "--fail-if-slower",
        "--out",
        "c.json",
        "--html",
        "c.html",
        code=errors.REGRESSION,
    )
    assert "SLOWER" in done.stderr and "geometric mean: B takes" in done.stderr
    both = json.loads((folder / "c.json").read_text())
    published(both)
    assert [k["name"] for k in both["kernels"]] == ["double/mine", "double/slow"]
    assert both["exit_code"] == errors.REGRESSION
    assert both["kernels"][1]["summary"]["geomean_ratio"] > 2
    page = (folder / "c.html").read_text()
    _assert_self_contained(page)
    assert "double/slow beside double/mine" in page and "SLOWER" in page


def test_geometric_means_are_in_tables(folder):
    cases = ["--case", "M=4 N=64", "--case", "M=64 N=300"]
    done = lab(
        folder, "bench", "double/mine", *cases, "--seconds", "0.1", "--mode", "warm",
        "--out", "r.json",
    )  # fmt: skip
    report = json.loads((folder / "r.json").read_text())
    shares = [c["throughput"]["share_of_measured_limit"] for c in report["kernels"][0]["cases"]]
    mean = report["kernels"][0]["summary"]["geomean_pct_sol"]
    assert mean == pytest.approx(100 * (shares[0] * shares[1]) ** 0.5, rel=1e-2)
    assert "geometric mean" in done.stderr and "aten::mul" in done.stderr.split("launched: ")[1]
    assert "geometric mean" in lab(folder, "report", "r.json").stdout


def test_a_submission_runs_as_it_is(folder):
    (folder / "sub.py").write_text(SUBMISSION)
    lab(folder, "check", "nvfp4_gemv/sub")
    (folder / "sub.py").write_text(SUBMISSION.replace("return c", "return c.clone()[:0]"))
    done = lab(folder, "check", "nvfp4_gemv/sub", code=errors.WRONG_RESULT)
    assert "wrong_shape" in done.stderr and "custom_kernel returned" in done.stderr
    (folder / "sub.py").write_text(SUBMISSION.replace("return c", "return c.float()"))
    done = lab(folder, "check", "nvfp4_gemv/sub", code=errors.WRONG_RESULT)
    assert "wrong_dtype" in done.stderr


@pytest.mark.parametrize("kernel", ["nvfp4_gemv/torch", "nvfp4_gemv/triton", "nvfp4_gemv/pestle"])
def test_shipped_kernels_are_right(folder, kernel):
    lab(folder, "check", kernel, "--suite", "smoke", "--device", "cpu")


def test_the_page_s_ladders_are_the_shipped_kernels():
    page = (HERE.parents[1] / "docs/site/lab.md").read_text()
    part = page.split("## Ladders")[1].split("## A problem")[0]
    listed = set()
    for row in part.splitlines():
        if row.startswith("| `"):
            problem, *variants = row.split("`")[1::2]
            listed |= {f"{problem}/{variant}" for variant in variants}
    assert listed == set(kernels.find([kernels.BUILT_IN]))


def test_the_page_s_kernel_and_problem_are_right(folder):
    """As they stand there; a kernel of the page's problem is PyTorch's sum."""
    page = (HERE.parents[1] / "docs/site/lab.md").read_text()
    kernel, problem = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (folder / "softmax_mine.py").write_text(kernel)
    done = lab(folder, "check", "softmax_mine.py", "--suite", "correctness", "--json")
    (found,) = json.loads(done.stdout)["kernels"]
    assert found["summary"]["passed"] > 0 and found["summary"]["failed"] == 0
    (folder / "row_sum.problem.py").write_text(problem)
    (folder / "row_sum.py").write_text(
        HEAD.format(name="mine").replace("double", "row_sum")
        + "def run(out, x): out.copy_(x.double().sum(-1))\n"
    )
    lab(folder, "check", "row_sum/mine")


SUITES = """\
suites:
  short:
    - M=2 N=3
    - {M: 4, N: 5, x: bf16, memory: strided}
  other: [M=1 N=1]
"""


def test_suites_of_ones_own(folder):
    (folder / "own.yaml").write_text(SUITES)
    (folder / "own.json").write_text('["M=6 N=7", {"M": 8, "N": 9}]')
    cases = {"own.yaml:short": ["M=2 N=3", "M=4 N=5 x=bf16 memory=strided"],
             "own.yaml:other": ["M=1 N=1"], "own.json": ["M=6 N=7", "M=8 N=9"]}  # fmt: skip
    for suite, ids in cases.items():
        done = lab(folder, "check", "double/mine", "--suite", suite, "--json")
        (found,) = json.loads(done.stdout)["kernels"]
        assert [case["id"] for case in found["cases"]] == ids
    (folder / "empty.yaml").write_text("")
    for suite, said in {
        "own.yaml": "there are short, other", "own.yaml:none": "no such suite in own.yaml",
        "own.json:one": "has no names", "missing.yaml": "No such file", "empty.yaml": "a list",
    }.items():  # fmt: skip
        done = lab(folder, "check", "double/mine", "--suite", suite, code=errors.USAGE)
        assert said in done.stderr, suite


def test_a_cuda_kernel_without_a_gpu_says_so(folder):
    done = lab(folder, "check", "nvfp4_gemv/cuda", "--device", "cpu", code=errors.UNSUPPORTED)
    assert "needs cuda" in done.stderr


HIPCC = """\
#!/bin/sh
[ "$1" = --version ] && { echo "HIP version: 6.4"; exit; }
case " $* " in *" -x hip "*" --offload-arch=gfx942 "*) ;; *) exit 1 ;; esac
while [ "$1" != -o ]; do shift; done
echo "a library" > "$2"
"""


def test_a_hip_kernel_is_built_and_not_run(folder, tmp_path, monkeypatch):
    """The contract asks for no more than that; what is missing is said."""
    lab(folder, "new", "hip", "double")
    done = lab(folder, "build", "double_mine.hip", code=errors.UNSUPPORTED)
    assert "no hipcc: a HIP kernel is built by ROCm's compiler" in done.stderr
    compiler = tmp_path / "hipcc"
    compiler.write_text(HIPCC)
    compiler.chmod(0o755)
    monkeypatch.setenv("HIPCXX", str(compiler))
    assert "ok double/mine" in lab(folder, "build", "double_mine.hip").stderr.replace("[", "")
    done = lab(folder, "check", "double_mine.hip", code=errors.UNSUPPORTED)
    assert "a hip kernel needs rocm" in done.stderr


def test_new_counts_the_elements_of_a_tensor_of_any_rank(folder):
    """Such a shape has no symbol that an entry could get."""
    lab(folder, "new", "cuda", "softmax")
    text = (folder / "softmax_mine.cu").read_text()
    assert '"x.numel", "dim"' in text and "int64_t x_numel, int64_t dim" in text


def test_new_has_the_outputs_that_only_some_cases_have(folder):
    """Of rms_norm they all are: none is lost, in a compiled entry those of the first case."""
    lab(folder, "new", "python", "rms_norm")
    text = (folder / "rms_norm_mine.py").read_text()
    assert "out=None, residual_out=None, q=None" in text
    assert "Write into out, residual_out, q, scale_out" in text
    lab(folder, "new", "cpp", "rms_norm")
    assert 'arguments = ["out", "x", ' in (folder / "rms_norm_mine.cpp").read_text()


@pytest.mark.parametrize("language", ["python", "triton", "cuda", "hip", "cpp", "cute"])
def test_new_writes_a_file_that_is_read(folder, language):
    lab(folder, "new", language, "double", "--variant", "new")
    found = json.loads(lab(folder, "list", "--json").stdout)
    assert [k["language"] for k in found["kernels"] if k["name"] == "double/new"] == [language]


def test_env_and_sol(folder):
    assert json.loads(lab(folder, "env", "--json").stdout)["torch"]
    again = lab(folder, "sol", "--device", "cpu", "--again", "--json")
    assert json.loads(again.stdout)["bytes_per_s"] > 0
