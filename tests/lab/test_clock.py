"""The clock of a GPU, with stand-ins for its events: how long it holds the stream."""

from types import SimpleNamespace

import pytest
import torch
from pestle_lab.engine import clock

US = 1000


class Stand:
    """A host whose calls take what is asked for, and a stream that is held. To find the device idle
    takes `idle`, or what each of `waits` says; `work` is what it still does."""

    def __init__(self, monkeypatch):
        self.now, self.held, self.work, self.idle, self.waits = 0, [], 0, 0, []
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

    def wait(self) -> None:
        self.now += max(self.work, self.waits.pop(0) if self.waits else self.idle)
        self.work = 0

    def call(self, us, work=0) -> None:
        self.now, self.work = self.now + us * US, work * US

    def run(self, *launches_us: int, work: int = 0) -> list[int]:
        self.held.clear()
        return self.timer.run([lambda us=us: self.call(us, work) for us in launches_us], "warm")

    def late(self, *launches_us: int) -> list[int]:
        """Those that took longer than the stream was held, at 2 cycles a nanosecond."""
        self.run(*launches_us)
        pairs = zip(launches_us, self.held, strict=True)
        return [i for i, (us, cycles) in enumerate(pairs) if us * US > cycles / 2]


@pytest.fixture
def stand(monkeypatch):
    return Stand(monkeypatch)


def test_a_stream_is_held_for_as_long_as_a_call_takes_to_launch(stand):
    """A kernel of CuTe DSL takes 120 us of the host, and 15 of the device: only a stream that is
    held longer shows the latter. Cycles are 2 for a nanosecond at most."""
    assert stand.late(120, 120, 120) == [0]
    assert stand.held[0] == clock.HELD
    assert all(cycles >= 1.25 * 2 * 120 * US for cycles in stand.held[1:])


def test_a_host_that_wakes_up_for_each_block_is_waited_for(stand):
    """The first call of 16 takes three times as long, where another process had the time before."""
    stand.late(*[300, *[100] * 15] * 2)
    assert stand.late(*[300, *[100] * 15] * 8) == []


def test_a_host_that_stood_still_once_makes_no_call_wait(stand):
    stand.late(*[100] * 20)
    before = stand.held[-1]
    assert stand.late(5000, *[100] * 20) == [0]
    assert set(stand.held) == {before}


def test_a_quick_call_is_held_no_longer_than_before(stand):
    stand.run(5, 5, 5)
    assert set(stand.held) == {clock.HELD}


def test_a_call_that_waits_for_the_device_does_not_make_the_stream_wait_for_ever(stand):
    stand.run(*[50_000] * 4)
    assert max(stand.held) == clock.MOST_HELD


def test_a_host_that_is_slow_to_find_the_device_idle_is_no_work_of_the_kernel(stand):
    """A processor that others use takes 10 to 60 us for it, which were a kernel's own once."""
    stand.waits = [us * US for us in (35, 30, 12, 60, 45, 25, 22, 18)]
    assert stand.run(5, 5, 5, 5, 5) == [10 * US] * 5


def test_work_on_a_stream_of_the_kernel_s_own_is_its_time(stand):
    stand.idle = 15 * US
    assert stand.run(5, 5, work=110) == [(10 + 110 - 15) * US] * 2


def test_what_another_clock_is_held_to_has_the_work_in_it(stand):
    """Launches of a kernel of 110 us take 20 each: their sum is a quarter of what the calls take as
    the other process sees them, and no reason to call the kernel's clock a lie."""

    calls = [lambda: stand.call(20, work=110)] * 3
    assert stand.timer.run(calls, "host") == [20 * US] * 3
    assert stand.timer.run(calls, clock.WAITED) == [130 * US] * 3


def test_a_flush_only_reads(monkeypatch):
    """Lines that it wrote would go to memory in the time of the call that it comes before."""
    monkeypatch.setattr(clock, "last_level_cache", lambda device: 1 << 16)
    timer = clock.Timer(torch.device("cpu"))
    timer.run([lambda: None], "cold")
    before = timer.flusher._version
    timer.run([lambda: None], "cold")
    assert timer.flusher._version == before and timer.flusher.nbytes == 4 << 16
