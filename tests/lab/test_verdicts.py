"""FASTER, SLOWER, SAME, AMBIGUOUS on made-up times with the noise that machines have: how often two
of the same are SAME, and how often a slow-down is found. bench/lab_bars.py asks the same of real
kernels."""

from types import SimpleNamespace

import numpy as np
import pytest
from pestle_lab import benching

RUNS = 40


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


class Side:
    """One kernel: what `compare` asks of a bench."""

    def __init__(self, machine: Machine, ns: float, jitter: float, late: float):
        self.machine, self.ns, self.jitter, self.late = machine, ns, jitter, late

    def block(self, count: int, mode: str) -> list[int]:
        rng, base = self.machine.rng, self.ns * self.machine.speed()
        samples = base * (1 + self.jitter * np.abs(rng.standard_normal(count)))
        samples *= 1 + rng.exponential(0.3, count) * (rng.random(count) < self.late)
        samples = np.round(samples / 32) * 32  # what a GPU's events resolve
        self.machine.now += samples.sum() / 1e9 + 0.004  # and what asking takes
        return samples.astype(int).tolist()


MACHINES = {  # drift, jump, jitter of a call, share of calls that something holds up
    "quiet": (0.0002, 0.0, 0.002, 0.001),
    "drifts": (0.002, 0.0, 0.006, 0.01),
    "jumps between clocks": (0.0005, 0.03, 0.006, 0.01),
}


def verdicts(monkeypatch, machine: str, slower: float, runs: int = RUNS) -> list[str]:
    drift, jump, jitter, late = MACHINES[machine]
    found = []
    for seed in range(runs):
        here = Machine(drift, jump, np.random.default_rng([seed, round((1 + slower) * 1e4)]))
        clock = SimpleNamespace(monotonic=lambda here=here: here.now)
        monkeypatch.setattr(benching, "time", clock)
        sides = [Side(here, 100_000 * (1 + extra), jitter, late) for extra in (0, slower)]
        settings = benching.Settings(seconds=3.0)
        blocks = benching.take_turns(sides, settings)
        found.append(benching.stats.ratio(*blocks, settings.threshold).verdict)
    return found


@pytest.mark.parametrize("machine", MACHINES)
def test_the_same_kernel_is_the_same(machine, monkeypatch):
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
