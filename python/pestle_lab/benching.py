"""pestle-lab bench and compare: how long, with which interval, against which limit."""

from __future__ import annotations

import random
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .checking import Verdict, Wrong, device_of, judge, one_changed, out_of_domain
from .engine import cases, clocks, machine, reference, stats
from .engine.building import Build, build
from .engine.clock import WAITED, last_level_cache
from .engine.session import Session, WorkerError
from .errors import LabError
from .kernels import Kernel
from .problems import Problem

SETS = (2, 16)  # input sets that calls rotate over, at least and at most
# On a GPU a set lies at up to so many places, of so many bytes in all: which pages of memory a call
# works on makes some tenths of a percent, and two processes have different ones.
PLACES, ROOM = 3, 2 << 30
WARMING = 0.2  # seconds of calls whose times don't count, at most
SHORT_NS = 20_000  # under which a launch shows in a cold time, so that a graph's is measured, too
MINIMUM = 30  # samples of a mode
# Share of what the parent sees of a call under which a reported mean is none: the processor's time
# of the busiest thread on a CPU, which other processes don't add to, and its clock on a GPU.
BELIEVED = 0.2
LAUNCH_NS = 60_000  # of a call on a GPU: what the kernel that holds the stream hides, and a wait
ASKING_NS = 5_000_000  # to ask for a block of calls and to be answered
ENOUGH_NS = 20_000_000  # of a block that the parent's clock says something about
KEPT = 1 << 30  # bytes of outputs that were right and need not be judged again
LOOKS = 3  # blocks that are looked at in any case; others for half the time that calls take
IMPOSSIBLE = 0.98  # share of the nominal time that no kernel is under


@dataclass
class Settings:
    device: str | None = None
    modes: tuple[str, ...] = ("cold",)
    seconds: float = 3.0  # for each case and mode
    half_width: float = 0.005
    timeout: float = 120.0
    threshold: float = 0.005
    seed: int | None = None
    folders: list[Path] = field(default_factory=list)
    adds_graph: bool = False  # for what is short on a GPU


@dataclass
class Timed:
    verdict: Verdict
    modes: dict[str, stats.Summary] = field(default_factory=dict)
    samples: dict[str, list[int]] = field(default_factory=dict)
    throughput: dict[str, float | str | None] = field(default_factory=dict)
    launched: list[str] = field(default_factory=list)
    clocks: list[dict] = field(default_factory=list)
    flagged: dict[str, int] = field(default_factory=dict)  # samples of a low clock, by mode
    baseline: dict | None = None  # its name, the ratio to it, the verdict

    def json(self) -> dict:
        return self.verdict.json() | {
            "baseline": self.baseline,
            "timing": {
                m: s.json() | {"samples_ns": self.samples[m], "flagged": self.flagged.get(m, 0)}
                for m, s in self.modes.items()
            },
            "throughput": self.throughput,
            "launched": self.launched,
            "clocks": self.clocks,
        }


def places_of(count: int, size: int, device: str) -> int:
    """Of each of `count` sets of `size` bytes."""
    if not device.startswith("cuda"):
        return 1
    return max(1, min(PLACES, SETS[1] // count, ROOM // (count * size)))


class Bench:
    """One kernel on one case: its input sets, its timed calls, and the check of what they wrote."""

    def __init__(self, session: Session, case: cases.Case, settings: Settings):
        self.session, self.case, self.settings = session, case, settings
        self.random = random.Random(secrets.randbits(64))
        self.seed = settings.seed if settings.seed is not None else secrets.randbits(62)
        self.masters: list[dict] = []
        self.reported: dict[str, list[int]] = {}  # every time that the child gave, by mode
        self.renewed: int | None = None  # a set that no call has seen since it was renewed
        self.poisons = True  # the outputs of the next call that is looked at
        self.right: dict[int, dict] = {}  # of a set, the buffers that were judged to be right
        self.looks, self.looking, self.timing = 0, 0.0, 0.0  # seconds
        self.spans: list[tuple[float, float, int]] = []  # of blocks: began, ended, calls
        self.verdict = Verdict(case.text, seed=self.seed)

    def prepare(self) -> None:
        self.session.open(self.case)
        size = max(sum(plan.nbytes for plan in self.case.plans.values()), 1)
        import torch

        cache = last_level_cache(torch.device(self.session.device))
        count = min(max(-(-3 * cache // size), SETS[0]), SETS[1])
        for index in range(count * places_of(count, size, self.session.device)):
            known = index >= count
            self.masters.append(
                self.masters[index % count] if known else self.case.inputs(self.seed + index)
            )
            self.session.place(index, self.masters[index])
        self.session.ask("call", set=0, how="plain")  # compiles what is compiled at the first call
        self._check("before timing", range(len(self.masters)), call=True)

    def _check(self, when: str, sets, call: bool = False) -> None:
        for index in sets:
            if call:
                self.session.ask("call", set=index, how="plain")
            self._judge(when, index, self.session.fetch(index))

    def _known(self, index: int) -> dict | None:
        """What was right for this set, or for another place of it."""
        same = (i for i, masters in enumerate(self.masters) if masters is self.masters[index])
        return next((self.right[i] for i in (index, *same) if i in self.right), None)

    def _judge(self, when: str, index: int, fetched: dict) -> None:
        known = self._known(index)
        if known is None or any(not np.array_equal(known[n], fetched[n]) for n in known):
            masters = self.masters[index]
            truth = reference.truth(self.case, masters)
            judge(self.case, self.session, masters, fetched, truth, when, self.verdict)
            if len(self.masters) * sum(raw.nbytes for raw in fetched.values()) <= KEPT:
                self.right[index] = fetched
        self.verdict.checks[when] = "ok"

    def renew(self, keep_outputs: bool | None = None) -> None:
        """New contents at the old address of one set: a kernel that kept an answer, or that did the
        work of several calls in one, is wrong from here on. In its outputs poison, or what the call
        before wrote, so that a kernel that leaves alone what is written already is wrong, too."""
        if keep_outputs is None:
            keep_outputs = self.random.random() < 0.5
        index = self.random.randrange(len(self.masters))
        self.seed += 1000
        if self.random.random() < 0.5:
            self.masters[index] = self.case.inputs(self.seed)
        else:
            changed = one_changed(self.masters[index], np.random.default_rng(self.seed))
            self.masters[index] = changed
        self.session.place(index, self.masters[index], True, keep_outputs)
        self.renewed, self.poisons = index, not keep_outputs
        self.right.pop(index, None)

    def _looks(self) -> bool:
        """Whether the next block is looked at. To fetch large tensors takes longer than to call on
        them, so where no values are new, only as often as that stays the smaller part; when, the
        kernel can't know."""
        if self.renewed is not None or self.looks < LOOKS:
            return True
        return self.looking < 0.5 * self.timing * self.random.uniform(0.5, 1.5)

    def block(self, count: int, mode: str) -> list[int]:
        """Times of `count` calls on sets in an order that the kernel can't know."""
        order = [self.random.randrange(len(self.masters)) for _ in range(count)]
        at, began = self.random.randrange(count), time.monotonic()
        look = at if mode != "graph" and self._looks() else None
        if self.renewed is not None:
            order[at], self.renewed = self.renewed, None
        files = self.session.files()
        answer = self.session.ask("time", order=order, mode=mode, look=look, files=files,
                                  poisons=self.poisons)  # fmt: skip
        self.spans.append((began, time.monotonic(), count))
        self.poisons = True
        samples = answer["ns"]
        if any(not isinstance(s, int) or s < 0 for s in samples):
            raise Wrong("impossible_time", "a sample that is no time")
        if mode != "graph" or self.session.device == "cpu":  # a graph has no launches to compare
            self.reported.setdefault(mode, []).extend(samples)
        if look is None:
            self.timing += time.monotonic() - began
        else:
            self._judge("while timing", order[look], self.session.read(files))
            self.looks += 1
            self.looking += time.monotonic() - began
        return samples

    def believe(self) -> None:
        """Calls one after the other, timed in the child and, as a whole, here: a clock that the
        kernel has replaced shows, and so does one that it replaces only where times are reported.
        Several tries, since other processes may take the cores between, and with more calls until
        they take long enough to be told from what it takes to ask for them."""
        on_gpu = self.session.device.startswith("cuda")
        order, fault = [self.random.randrange(len(self.masters)) for _ in range(20)], ""
        for _ in range(12):
            busy, began = self.session.busy(), time.perf_counter_ns()
            answer = self.session.ask("time_all", order=order, mode=WAITED if on_gpu else "warm")
            wall = time.perf_counter_ns() - began
            if on_gpu:
                each = (wall - ASKING_NS) / len(order) - LAUNCH_NS
            else:
                now = self.session.busy()
                each = max((now[t] - busy.get(t, 0) for t in now), default=0) / len(order)
            fault = self._doubt(len(order), sum(answer["ns"]), wall, each, on_gpu)
            if not fault and (wall > ENOUGH_NS or len(order) > 100_000):
                break
            order *= 4 if wall < ENOUGH_NS else 1
        if fault:
            raise Wrong("impossible_time", fault)
        self.verdict.checks["clocks"] = "ok"

    def _doubt(self, calls: int, claimed: int, wall: int, each: float, on_gpu: bool) -> str:
        """Why the child's times can't be, if so. `each` is what a call takes at least."""
        if claimed < 0.4 * (wall - ASKING_NS):
            return (
                f"{calls} calls took {wall / 1e6:.1f} ms here, and "
                f"{claimed / 1e6:.1f} ms by the clocks in the kernel's process"
            )
        mode, mean = self._least_reported()
        if mean < BELIEVED * each:
            return (
                f"a call takes {each / 1e3:.1f} µs as seen from here, and {mean / 1e3:.1f} µs "
                f"(mode {mode}) by the clocks in the kernel's process"
                f"{' (does another process work on this GPU?)' if on_gpu else ''}"
            )
        return ""

    def _least_reported(self) -> tuple[str, float]:
        """The mode with the smallest mean, and that; graphs alone leave nothing to hold it to."""
        means = {mode: sum(ns) / len(ns) for mode, ns in self.reported.items()}
        return min(means.items(), key=lambda item: item[1], default=("graph", float("inf")))

    def finish(self, mode: str) -> None:
        waiting = {self.renewed} - {None}
        self._check("after timing", set(range(len(self.masters))) - waiting)
        self.renew(keep_outputs=True)
        self.block(3, "warm" if mode == "graph" else mode)
        self.believe()


def _time_mode(bench: Bench, mode: str, settings: Settings) -> list[int]:
    warm = time.monotonic() + min(WARMING, settings.seconds / 3)
    first = bench.block(3, mode)
    each = max(sorted(first)[1], 1000)
    size = int(min(max(2e8 / each, 5), 200))  # blocks of some 0.2 s
    while time.monotonic() < warm:
        bench.block(size, mode)
    until = time.monotonic() + settings.seconds
    samples: list[int] = []
    while True:
        bench.renew()
        samples += bench.block(size + bench.random.randrange(4), mode)
        enough = len(samples) >= MINIMUM
        if enough and stats.summarise(samples).half_width <= settings.half_width:
            return samples
        if time.monotonic() > until and len(samples) >= 10:
            return samples


def _throughput(case: cases.Case, summary: stats.Summary, device: str) -> dict:
    ceiling = machine.ceilings(device)
    seconds, moved, flops = summary.median / 1e9, case.bytes(), case.flops()
    by_memory = moved / ceiling["bytes_per_s"]
    by_maths = flops / ceiling["flops_per_s"]
    nominal = None
    if ceiling["nominal_bytes_per_s"]:
        nominal = max(
            moved / ceiling["nominal_bytes_per_s"], flops / ceiling["nominal_flops_per_s"]
        )
    return {
        "bytes": moved,
        "flops": flops,
        "gbps": moved / seconds / 1e9,
        "tflops": flops / seconds / 1e12,
        "bound_by": "memory" if by_memory >= by_maths else "maths",
        "share_of_measured_limit": max(by_memory, by_maths) / seconds,
        "share_of_nominal_limit": nominal / seconds if nominal else None,
    }


def _reject_impossible(case: cases.Case, timed: Timed, device: str) -> None:
    """A time under the machine's floor, with more data than its cache holds, is a mistake."""
    import torch

    share = timed.throughput.get("share_of_nominal_limit") or 0
    if share * IMPOSSIBLE > 1 and case.bytes() > last_level_cache(torch.device(device)):
        raise Wrong("impossible_time", f"{share:.2f} of the machine's published limit")


def _is_short(kernel: Kernel, device: str, mode: str, summary, settings: Settings) -> bool:
    return (
        settings.adds_graph
        and mode == "cold"
        and device.startswith("cuda")
        and kernel.capturable
        and summary.median < SHORT_NS
    )


def _bench_case(kernel: Kernel, session: Session, case: cases.Case, settings: Settings) -> Timed:
    bench = Bench(session, case, settings)
    timed = Timed(bench.verdict)
    try:
        bench.prepare()
        with clocks.Watch(session.device) as watch:
            modes = list(settings.modes)
            for mode in modes:
                bench.spans.clear()
                timed.samples[mode] = _time_mode(bench, mode, settings)
                timed.modes[mode] = stats.summarise(timed.samples[mode])
                timed.flagged[mode] = watch.low(bench.spans)
                if _is_short(kernel, session.device, mode, timed.modes[mode], settings):
                    modes.append("graph")
            timed.clocks = [line for _, line in watch.lines]
        bench.finish(settings.modes[0])
        first = timed.modes[settings.modes[0]]
        timed.throughput = _throughput(case, first, session.device)
        timed.launched = session.ask("launched")["names"]
        _reject_impossible(case, timed, session.device)
    except Wrong as wrong:
        bench.verdict.status, bench.verdict.message = wrong.status, str(wrong)
    except WorkerError as error:
        bench.verdict.status, bench.verdict.message = error.status, str(error)
        bench.verdict.log = error.log
    return timed


@dataclass
class Benched:
    kernel: Kernel
    build: Build
    device: str
    cases: list[Timed]

    @property
    def statuses(self) -> list[str]:
        return [timed.verdict.status for timed in self.cases]


def _where(kernel: Kernel, settings: Settings) -> str:
    where = device_of(kernel, settings.device)
    if where is None:
        raise LabError(
            f"{kernel.name} is a {kernel.language} kernel: it needs {' or '.join(kernel.devices)}",
            9,
        )
    if kernel.language == "triton" and where == "cpu":
        raise LabError(
            f"{kernel.name}: Triton on a CPU is an interpreter, whose times say nothing; "
            "`pestle-lab check` runs there",
            9,
        )
    return where


def bench(
    kernel: Kernel,
    problem: Problem,
    texts: list[str],
    settings: Settings,
    progress=lambda timed: None,
) -> Benched:
    where = _where(kernel, settings)
    made = build(kernel, where)
    if not made.ok:
        failed = [Timed(Verdict(t, "compile_error", made.log[-800:])) for t in texts]
        return Benched(kernel, made, where, failed)
    found = Benched(kernel, made, where, [])
    for text in texts:
        case = cases.make(problem, text)
        if why := out_of_domain(kernel, case):
            timed = Timed(Verdict(case.text, "unsupported", why))
        else:
            try:
                with Session(
                    kernel, problem, made, where, settings.timeout, settings.folders
                ) as session:
                    timed = _bench_case(kernel, session, case, settings)
            except WorkerError as error:
                timed = Timed(Verdict(case.text, error.status, str(error), log=error.log))
        found.cases.append(timed)
        progress(timed)
    return found


@dataclass
class Compared:
    id: str
    a: stats.Summary | None = None
    b: stats.Summary | None = None
    ratio: stats.Ratio | None = None
    status: str = "ok"
    message: str = ""
    timed: tuple[Timed, Timed] | None = None  # as bench has them

    def json(self) -> dict:
        made = {"id": self.id, "status": self.status, "message": self.message}
        if self.ratio:
            made |= {"a": self.a.json(), "b": self.b.json(), "baseline": self.ratio.json()}
        return made


def compare(
    a: Kernel,
    b: Kernel,
    problem: Problem,
    texts: list[str],
    settings: Settings,
    progress=lambda compared: None,
) -> list[Compared]:
    """Blocks of A and B in turns (ABBA), each in its own process on the same device."""
    if a.problem != b.problem:
        raise LabError(f"{a.name} and {b.name} are kernels of different problems")
    built = []
    for kernel in (a, b):
        where = _where(kernel, settings)
        made = build(kernel, where)
        if not made.ok:
            raise LabError(f"{kernel.name} does not compile:\n{made.log[-2000:]}", 3)
        built.append((kernel, made, where))
    if built[0][2] != built[1][2]:
        raise LabError(f"{a.name} runs on {built[0][2]}, {b.name} on {built[1][2]}")
    found = []
    for text in texts:
        case = cases.make(problem, text)
        why = out_of_domain(a, case) or out_of_domain(b, case)
        done = Compared(case.text, status="unsupported", message=why)
        if not why:
            done = _compare_case(built, problem, case, settings)
        found.append(done)
        progress(done)
    return found


def _compare_case(built, problem, case, settings) -> Compared:
    done = Compared(case.text)
    try:
        (a, made_a, where), (b, made_b, _) = built
        with (
            Session(a, problem, made_a, where, settings.timeout, settings.folders) as one,
            Session(b, problem, made_b, where, settings.timeout, settings.folders) as two,
        ):
            sides = [Bench(one, case, settings), Bench(two, case, settings)]
            sides[1].seed = sides[0].seed
            for side in sides:
                side.prepare()
            blocks = take_turns(sides, settings)
            for side in sides:
                side.finish(settings.modes[0])
        done.timed = tuple(_timed(*s, settings.modes[0]) for s in zip(sides, blocks, strict=True))
        done.a, done.b = (timed.modes[settings.modes[0]] for timed in done.timed)
        done.ratio = stats.ratio(*blocks, settings.threshold)
    except Wrong as wrong:
        done.status, done.message = wrong.status, str(wrong)
    except WorkerError as error:
        done.status, done.message = error.status, str(error)
    return done


def _timed(side: Bench, blocks: list[list[int]], mode: str) -> Timed:
    samples = [sample for block in blocks for sample in block]
    return Timed(side.verdict, {mode: stats.summarise(samples)}, {mode: samples})


def take_turns(sides: list[Bench], settings: Settings) -> list[list[list[int]]]:
    mode = settings.modes[0]
    each = max(max(sorted(side.block(3, mode))[1] for side in sides), 1000)
    size = int(min(max(2e7 / each, 3), 50))
    warm = time.monotonic() + min(WARMING, settings.seconds / 3)
    while time.monotonic() < warm:
        for side in sides:
            side.block(size, mode)
    blocks: list[list[list[int]]] = [[], []]
    until = time.monotonic() + 2 * settings.seconds
    while True:
        for which in (0, 1, 1, 0):
            blocks[which].append(sides[which].block(size, mode))
        found = stats.ratio(*blocks, settings.threshold)
        # Only a narrow interval ends it early: to stop at a verdict would make verdicts of noise.
        if len(blocks[0]) >= 20 and (found.high - found.low) / 2 <= settings.half_width / 2:
            return blocks
        if time.monotonic() > until and len(blocks[0]) >= 8:
            return blocks
