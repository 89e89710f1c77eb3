"""The clock of a GPU, with stand-ins for its events: how long it holds the stream."""

from types import SimpleNamespace

import pytest
import torch
from pestle_lab.engine import clock

US = 1000


class Stand:
    """A host whose calls take what is asked for, and a stream that is held."""

    def __init__(self, monkeypatch):
        self.now, self.held = 0, []
        event = SimpleNamespace(
            record=lambda: None, synchronize=lambda: None, elapsed_time=lambda end: 0.01
        )
        for name, value in {
            "_sleep": self.held.append, "_sync": lambda device: None,
            "_Event": lambda enable_timing: event, "_persisting_reset": lambda: lambda: None,
            "perf_counter_ns": lambda: self.now,
        }.items():  # fmt: skip
            monkeypatch.setattr(clock, name, value)
        self.timer = clock.Timer(torch.device("cuda"))

    def run(self, *launches_us: int) -> list[int]:
        def call(us):
            self.now += us * US

        self.held.clear()
        self.timer.run([lambda us=us: call(us) for us in launches_us], "warm")
        return list(self.held)


@pytest.fixture
def stand(monkeypatch):
    return Stand(monkeypatch)


def test_a_stream_is_held_for_as_long_as_a_call_takes_to_launch(stand):
    """A kernel of CuTe DSL takes 120 us of the host, and 15 of the device: only a stream that is
    held longer shows the latter. Cycles are 2 for a nanosecond at most."""
    first, *rest = stand.run(120, 120, 120)
    assert first == clock.HELD
    assert all(cycles >= 1.5 * 2 * 120 * US for cycles in rest), rest


def test_a_quick_call_is_held_no_longer_than_before(stand):
    assert set(stand.run(5, 5, 5)) == {clock.HELD}


def test_a_call_that_waits_for_the_device_does_not_make_the_stream_wait_for_ever(stand):
    assert max(stand.run(*[50_000] * 4)) == clock.MOST_HELD
