"""Each known cheat is caught, by its name; a kernel that is right is not accused."""

from pathlib import Path

import pytest
from cheats import gpu
from cheats.cases import CHECKED, FIELD, HEAD, TIMED, TOLD
from pestle_lab import benching, checking, kernels, problems

HERE = Path(__file__).parent
HONEST = "def run(out, x): torch.mul(x, 2, out=out)"


def _kernel(write, name: str, source: str):
    return kernels.read(write(HEAD.format(name=name) + source, f"{name}.py"))


def _check(kernel, suite="smoke", timeout=60.0, most=None):
    problem = problems.get("double", [HERE])
    return checking.check(
        kernel,
        problem,
        problem.cases(suite)[:most],
        device="cpu",
        seed=None,
        timeout=timeout,
        problem_folders=[HERE],
    )


@pytest.mark.parametrize("name", CHECKED)
def test_check_catches(name, kernel_file):
    source, statuses, words = CHECKED[name]
    # A process that is lost takes as long to start again as all else does: one case is enough.
    most = 1 if statuses <= {"crash", "timeout", "runtime_error"} else None
    timeout = 2 if name == "never_returns" else 60
    done = _check(_kernel(kernel_file, name, source), timeout=timeout, most=most)
    bad = [v for v in done.cases if v.status != "ok"]
    assert bad, f"{name} passed"
    assert {v.status for v in bad} <= statuses, [(v.status, v.message) for v in bad]
    assert any(words in v.message + v.log for v in bad), [v.message for v in bad]


@pytest.mark.parametrize("suite", ["smoke", "adversarial"])
def test_an_honest_kernel_is_not_accused(suite, kernel_file):
    done = _check(_kernel(kernel_file, "honest", HONEST), suite)
    assert done.statuses == ["ok"] * len(done.cases), [(v.id, v.message) for v in done.cases]


def _bench(kernel):
    problem = problems.get("double", [HERE])
    settings = benching.Settings(device="cpu", seconds=0.3, modes=("warm",), folders=[HERE])
    return benching.bench(kernel, problem, ["M=64 N=256"], settings)


@pytest.mark.parametrize("name", TIMED)
def test_bench_catches(name, kernel_file):
    source, statuses, words = TIMED[name]
    timed = _bench(_kernel(kernel_file, name, source)).cases[0]
    assert timed.verdict.status in statuses, (timed.verdict.status, timed.verdict.message)
    assert words in timed.verdict.message


@pytest.mark.parametrize("name", ["leaves_what_is_written", "stops_after_some_calls"])
def test_compare_catches(name, kernel_file):
    """Its values are the same from call to call, until the last."""
    honest = _kernel(kernel_file, "honest", HONEST)
    cheat = _kernel(kernel_file, name, TIMED[name][0])
    settings = benching.Settings(device="cpu", seconds=0.3, modes=("warm",), folders=[HERE])
    problem = problems.get("double", [HERE])
    (found,) = benching.compare(honest, cheat, problem, ["M=64 N=256"], settings)
    assert found.status in TIMED[name][1] and found.ratio is None, found


SLOWS_OTHERS = """
import time

mul, calls = torch.mul, 0


def slow(*a, **k):
    if calls >= {after}:
        time.sleep(0.002)
    return mul(*a, **k)


torch.mul = slow


def run(out, x):
    global calls
    calls += 1
    torch.add(x, x, out=out)
"""


@pytest.mark.parametrize("after", [0, 150])
def test_compare_is_not_fooled_by_a_kernel_that_slows_the_other_one(
    after, kernel_file, monkeypatch
):
    """They share processes; where one is slower beside the other than it was alone, they don't."""
    monkeypatch.setattr(benching, "PAIRS_APART", 2)  # processes of each; the verdict is the same
    honest = _kernel(kernel_file, "honest", HONEST)
    other = _kernel(kernel_file, "slows_others", SLOWS_OTHERS.format(after=after))
    settings = benching.Settings(device="cpu", seconds=0.3, modes=("warm",), folders=[HERE])
    problem = problems.get("double", [HERE])
    (found,) = benching.compare(honest, other, problem, ["M=64 N=256"], settings)
    assert "in processes of their own: beside the other kernel double/honest" in found.message
    assert found.status == "ok" and found.a.median < 1e6 and found.ratio.value > 0.2, found


def test_bench_of_an_honest_kernel(kernel_file):
    timed = _bench(_kernel(kernel_file, "honest", HONEST)).cases[0]
    assert timed.verdict.status == "ok", timed.verdict.message
    assert timed.modes["warm"].n >= 10
    assert timed.throughput["bytes"] == 2 * 64 * 256 * 4


@pytest.mark.parametrize("name", TOLD)
def test_bench_tells(name, kernel_file):
    source, launched = TOLD[name]
    timed = _bench(_kernel(kernel_file, name, source)).cases[0]
    assert timed.verdict.status == "ok" and launched in timed.launched, timed.launched


TORCH_PY = """
from pathlib import Path
Path("torch.py").write_text("raise SystemExit('not torch')")
def run(out, x): torch.mul(x, 2, out=out)
"""


def test_a_torch_py_that_a_kernel_leaves_is_not_imported(kernel_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kernel = _kernel(kernel_file, "leaves_a_torch_py", TORCH_PY)
    for _ in range(2):
        assert _check(kernel).statuses == ["ok", "ok"]
    assert (tmp_path / "torch.py").exists()


def test_every_published_cheat_is_here_and_on_the_page():
    """docs/site/lab-cheats.md lists each with the kernel that does it, and no other."""
    page = (HERE.parents[1] / "docs/site/lab-cheats.md").read_text()
    rows = [row.split("|")[1:-1] for row in page.splitlines() if row.startswith("| ")]
    listed = {tuple(cell.strip(" `") for cell in row) for row in rows if row[0].strip() != "from"}
    assert listed == {
        (place, name, cheat) for place, cheats in FIELD.items() for name, cheat in cheats.items()
    }
    here = {*CHECKED, *TIMED, *TOLD, *gpu.NAMES, "leaves_a_torch_py"}
    assert {cheat for cheats in FIELD.values() for cheat in cheats.values()} <= here
