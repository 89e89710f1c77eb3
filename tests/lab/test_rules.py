"""The error rule over arrays is that of `pestle check`; statistics; reading of files."""

import json
import subprocess

import numpy as np
import pytest
import torch
from pestle_lab import benching, errors, history, kernels, problems
from pestle_lab.engine import buffers, cases, reference, rules, stats
from pestle_lab.engine.cases import TensorPlan
from pestle_lab.problems import Bound


def _shares(dtype, got, want, magnitude, c=4, k=16):
    plan = TensorPlan("out", "output", dtype, got.shape)
    return rules.compare(plan, got, want, magnitude, Bound(c, "K"), k)


def test_one_ulp_and_the_terms_are_allowed_and_no_more():
    want = np.array([1.0, -3.0, 0.0])
    size = np.array([8.0, 8.0, 8.0])
    room = 2.0**-23 + 4 * 4 * 2.0**-24 * 8
    got = (want + np.array([room * 0.9, 0, 0])).astype(np.float32)
    found = _shares(torch.float32, got, want, size)
    assert found.ok and found.json()["max_ulp"] == pytest.approx(room * 0.9 / 2**-23, rel=0.01)
    got = (want + np.array([room * 1.2, 0, 0])).astype(np.float32)
    found = _shares(torch.float32, got, want, size)
    assert found.bad == 1 and found.first[0].startswith("out[0] is 1.0000")


def test_nan_and_infinity_must_agree():
    want = np.array([np.nan, np.inf, 1.0, 1.0])
    size = np.ones(4)
    assert _shares(torch.float32, want.astype(np.float32), want, size).ok
    wrong = np.array([1.0, -np.inf, np.nan, np.inf], np.float32)
    found = _shares(torch.float32, wrong, want, size)
    assert found.bad == 4 and found.nonfinite == 2 and found.json()["worst_share_of_bound"] is None


def test_a_subnormal_result_is_not_to_be_flushed():
    """Beside the ulp, only what each of k terms may lose below f32's smallest number is allowed."""
    k = 20008
    want = np.array([3.97817736e-40, -(2.0**-127), 2.0**-125, 0.9 * k * 2.0**-149])
    found = _shares(torch.float32, np.zeros(4, np.float32), want, abs(want), k=k)
    assert found.bad == 3 and all(f"out[{i}] is 0" in found.first[i] for i in range(3))
    assert _shares(torch.float32, want.astype(np.float32), want, abs(want), k=1).ok


def test_exact_outputs_are_compared_by_bits():
    plan = TensorPlan("q", "output", torch.float32, (2,))
    got, want = np.array([0.0, 1.0], np.float32), np.array([-0.0, 1.0], np.float32)
    assert rules.compare(plan, got, want, None, Bound(exact=True), 1).bad == 1


@pytest.mark.parametrize("layout", cases.LAYOUTS)
@pytest.mark.parametrize("shape", [(5, 7), (1, 1), (0, 3), (2, 3, 4), (6,)])
def test_what_lies_beside_a_tensor_is_seen(layout, shape):
    where = buffers.plan(shape, 2, layout)
    values = np.arange(np.prod(shape), dtype=np.int16).reshape(shape)
    raw = buffers.filled(where, np.dtype(np.int16), values)
    assert (where.view(raw, np.dtype(np.int16)) == values).all()
    assert buffers.changed_outside(where, raw) == 0
    raw[where.start - 1] = 0
    raw[where.start + where.span] = 0
    assert buffers.changed_outside(where, raw) == 2


def test_verdicts_of_equal_and_of_slower_blocks():
    rng = np.random.default_rng(1)
    drift = np.linspace(1, 1.2, 60)  # the machine gets slower while both take turns

    def blocks(factor):
        return [list(1e6 * d * factor * (1 + 0.002 * rng.standard_normal(20))) for d in drift]

    assert stats.ratio(blocks(1), blocks(1)).verdict == "SAME"
    assert stats.ratio(blocks(1), blocks(1.02)).verdict == "SLOWER"
    assert stats.ratio(blocks(1.02), blocks(1)).verdict == "FASTER"
    noisy = [list(1e6 * rng.uniform(0.5, 1.5, 3)) for _ in range(10)]
    assert stats.ratio(noisy, [list(b[::-1]) for b in noisy[::-1]]).verdict == "AMBIGUOUS"


def test_equal_kernels_are_seldom_told_apart():
    rng = np.random.default_rng(2)

    def blocks():
        return [list(1e5 * (1 + 0.01 * rng.standard_normal(20))) for _ in range(40)]

    verdicts = [stats.ratio(blocks(), blocks()).verdict for _ in range(100)]
    assert sum(v in ("FASTER", "SLOWER") for v in verdicts) <= 2


def test_a_time_beyond_the_published_limit_is_refused():
    problem = problems.get("nvfp4_gemv", [])
    case = cases.make(problem, "M=7168 K=16384 L=1")
    timed = benching.Timed(benching.Verdict(case.text))
    timed.throughput = {"share_of_nominal_limit": 1.5}
    with pytest.raises(benching.Wrong, match="published limit"):
        benching._reject_impossible(case, timed, "cpu")


def test_the_head_of_a_kernel(kernel_file):
    text = '# kernel: double/mine\n# language = "python"\n# dtypes = ["f32"]\n# and what?\n'
    with pytest.raises(errors.LabError, match="not TOML"):
        kernels.read(kernel_file(text))
    with pytest.raises(errors.LabError, match="unknown colour"):
        kernels.read(kernel_file('# kernel: double/mine\n# language = "python"\n# colour = 1\n'))
    with pytest.raises(errors.LabError, match="not PROBLEM/VARIANT"):
        kernels.read(kernel_file('# kernel: double\n# language = "python"\n'))
    with pytest.raises(errors.LabError, match=r"is a \.cu file"):
        kernels.read(kernel_file('# kernel: double/mine\n# language = "cuda"\n'))
    assert kernels.read(kernel_file("import torch\n")) is None


def test_two_kernels_of_one_name_are_an_error(kernel_file, tmp_path):
    for name in ("a.py", "b.py"):
        kernel_file('# kernel: double/mine\n# language = "python"\n', name)
    with pytest.raises(errors.LabError, match=r"two kernels are named double/mine: .*a\.py and"):
        kernels.find([tmp_path])


def test_a_problem_s_adversarial_cases_are_made():
    """Of the first case, as the problem's rules allow: nothing of them stands in its file."""
    made = problems.Problem(
        name="made", doc="x.",
        args=[problems.input("x", "f32", "M, N", "numbers"),
              problems.output("out", "=x", "M, N", "the same")],
        constraints=[("N % 2 == 1", "N must be odd")],
        reference=lambda inputs, _: {"out": (inputs["x"], None)}, suites={"smoke": ["M=8 N=3"]},
    )  # fmt: skip
    found = made.cases("adversarial")
    assert {"M=0 N=3", "M=1 N=3", "M=129 N=3", "M=8 N=127", "M=8 N=3 memory=offset",
            "M=8 N=3 memory=transposed", "M=8 N=3 data=special"} <= set(found)  # fmt: skip
    assert "M=8 N=0" not in found, "the problem refuses even N"
    case = cases.make(made, "M=8 N=3 data=largest")
    assert (np.abs(case.inputs(1)["x"]) == np.finfo(np.float32).max).all()
    assert problems.get("nvfp4_gemv", []).cases("adversarial")[-1] == "M=128 K=256 L=129"
    assert problems.get("reduce", []).cases("huge") == ["M=65537x65536 dims=2 op=amax"]


def test_what_is_short_on_a_gpu_is_timed_in_a_graph_too(kernel_file):
    kernel = kernels.read(kernel_file('# kernel: double/mine\n# language = "python"\n'))
    asked, short = benching.Settings(adds_graph=True), stats.summarise([15_000] * 9)
    assert benching._is_short(kernel, "cuda", "cold", short, asked)
    assert not benching._is_short(kernel, "cpu", "cold", short, asked)
    assert not benching._is_short(kernel, "cuda", "cold", stats.summarise([25_000] * 9), asked)
    assert not benching._is_short(kernel, "cuda", "cold", short, benching.Settings())


def test_a_licence_may_stand_before_the_head(kernel_file):
    head = '// kernel: double/mine\n// language = "cuda"\n// arguments = ["out"]\n'
    assert kernels.read(kernel_file(f"/* Free\n * software */\n\n{head}", "mine.cu")).entry == "run"


def test_a_program_that_writes_kernels_is_none(tmp_path):
    """A head in a string of it is no head: whoever stands in Pestle's own folder has such files."""
    for name, mark in (("a.py", "#"), ("b.py", "//"), ("c.cu", "#")):
        (tmp_path / name).write_text(f'TEXT = """\n{mark} kernel: double/mine\n{mark} x\n"""\n')
    assert kernels.find([tmp_path]) == {}


MARKS = [".hidden", "env/pyvenv.cfg", "mine/contract.json", "pestle_lab/kernels_shipped"]


@pytest.mark.parametrize("mark", MARKS)
def test_copies_in_environments_and_exports_are_no_second_kernels(kernel_file, tmp_path, mark):
    text = '# kernel: double/mine\n# language = "python"\n'
    own, folder = kernel_file(text), tmp_path / mark.partition("/")[0] / "deep"
    folder.mkdir(parents=True)
    if "/" in mark:
        (tmp_path / mark).write_text("")
    (folder / "kernel.py").write_text(text)
    assert [k.path for k in kernels.find([tmp_path]).values()] == [own]
    assert kernels.find([folder])  # named, it is searched


def test_the_history_says_what_became_slower(tmp_path):
    def report(us):
        timing = {"median_us": us, "ci95_us": [us * 0.999, us * 1.001], "n": 30}
        return {
            "started": "2026",
            "env": {"gpu": None, "cpu": "one"},
            "kernels": [
                {
                    "name": "double/mine",
                    "source_sha256": "0" * 64,
                    "cases": [{"id": "M=1 N=1", "status": "ok", "timing": {"warm": timing}}],
                }
            ],
        }

    path = tmp_path / "history.jsonl"
    history.append(report(100), path)
    earlier = history.read(path)
    assert history.slower(report(102), earlier, 0.03) == []
    assert "105 µs, before 100 µs" in history.slower(report(105), earlier, 0.03)[0]
    assert history.slower(report(50), earlier, 0.03) == []


@pytest.mark.parametrize("name", ["activation", "softmax", "linear_int4"])
def test_the_reference_of_the_table_is_within_its_own_bound(name):
    problem = problems.get(name, [])
    case = cases.make(problem, problem.cases("smoke")[0])
    truth = reference.truth(case, case.inputs(3))
    for plan in case.of_role("output"):
        want, size = truth[plan.name]
        bound = problem.bounds[plan.name]
        k = case.evaluate(bound.k)
        got = want.astype(cases.numpy_dtype(plan.dtype))
        assert rules.compare(plan, got, want, size, bound, k).ok
        far = (want + 3 * rules.allowed_error(plan.dtype, want, size, bound, k)).astype(got.dtype)
        assert not rules.compare(plan, far, want, size, bound, k).ok


def test_all_problems_of_the_table_make_their_cases():
    from pestle._library import contracts

    made = 0
    for name in problems.find([]):
        problem = problems.get(name, [])
        for text in problem.suites.get("smoke", []):
            case = cases.make(problem, text)
            assert case.bytes() >= 0 and case.of_role("output"), (name, text)
            made += 1
    assert made > len(contracts())


def test_command_without_a_kernel_is_a_sentence(tmp_path):
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "pestle_lab", "check", "double/nothing"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == errors.USAGE
    assert "no kernel is named 'double/nothing'" in done.stderr
    assert "Traceback" not in done.stderr


def test_json_of_a_report_has_the_schema_that_is_published():
    from importlib.resources import files

    schema = json.loads(files("pestle_lab").joinpath("report.schema.json").read_text())
    assert schema["properties"]["schema"]["const"] == "pestle-lab/report/1"
