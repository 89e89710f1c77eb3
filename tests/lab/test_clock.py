"""The clock of a GPU, with stand-ins for its events: how long it holds the stream."""

from types import SimpleNamespace

import pytest
import torch
from pestle_lab.engine import clock

US = 1000


class Stand:
    """A host whose calls take what is asked for, and a stream that is held."""

    def __init__(self, monkeypatch):
        self.now, self.held, self.work = 0, [], 0
        event = SimpleNamespace(
            record=lambda: None, synchronize=lambda: None, elapsed_time=lambda end: 0.01
        )
        for name, value in {
            "_sleep": self.held.append, "_sync": self.wait,
            "_Event": lambda enable_timing: event, "_persisting_reset": lambda: lambda: None,
            "perf_counter_ns": lambda: self.now,
        }.items():  # fmt: skip
            monkeypatch.setattr(clock, name, value)
        self.timer = clock.Timer(torch.device("cuda"))

    def wait(self, device) -> None:
        self.now, self.work = self.now + self.work, 0

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


def test_what_another_clock_is_held_to_has_the_work_in_it(stand):
    """Launches of a kernel of 110 us take 20 each: their sum is a quarter of what the calls take as
    the other process sees them, and no reason to call the kernel's clock a lie."""

    def call():
        stand.now += 20 * US
        stand.work = 110 * US

    assert stand.timer.run([call] * 3, "host") == [20 * US] * 3
    assert stand.timer.run([call] * 3, clock.WAITED) == [130 * US] * 3


def test_a_flush_only_reads(monkeypatch):
    """Lines that it wrote would go to memory in the time of the call that it comes before."""
    monkeypatch.setattr(clock, "last_level_cache", lambda device: 1 << 16)
    timer = clock.Timer(torch.device("cpu"))
    timer.run([lambda: None], "cold")
    before = timer.flusher._version
    timer.run([lambda: None], "cold")
    assert timer.flusher._version == before and timer.flusher.nbytes == 4 << 16
