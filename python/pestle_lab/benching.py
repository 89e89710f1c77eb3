"""pestle-lab bench and compare: how long, with which interval, against which limit."""

from __future__ import annotations

import contextlib
import random
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from .checking import Verdict, Wrong, device_of, judge, one_changed, out_of_domain
from .engine import cases, child, clocks, machine, stats
from .engine.building import Build, build
from .engine.clock import ISSUED, WAITED, last_level_cache
from .engine.contents import Content, Contents
from .engine.session import Session, WorkerError, opened
from .errors import LabError
from .kernels import Kernel
from .problems import Problem

SETS = (2, 16)  # input sets that calls rotate over, at least and at most
# On a GPU a set lies at up to so many places, of so many bytes in all: which pages of memory a call
# works on makes some tenths of a percent. Of compared kernels, which have several processes, at
# fewer in each.
PLACES, ROOM = 3, 2 << 30
# A comparison is made in so many processes of both kernels; apart, in so many of each. And places.
PAIRS, PAIRS_APART, PAIR_PLACES = 2, 4, 2
WARMING = 0.2  # seconds of calls whose times don't count, at most
SHORT_NS = 20_000  # under which a launch shows in a cold time, so that a graph's is measured, too
MINIMUM = 30  # samples of a mode
# Share of what the parent sees of a call under which a reported mean is none: the processor's time
# of the busiest thread on a CPU, which other processes don't add to, and its clock on a GPU.
BELIEVED = 0.2
# Of a call on a GPU: what the kernel that holds the stream hides, and a wait; and the wait alone,
# beside a launch that takes longer, as a CuTe DSL kernel's or ten ops of PyTorch's do.
LAUNCH_NS, WAIT_NS = 60_000, 40_000
ASKING_NS = 5_000_000  # to ask for a block of calls and to be answered
ENOUGH_NS = 20_000_000  # of a block that the parent's clock says something about
KEPT = 1 << 30  # bytes of outputs that were right and need not be judged again
VARIANTS = 2  # of them, of one content: one of each kernel's
TURNS = 12  # at least, of both kernels; 4 where time is over
# By which a kernel may be slower once the other one is loaded, before they are taken apart.
DISTURBED = {"cuda": 1.1, "cpu": 1.5}
OTHERS = 2  # contents that are made before they are asked for, on a GPU
# Blocks that are looked at in any case, and in each process of a comparison; others for half the
# time that calls take.
LOOKS, PAIR_LOOKS = 3, 2
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
    # Contents of the latest case, for other kernels: of who measures many on the same data.
    kept: dict | None = None
    apart: bool = False  # compared kernels in processes of their own, on buffers of their own
    names: bool = True  # what a call launches: PyTorch's profiler takes seconds to begin


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


def places_of(count: int, size: int, device: str, most: int = PLACES) -> int:
    """Of each of `count` sets of `size` bytes."""
    if not device.startswith("cuda"):
        return 1
    return max(1, min(most, SETS[1] // count, ROOM // (count * size)))


def size_of(case: cases.Case) -> int:
    return max(sum(plan.nbytes for plan in case.plans.values()), 1)


def contents_of(case: cases.Case, settings: Settings, device: str) -> Contents:
    """Of so many sets that together they are no guests of the last-level cache."""
    key = (case.problem.name, case.text)
    if settings.kept and key in settings.kept:
        return settings.kept[key]
    cache = last_level_cache(torch.device(device))
    count = min(max(-(-3 * cache // size_of(case)), SETS[0]), SETS[1])
    seed = settings.seed if settings.seed is not None else secrets.randbits(62)
    made = Contents(case, seed)
    # On a CPU nothing is made while calls are timed.
    made.begin(count, OTHERS if device.startswith("cuda") else 0)
    if settings.kept is not None:
        settings.kept.clear()  # there is memory for one case
        settings.kept[key] = made
    return made


class Sets:
    """The input sets of one process: kernels that are compared share them."""

    def __init__(self, session: Session, case: cases.Case, contents: Contents, most: int = PLACES):
        self.session, self.case, self.contents, self.most = session, case, contents, most
        self.masters: list[Content] = []
        self.others = 0  # contents that were asked for since
        self.renewed: int | None = None  # a set that no call has seen since it was renewed

    def place(self) -> None:
        count, size = len(self.contents.first), size_of(self.case)
        for index in range(count * places_of(count, size, self.session.device, self.most)):
            self.masters.append(self.contents.get(index % count))
            same = index % count if index >= count else None
            self.session.place(index, self.masters[index].buffers(), same_as=same, are_buffers=True)

    def renew(self, index: int, content: Content, keep_outputs: bool) -> None:
        self.masters[index] = content
        self.session.place(index, content.buffers(), True, keep_outputs, are_buffers=True)
        self.renewed = index

    def is_right(self, index: int, fetched: dict) -> bool:
        """Whether these very bytes were right for this content, whoever wrote them where, and all
        bytes of the inputs are as they were."""
        content = self.masters[index]
        return any(
            all(np.array_equal(found[name], fetched[name]) for name in found)
            for found in content.right
        ) and all(np.array_equal(raw, fetched[name]) for name, raw in content.buffers().items())

    def keep(self, index: int, fetched: dict) -> None:
        outputs = {plan.name: fetched[plan.name] for plan in self.case.of_role("output")}
        if len(self.masters) * sum(raw.nbytes for raw in outputs.values()) <= KEPT:
            content = self.masters[index]
            content.right = [*content.right[1 - VARIANTS :], outputs]


class Bench:
    """One kernel on one case: its input sets, its timed calls, and the check of what they wrote."""

    def __init__(
        self,
        session: Session,
        sets: Sets,
        which: int = 0,
        least: int = LOOKS,
    ):
        self.session, self.case, self.sets, self.which = session, sets.case, sets, which
        self.least = least
        self.random = random.Random(secrets.randbits(64))
        self.reported: dict[str, list[int]] = {}  # every time that the child gave, by mode
        self.poisons = True  # the outputs of the next call that is looked at
        self.looks, self.looking, self.timing = 0, 0.0, 0.0  # seconds
        self.spans: list[tuple[float, float, int]] = []  # of blocks: began, ended, calls
        self.alone = 0.0  # ns of a call before there was another kernel in the process
        self.verdict = Verdict(self.case.text, seed=sets.contents.seed)

    def prepare(self) -> None:
        """The first kernel of a process: its sets, and whether it is right."""
        self.session.open(self.case)
        self.sets.place()
        self.check_before()
        self.sets.contents.finish()

    def check_before(self) -> None:
        # Compiles what is compiled at the first call.
        self.session.ask("call", set=0, how="plain", which=self.which)
        self._check("before timing", range(len(self.sets.masters)), call=True)

    def _check(self, when: str, sets, call: bool = False) -> None:
        for index in sets:
            if call:
                if self.which:  # what the other kernel wrote is no answer of this one's
                    self.session.ask("poison", set=index)
                self.session.ask("call", set=index, how="plain", which=self.which)
            self._judge(when, index, self.session.fetch(index))

    def _judge(self, when: str, index: int, fetched: dict) -> None:
        if not self.sets.is_right(index, fetched):
            content = self.sets.masters[index]
            judge(self.case, self.session, content.inputs, fetched, content.truth(), when,
                  self.verdict, content.buffers())  # fmt: skip
            self.sets.keep(index, fetched)
        self.verdict.checks[when] = "ok"

    def renew(self, keep_outputs: bool | None = None, given: tuple | None = None) -> None:
        """New contents at the old address of one set: a kernel that kept an answer, or that did the
        work of several calls in one, is wrong from here on. In its outputs poison, or what the call
        before wrote, so that a kernel that leaves alone what is written already is wrong, too."""
        if keep_outputs is None:
            keep_outputs = self.random.random() < 0.5
        index, content = given or self.renewal(self.random.randrange(len(self.sets.masters)))
        self.sets.renew(index, content, keep_outputs)
        self.poisons = not keep_outputs

    def renewal(self, index: int) -> tuple[int, Content]:
        if self.random.random() < 0.5:
            self.sets.others += 1
            return index, self.sets.contents.other(self.sets.others)
        rng = np.random.default_rng(self.random.randrange(2**62))
        changed = one_changed(self.sets.masters[index].inputs, rng)
        return index, Content(self.case, changed, self.sets.contents.keeps)

    def _looks(self) -> bool:
        """Whether the next block is looked at. To fetch large tensors takes longer than to call on
        them, so where no values are new, only as often as that stays the smaller part; when, the
        kernel can't know."""
        if self.sets.renewed is not None or self.looks < self.least:
            return True
        return self.looking < 0.5 * self.timing * self.random.uniform(0.5, 1.5)

    def cells(self, mode: str) -> list[list[int]]:
        """Of a comparison: a set at a place, where calls find nothing in a cache, else all sets."""
        every = list(range(len(self.sets.masters)))
        return [[index] for index in every] if mode == "cold" else [every]

    def block(self, count: int, mode: str, among: list[int] | None = None) -> list[int]:
        """Times of `count` calls on sets in an order that the kernel can't know."""
        among = among or list(range(len(self.sets.masters)))
        order = [self.random.choice(among) for _ in range(count)]
        at, began = self.random.randrange(count), time.monotonic()
        look = at if mode != "graph" and self._looks() else None
        if self.sets.renewed is not None:
            order[at], self.sets.renewed = self.sets.renewed, None
        files = self.session.files()
        answer = self.session.ask("time", order=order, mode=mode, look=look, files=files,
                                  poisons=self.poisons, which=self.which)  # fmt: skip
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
        every = len(self.sets.masters)
        order, fault = [self.random.randrange(every) for _ in range(20)], ""
        for _ in range(12):
            busy, began = self.session.busy(), time.perf_counter_ns()
            mode = WAITED if on_gpu else "warm"
            answer = self.session.ask("time_all", order=order, mode=mode, which=self.which)
            wall = time.perf_counter_ns() - began
            if on_gpu:
                launch = max(LAUNCH_NS, self._issued(order[:20]) + WAIT_NS)
                each = (wall - ASKING_NS) / len(order) - launch
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

    def _issued(self, order: list[int]) -> float:
        """What a call takes to return, as seen from here: of calls that nobody waits for."""
        began = time.perf_counter_ns()
        self.session.ask("time_all", order=order, mode=ISSUED, which=self.which)
        wall = time.perf_counter_ns() - began
        self.session.ask("call", set=order[0], how="plain", which=self.which)  # which waits
        return wall / len(order)

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

    def check_after(self) -> None:
        waiting = {self.sets.renewed} - {None}
        self._check("after timing", set(range(len(self.sets.masters))) - waiting)

    def finish(self, mode: str, given: tuple | None = None) -> None:
        self.renew(keep_outputs=True, given=given)
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


def _bench_case(kernel: Kernel, session: Session, contents: Contents, settings: Settings) -> Timed:
    case = contents.case
    bench = Bench(session, Sets(session, case, contents))
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
        bench.check_after()
        bench.finish(settings.modes[0])
        first = timed.modes[settings.modes[0]]
        timed.throughput = _throughput(case, first, session.device)
        if settings.names:
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
    for number, text in enumerate(texts, 1):
        case = cases.make(problem, text)
        if why := out_of_domain(kernel, case):
            timed = Timed(Verdict(case.text, "unsupported", why))
        else:
            contents = contents_of(case, settings, where)
            try:
                if where != "cpu" and number < len(texts):
                    child.prepare(2)  # and the one of the case after this one
                with Session(
                    kernel, problem, made, where, settings.timeout, settings.folders
                ) as session:
                    timed = _bench_case(kernel, session, contents, settings)
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
    """Blocks of A and B in turns (ABBA), in the same processes and on the same buffers."""
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
            if built[0][2] != "cpu" and text is not texts[-1]:
                child.prepare(2 * PAIRS)  # half of them are of the case after this one
            done = _compare_case(built, problem, case, settings)
        found.append(done)
        progress(done)
    return found


def _compare_case(built, problem, case, settings) -> Compared:
    done = Compared(case.text)
    mode = settings.modes[0]
    try:
        with paired(built, problem, case, settings) as (pairs, why):
            found = take_turns(pairs, settings)
            finish(pairs, mode)
        if not found.apart and (late := _slowed(pairs, found)):
            done = _compare_case(built, problem, case, replace(settings, apart=True))
            done.message = done.message or f"in processes of their own: {late}"
            return done
        done.message = why
        done.timed = tuple(_timed(pairs[0][i], found.blocks[i], mode) for i in range(2))
        done.a, done.b = (timed.modes[mode] for timed in done.timed)
        done.ratio = found.ratio(settings)
        if done.ratio.verdict == "AMBIGUOUS":
            whys = [s.why_unsure(n) for s, n in ((done.a, "A"), (done.b, "B"))]
            done.message = "; ".join(filter(None, (done.message, *whys)))
    except Wrong as wrong:
        done.status, done.message = wrong.status, str(wrong)
    except WorkerError as error:
        done.status, done.message = error.status, str(error)
    return done


def _timed(side: Bench, blocks: list[list[int]], mode: str) -> Timed:
    samples = [sample for block in blocks for sample in block]
    return Timed(side.verdict, {mode: stats.summarise(samples)}, {mode: samples})


def shared_names(a: Kernel, b: Kernel) -> str:
    """Modules that two kernels' files may import, which are not the same ones: one process has
    only one module of a name."""
    one, two = (kernel.path.resolve().parent for kernel in (a, b))
    if one == two or {a.path.suffix, b.path.suffix} != {".py"}:
        return ""
    found = []
    for path in one.iterdir():
        name, other = path.name, two / path.name
        if path.suffix == ".py" and other.exists():
            if {path.resolve(), other.resolve()} & {a.path.resolve(), b.path.resolve()}:
                continue
            if path.read_bytes() != other.read_bytes():
                found.append(path.stem)
        elif (path / "__init__.py").exists() and (other / "__init__.py").exists():
            found.append(name)
    return ", ".join(sorted(found))


@contextlib.contextmanager
def paired(built, problem: Problem, case: cases.Case, settings: Settings):
    """Pairs of benches that can take turns, checked, and why they are apart, where they are and
    nobody asked for it."""
    (a, _, _), (b, _, _) = built
    names = shared_names(a, b)
    why = f"in processes of their own: the kernels' folders have different {names}" if names else ""
    contents = contents_of(case, settings, built[0][2])
    for apart in (settings.apart or bool(names), True):
        with _pairs(built, problem, contents, settings, apart) as pairs:
            if apart or not (disturbed := _disturbed(pairs, settings)):
                yield pairs, why
                return
        why = f"in processes of their own: {disturbed}"


@contextlib.contextmanager
def _pairs(built, problem: Problem, contents: Contents, settings: Settings, apart: bool):
    """Two kernels that are together have the same buffers, so that where these lie in memory makes
    no difference between them; each is the first in a process once. Apart, each has several
    processes, since two processes differ by some tenths of a percent."""
    orders = [(0, 1), (1, 0)] * ((PAIRS_APART if apart else PAIRS) // 2)
    first = [order[0] for order in orders] if not apart else [i for o in orders for i in o]
    sessions = [
        Session(kernel, problem, made, where, settings.timeout, settings.folders)
        for kernel, made, where in (built[i] for i in first)
    ]
    with opened(sessions):
        benches = [
            Bench(s, Sets(s, contents.case, contents, PAIR_PLACES), least=PAIR_LOOKS)
            for s in sessions
        ]
        with ThreadPoolExecutor(len(benches)) as pool:
            list(pool.map(Bench.prepare, benches))
        if apart:
            couples = [(benches[2 * i], benches[2 * i + 1]) for i in range(len(orders))]
        else:
            for bench in benches:  # one after the other: nothing else runs meanwhile
                bench.alone = _short_look(bench, settings.modes[0])
            with ThreadPoolExecutor(len(benches)) as pool:
                second = list(pool.map(lambda i: _join(benches[i], built[orders[i][1]]),
                                       range(len(benches))))  # fmt: skip
            couples = list(zip(benches, second, strict=True))
        yield [
            couple if order == (0, 1) else couple[::-1]
            for order, couple in zip(orders, couples, strict=True)
        ]


def _join(first: Bench, built) -> Bench:
    """The other kernel in the process of the first, on its sets."""
    kernel, made, _ = built
    first.session.add(kernel, made)
    second = Bench(first.session, first.sets, which=1, least=PAIR_LOOKS)
    second.check_before()
    return second


def _short_look(bench: Bench, mode: str) -> float:
    """What a call takes just now."""
    samples = [bench.block(size_of_block(bench, mode), mode) for _ in range(3)]
    return min(float(stats.middle(np.array(block, np.float64))) for block in samples)


def size_of_block(bench: Bench, mode: str) -> int:
    each = max(sorted(bench.block(3, mode))[1], 1000)
    return int(min(max(2e7 / each, 3), 16 if mode == "cold" else 50))


def _disturbed(pairs, settings: Settings) -> str:
    """Whether a kernel is slower than it was alone in its process: what the other one's file did
    there. Not at once: something else may have been at work."""
    for pair in pairs:
        bench = next(side for side in pair if side.which == 0)
        looks = (_short_look(bench, settings.modes[0]) for _ in range(3))
        if slow := _slower(bench, looks):
            return slow
    return ""


def _slowed(pairs, found: Turns) -> str:
    """Whether one became so later on, by its turns."""
    for p, pair in enumerate(pairs):
        which = next(i for i, side in enumerate(pair) if side.which == 0)
        mine = [b for (at, _), b in zip(found.cells, found.blocks[which], strict=True) if at == p]
        times = [float(stats.middle(np.array(block, np.float64))) for block in mine]
        if times and (slow := _slower(pair[which], [float(np.median(times))])):
            return slow
    return ""


def _slower(bench: Bench, times) -> str:
    """Whether each of the times is above what a call took before another kernel was loaded."""
    most = DISTURBED[bench.session.device.partition(":")[0]] * bench.alone
    for now in times:
        if now <= most:
            return ""
    name = bench.session.kernel.name
    return f"beside the other kernel {name} takes {now / bench.alone:.2f} of its time"


def finish(pairs: list[tuple[Bench, Bench]], mode: str) -> None:
    """What is asked of each bench at the end. Every process gets the same new contents, each kernel
    others, so that there is no answer of the other one's in its outputs."""
    firsts = [side for pair in pairs for side in pair if side.which == 0]
    with ThreadPoolExecutor(len(firsts)) as pool:  # nothing is timed by now
        list(pool.map(Bench.check_after, firsts))
    one = pairs[0][0]
    at = one.random.sample(range(len(one.sets.masters)), 2)
    given = [one.renewal(index) for index in at]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda renewal: renewal[1].truth(), given))
    for pair in pairs:
        for side, renewal in zip(pair, given, strict=True):
            side.finish(mode, renewal)


@dataclass
class Turns:
    blocks: tuple[list[list[int]], list[list[int]]] = field(default_factory=lambda: ([], []))
    cells: list[tuple[int, int]] = field(default_factory=list)  # of each: the pair, and the place
    apart: bool = False

    def ratio(self, settings: Settings) -> stats.Ratio:
        by_place = stats.ratio(*self.blocks, settings.threshold, self.cells)
        if not self.apart:
            return by_place
        pairs = [pair for pair, _ in self.cells]
        return stats.wider(
            by_place, stats.ratio(*self.blocks, settings.threshold, pairs), settings.threshold
        )


def take_turns(pairs: list[tuple[Bench, Bench]], settings: Settings) -> Turns:
    """A B B A or B A A B, each turn in one process at one place, until the interval is narrow or
    the time is over."""
    mode, any_side = settings.modes[0], pairs[0][0]
    size = min(size_of_block(side, mode) for pair in pairs for side in pair)
    warm = time.monotonic() + min(WARMING, settings.seconds / 3)
    while time.monotonic() < warm:
        for pair in pairs:
            for side in pair:
                side.block(size, mode)
    cells = [(p, c) for p, pair in enumerate(pairs) for c in range(len(pair[0].cells(mode)))]
    found = Turns(apart=pairs[0][0].sets is not pairs[0][1].sets)
    until = time.monotonic() + 2 * settings.seconds
    while True:
        any_side.random.shuffle(cells)
        for at, (p, c) in enumerate(cells, 1):
            _turn(found, pairs[p], (p, c), mode, size)
            over, count = time.monotonic() > until, len(found.cells)
            if over and count >= 4:
                return found
            if count < TURNS or at not in (len(cells), len(cells) // 2):
                continue
            # Only a narrow interval ends it early: to stop at a verdict would make verdicts of
            # noise.
            ratio = found.ratio(settings)
            if (ratio.high - ratio.low) / 2 <= settings.half_width / 3:
                return found


def _turn(found: Turns, pair: tuple[Bench, Bench], cell: tuple[int, int], mode, size) -> None:
    timed: tuple[list[int], list[int]] = ([], [])
    first = pair[0].random.randrange(2)
    for which in (first, 1 - first, 1 - first, first):
        among = pair[which].cells(mode)[cell[1]]
        timed[which].extend(pair[which].block(size, mode, among))
    for blocks, samples in zip(found.blocks, timed, strict=True):
        blocks.append(samples)
    found.cells.append(cell)
