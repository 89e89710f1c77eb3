"""FASTER, SLOWER, SAME, AMBIGUOUS on made-up times with the noise that machines have: how often two
of the same are SAME, and how often a slow-down is found. bench/lab_bars.py asks the same of real
kernels."""

import contextlib
import random
from types import SimpleNamespace

import numpy as np
import pytest
from pestle_lab import benching

RUNS = 40
PLACES = 4


class Machine:
    """Its clock, and the speed that it has at a moment: it drifts, and jumps between two clocks."""

    def __init__(self, drift: float, jump: float, rng):
        self.now, self.rng, self.drift, self.jump = 0.0, rng, drift, jump
        self.walk, self.slow = 0.0, False

    def speed(self) -> float:
        self.walk = 0.98 * self.walk + self.drift * self.rng.standard_normal()
        if self.rng.random() < 0.02:
            self.slow = not self.slow
        return 1 + self.walk + self.jump * self.slow


class Process:
    """What it makes of a time, by where in memory its buffers lie."""

    def __init__(self, rng, own: float, place: float):
        self.factor = 1 + own * rng.standard_normal() + place * rng.standard_normal(PLACES)
        self.latest = None


class Side:
    """One kernel in a process: what `take_turns` asks of a bench."""

    def __init__(self, machine: Machine, process: Process, ns: float, jitter: float, late: float):
        self.machine, self.process, self.ns = machine, process, ns
        self.jitter, self.late = jitter, late
        self.sets = process
        self.random = random.Random(int(machine.rng.integers(1 << 30)))

    def cells(self, mode: str) -> list[list[int]]:
        return [[i] for i in range(PLACES)]

    def block(self, count: int, mode: str, among=(0,)) -> list[int]:
        rng, process = self.machine.rng, self.process
        base = self.ns * self.machine.speed() * process.factor[next(iter(among))]
        samples = base * (1 + self.jitter * np.abs(rng.standard_normal(count)))
        samples *= 1 + rng.exponential(0.3, count) * (rng.random(count) < self.late)
        samples[0] *= 1 if process.latest is self else 1.05  # it finds what another one left
        process.latest = self
        samples = np.round(samples / 32) * 32  # what a GPU's events resolve
        self.machine.now += count * 0.00025 + 0.002  # with flushes, and what asking takes
        return samples.astype(int).tolist()


MACHINES = {  # drift, jump, jitter of a call, share of calls that something holds up, ns
    "quiet": (0.0002, 0.0, 0.002, 0.001, 36_000),
    "drifts": (0.002, 0.0, 0.006, 0.01, 36_000),
    "jumps between clocks": (0.0005, 0.03, 0.006, 0.01, 100_000),
    "ticks of half a percent": (0.0005, 0.0, 0.003, 0.01, 6_400),
}
OWN, PLACE = 0.006, 0.004  # by which processes differ, and places in them


def pairs(here: Machine, slower: float, jitter: float, late: float, ns: float, apart: bool):
    made = []
    for _ in range(benching.PAIRS_APART if apart else benching.PAIRS):
        processes = [Process(here.rng, OWN, PLACE) for _ in range(2 if apart else 1)]
        made.append(
            tuple(
                Side(here, process, ns * (1 + extra), jitter, late)
                for process, extra in zip((processes * 2)[:2], (0, slower), strict=True)
            )
        )
    return made


def verdicts(monkeypatch, machine, slower, runs=RUNS, apart=False, seconds=1.0) -> list[str]:
    drift, jump, jitter, late, ns = MACHINES[machine]
    found = []
    for seed in range(runs):
        here = Machine(drift, jump, np.random.default_rng([seed, round((1 + slower) * 1e4)]))
        clock = SimpleNamespace(monotonic=lambda here=here: here.now)
        monkeypatch.setattr(benching, "time", clock)
        settings = benching.Settings(seconds=seconds)
        sides = pairs(here, slower, jitter, late, ns, apart)
        found.append(benching.take_turns(sides, settings).ratio(settings).verdict)
    return found


@pytest.mark.parametrize("machine", MACHINES)
def test_the_same_kernel_is_the_same(machine, monkeypatch):
    """Wherever two processes put their buffers: A and B have the same ones in each."""
    found = verdicts(monkeypatch, machine, 0, runs=100)
    assert found.count("SAME") >= 95, found
    assert found.count("FASTER") + found.count("SLOWER") <= 1, found


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("slower", "share"), [(0.02, 0.95), (0.01, 0.8)])
def test_a_slower_kernel_is_slower(machine, slower, share, monkeypatch):
    found = verdicts(monkeypatch, machine, slower)
    assert found.count("SLOWER") >= share * RUNS, found
    assert "FASTER" not in found


def test_a_faster_kernel_is_faster(monkeypatch):
    assert verdicts(monkeypatch, "drifts", -0.02).count("FASTER") >= 0.95 * RUNS


def test_what_processes_make_of_kernels_apart_is_no_verdict(monkeypatch):
    """Kernels in processes of their own differ by where these put their buffers: 200 calls at each
    of a few places don't make that surer than a few processes are."""
    found = verdicts(monkeypatch, "quiet", 0, apart=True, seconds=0.3)
    assert found.count("FASTER") + found.count("SLOWER") <= 0.05 * RUNS, found
    found = verdicts(monkeypatch, "quiet", 0.04, apart=True, seconds=0.3)
    assert found.count("SLOWER") >= 0.95 * RUNS


def test_a_pair_of_places_is_less_sure_than_its_calls(monkeypatch):
    """Half of the turns at a place that makes B 2 % slower, half at one where it is the same: by
    turns alone the interval would hold neither."""
    rng = np.random.default_rng(4)
    a = [list(1e5 * (1 + 0.001 * rng.standard_normal(16))) for _ in range(80)]
    b = [list(1e5 * (1.02 - 0.02 * (i % 2) + 0.001 * rng.standard_normal(16))) for i in range(80)]
    by_places = benching.stats.ratio(a, b, 0.005, [i % 2 for i in range(80)])
    assert by_places.verdict == "AMBIGUOUS" and by_places.low < 1.001 and by_places.high > 1.019


def test_a_comparison_that_is_unsure_says_which_samples_are_disturbed(monkeypatch):
    """Of A's calls, 4 of 10 take 40 us more in every other block; of B's, one in a hundred."""
    rng = np.random.default_rng(5)

    def block(share: float) -> list[int]:
        return (35_000 + 40_000 * (rng.random(16) < share)).tolist()

    side = SimpleNamespace(verdict=None)
    turns = benching.Turns(([block(i % 2 * 0.4) for i in range(40)], [block(0.01)] * 40))
    turns.cells = [(i // 2 % 2, 0) for i in range(40)]
    monkeypatch.setattr(benching, "paired", lambda *a: contextlib.nullcontext(([(side, side)], "")))
    for name, value in {"take_turns": turns, "finish": None, "_slowed": ""}.items():
        monkeypatch.setattr(benching, name, lambda *a, value=value: value)
    case = SimpleNamespace(text="N=1")
    found = benching._compare_case((), None, case, benching.Settings())
    assert (
        found.ratio.verdict == "AMBIGUOUS" and found.a.disturbed > 0.15 > 0.07 > found.b.disturbed
    )
    assert "% of the calls of A took more than 1.3 times" in found.message
    assert "calls of B" not in found.message and found.json()["a"]["disturbed"] > 0.15
    turns.blocks[0][:] = [block(0) for _ in range(40)]
    quiet = benching._compare_case((), None, case, benching.Settings())
    assert quiet.ratio.verdict == "SAME" and quiet.message == ""


class Asked:
    """A kernel's process on a GPU, whose calls take `launch` of the host and `work` of the device;
    and its benching, to which it said that they take `said`."""

    def __init__(self, monkeypatch, launch: int, work: int, said: int):
        self.now, self.launch, self.work, self.device = 0, launch, work, "cuda"
        self.kernel = SimpleNamespace(name="double/mine")
        clock = SimpleNamespace(perf_counter_ns=lambda: self.now)
        monkeypatch.setattr(benching, "time", clock)
        contents = SimpleNamespace(seed=0)
        sets = SimpleNamespace(case=SimpleNamespace(text="N=1"), contents=contents, masters=[0, 1])
        self.bench = benching.Bench(self, sets)
        self.bench.reported = {"cold": [said] * 100}

    def busy(self) -> dict:
        return {}

    def ask(self, do: str, mode: str = "", order=(0,), **_) -> dict:
        each = self.launch + (0 if mode == benching.ISSUED else self.work + 15_000)
        self.now += 300_000 + len(order) * each
        return {"ns": [each] * len(order)}


@pytest.mark.parametrize(("launch", "work"), [(20, 4), (300, 4), (300, 2000), (3000, 60)])
def test_a_kernel_that_takes_long_to_launch_is_believed(launch, work, monkeypatch):
    asked = Asked(monkeypatch, launch * 1000, work * 1000, work * 1000)
    asked.bench.believe()
    assert asked.bench.verdict.checks["clocks"] == "ok"


@pytest.mark.parametrize("launch", [5, 60, 300])
def test_a_clock_that_says_a_hundredth_is_not_believed(launch, monkeypatch):
    asked = Asked(monkeypatch, launch * 1000, 400_000, 4000)
    with pytest.raises(benching.Wrong, match=r"a call takes 3.* µs as seen from here, and 4\.0 µs"):
        asked.bench.believe()
