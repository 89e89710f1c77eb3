"""A sampler's step by the ways that ComfyUI has to compile its model: what the first step costs,
what the later ones, and what a new resolution.

python examples/comfy_compile_bench.py     # FLUX's and Wan's sizes, one GPU, 4 minutes
python examples/comfy_compile_bench.py --shape tiny-flux --device cpu

eager           PyTorch as it is
whole model     as ComfyUI's node TorchCompileModel: torch.compile of the model, its defaults
per block       as KJNodes' TorchCompileModelAdvanced: torch.compile of each block, its defaults
pestle          Apply Torch Compile: repeated blocks, dynamic; its first step is compared with eager
pestle fp8-row  the same with quantised weights, multiplied in 8 bits; pestle int8-row likewise

Weights are random and the sizes the published ones, but of the blocks there are fewer, since a
whole model compiles longer with each; what all take is reckoned beside it, the whole model's
first step by a straight line through two numbers of blocks. --blocks all makes them all. Each way
compiles with empty caches, after the compiler itself has started. Steps are timed in turns, several
in a row where they are short, as a sampler takes them. What no
time is left for is named and left out. A line of JSON with every figure and bar, and the commit
($PESTLE_COMMIT where there is no git), goes to the end of bench/results/comfy_compile.jsonl; of
$OUT/comfy_compile.jsonl where $OUT is set; on a CPU, of --json's file.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import pestle
import torch
from dit_blocks import (
    SHAPES,
    Double,
    Shape,
    Single,
    State,
    TorchKit,
    Wan,
    linears,
    make_blocks,
    make_input,
)
from pestle.comfy import CompiledModel, CompileSettings, relative_error
from torch import nn
from torch._dynamo.pgo import reset_code_state

ROOT = Path(__file__).resolve().parent.parent
# Blocks that are made of each kind, and the tokens of three resolutions.
BLOCKS = {
    "flux": {"double": 3, "single": 6}, "wan": {"wan": 5},
    "tiny-flux": {"double": 2, "single": 3}, "tiny-wan": {"wan": 2},
}  # fmt: skip
TOKENS = {
    "flux": (4096, 3952, 6144),  # 1024 x 1024, 1216 x 832, 1536 x 1024
    "wan": (32760, 20280, 14040),  # 480 x 832, of 81, 49 and 33 frames
    "tiny-flux": (96, 80, 128), "tiny-wan": (160, 96, 120),
}  # fmt: skip
FORMATS = ("fp8-row", "int8-row")
SHARE = {"flux": 0.6, "tiny-flux": 0.6}  # of the time, with another shape behind it


class DoubleBlock(Double):
    def forward(self, x, vector, text, cos, sin):
        return Double.forward(self, x[0], State(vector, text[0], cos[0], sin[0]))[None]


class SingleBlock(Single):
    def forward(self, x, vector, text, cos, sin):
        return Single.forward(self, x[0], State(vector, text[0], cos[0], sin[0]))[None]


class WanBlock(Wan):
    def forward(self, x, vector, text, cos, sin):
        return Wan.forward(self, x[0], State(vector, text[0], cos[0], sin[0]))[None]


KINDS = {"double": DoubleBlock, "single": SingleBlock, "wan": WanBlock}


class Transformer(nn.Module):
    def __init__(self, shape: Shape, blocks: dict[str, int], device: str):
        super().__init__()
        self.kinds = tuple(blocks)
        for kind, count in blocks.items():
            made = make_blocks(shape, kind, count, TorchKit(), device, KINDS)
            self.add_module(f"{kind}_blocks", made)

    def forward(self, x, vector, text, cos, sin):
        for kind in self.kinds:
            for block in getattr(self, f"{kind}_blocks"):
                x = block(x, vector, text, cos, sin)
        return x


def inputs(shape: Shape, tokens: int, device: str) -> tuple[torch.Tensor, ...]:
    x, state = make_input(replace(shape, tokens=tokens), device)
    return x[None], state.vector, state.text[None], state.cos[None], state.sin[None]


def quantised(model: Transformer, format: str) -> None:
    for layer in linears(model):
        made = pestle.QuantizedTensor.from_float(layer.weight.data, format, activations="row")
        layer.weight = nn.Parameter(made, requires_grad=False)


# ---- the ways


def whole_model(model: Transformer, backend: str) -> Callable:
    def keep(entries):
        return ["transformer_options" not in entry.name for entry in entries]

    return torch.compile(model, backend=backend, options={"guard_filter_fn": keep})


def per_block(model: Transformer, backend: str) -> Callable:
    blocks = [block for kind in model.kinds for block in getattr(model, f"{kind}_blocks")]
    compiled = [torch.compile(block, backend=backend, mode="default") for block in blocks]

    def run(*args):
        x, *rest = args
        for block in compiled:
            x = block(x, *rest)
        return x

    return run


def by_pestle(model: Transformer, backend: str) -> Callable:
    settings = CompileSettings.of({"backend": backend, "mode": "default", "dynamic": True})
    compiled = CompiledModel(model, settings)

    def run(*args):
        out = compiled.run(model, lambda: model(*args), args[0].shape)
        if compiled.report.fallback:
            sys.exit(f"comfy_compile_bench: pestle runs eagerly: {compiled.report.fallback}")
        return out

    return run


WAYS = ("pestle", "whole model", "per block", *(f"pestle {format}" for format in FORMATS))


@dataclass
class Row:
    shape: str
    way: str
    blocks: dict[str, int]
    weights_mib: float  # of the blocks' linear layers
    first_step_s: float | None = None
    all_first_step_s: float | None = None  # reckoned for the published number of blocks
    graphs: int | None = None  # that the first step compiled
    step_ms: float | None = None
    all_step_ms: float | None = None
    memory_mib: float | None = None  # of a step, beside the weights; None without a GPU
    recompiles: list[int] = field(default_factory=list)  # of the second and third resolution
    resolution_s: list[float] = field(default_factory=list)  # their first steps
    error: float | None = None  # relative, against bf16 eager


class Clock:
    """What is left of the time that the machine is ours."""

    def __init__(self, seconds: float):
        self.end = time.monotonic() + seconds

    def left(self) -> float:
        return self.end - time.monotonic()

    def allows(self, seconds: float, what: str) -> bool:
        if self.left() > seconds:
            return True
        print(f"left out, {self.left():.0f} s are left: {what}", flush=True)
        return False


@contextmanager
def empty_caches():
    """For a compilation: nothing of an earlier one is found, on disk or in the process. What was
    compiled stays usable, so the folder stays too."""
    from torch._inductor.utils import fresh_cache

    with fresh_cache(delete=False):
        yield


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def cold(run: Callable, args: tuple, device: str) -> tuple[float, int, torch.Tensor]:
    """Seconds of a step that may compile, the graphs that it compiled, and its result."""
    before = graphs()
    synchronise(device)
    start = time.perf_counter()
    out = run(*args)
    synchronise(device)
    return time.perf_counter() - start, graphs() - before, out


def turn_ms(run: Callable, steps: int, device: str) -> float:
    """ms of one of so many steps in a row."""
    if device == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(steps):
            run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / steps
    start = time.perf_counter()
    for _ in range(steps):
        run()
    return 1e3 * (time.perf_counter() - start) / steps


def times_in_turns(runs: dict[str, Callable], device: str, rounds: int) -> dict[str, float]:
    """way -> median ms of a step; each round runs every way, the next one backwards. A turn is
    several short steps, as a sampler takes them: what the host has to do for one is hidden behind
    the one before."""
    made: dict[str, list[float]] = {way: [] for way in runs}
    steps = {way: max(1, min(4, int(100 / turn_ms(run, 1, device)))) for way, run in runs.items()}
    for number in range(rounds + 1):
        order = list(runs) if number % 2 else list(reversed(runs))
        for way in order:
            ms = turn_ms(runs[way], steps[way], device)
            if number:  # the first round warms up
                made[way].append(ms)
    return {way: statistics.median(found) for way, found in made.items()}


def memory_mib(run: Callable, device: str) -> float | None:
    if device != "cuda":
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def weights_mib(model: nn.Module) -> float:
    parts = [layer.weight.data for layer in linears(model)]
    sizes = [
        sum(t.nbytes for t in part.state_dict("").values())
        if isinstance(part, pestle.QuantizedTensor) else part.nbytes
        for part in parts
    ]  # fmt: skip
    return sum(sizes) / 2**20


class Bench:
    """Of one shape."""

    def __init__(self, name: str, blocks: dict[str, int], args: argparse.Namespace, clock: Clock):
        self.shape, self.blocks, self.device = SHAPES[name], blocks, args.device
        self.rounds, self.ways, self.clock = args.rounds, args.way, clock
        self.backend = args.backend
        made = [inputs(self.shape, count, self.device) for count in TOKENS[name]]
        # pestle marks dimensions of what it is given; the others shall not see that.
        marked = [tuple(tensor.clone() for tensor in one) for one in made]
        self.args = {False: made, True: marked}
        self.rows: dict[str, Row] = {}
        self.runs: dict[str, Callable] = {}
        self.model = Transformer(self.shape, blocks, self.device)
        self.add("eager", self.model)
        self.runs["eager"] = self.model
        self.exact = self.model(*self.given("eager")[0])

    def given(self, way: str) -> list[tuple]:
        return self.args[way.startswith("pestle")]

    def add(self, way: str, model: Transformer) -> Row:
        made = Row(self.shape.name, way, self.blocks, weights_mib(model))
        self.rows[way] = made
        return made

    def first(self, way: str, make: Callable, guess: float, format: str = "") -> None:
        """The way's first step. `guess`: seconds that it takes at most."""
        if way not in self.ways or not self.clock.allows(guess, f"{self.shape.name}, {way}"):
            return
        model = self.model
        if format:
            model = Transformer(self.shape, self.blocks, self.device)
            quantised(model, format)
        row, run = self.add(way, model), make(model, self.backend)
        with empty_caches():
            row.first_step_s, row.graphs, out = cold(run, self.given(way)[0], self.device)
        row.error = relative_error(out, self.exact)
        self.runs[way] = run
        print(f"{self.shape.name}, {way}: first step {row.first_step_s:.1f} s, "
              f"{row.graphs} graphs", flush=True)  # fmt: skip

    def resolutions(self, way: str) -> None:
        if way not in self.runs:
            return
        row = self.rows[way]
        for args in self.given(way)[1:]:
            # A dynamic graph takes longer to compile than the first one did.
            guess = 2 * row.first_step_s if way != "pestle" else 5
            if not self.clock.allows(guess, f"{self.shape.name}, {way}, {args[0].shape[1]} tokens"):
                return
            with empty_caches():
                seconds, count, _ = cold(self.runs[way], args, self.device)
            row.recompiles.append(count)
            row.resolution_s.append(seconds)

    def time(self) -> None:
        runs = {way: partial(run, *self.given(way)[0]) for way, run in self.runs.items()}
        for way, ms in times_in_turns(runs, self.device, self.rounds).items():
            self.rows[way].step_ms = ms
            self.rows[way].all_step_ms = ms * self.missing(1)
            self.rows[way].memory_mib = memory_mib(runs[way], self.device)

    def missing(self, value: float) -> float:
        return value * sum(self.shape.blocks.values()) / sum(self.blocks.values())

    def reckon_first_steps(self) -> None:
        """With all blocks: blocks that share graphs add their run, compiled and (pestle compares)
        eagerly; a whole model's compilation grows with them."""
        for way, row in self.rows.items():
            if row.first_step_s is None or row.step_ms is None or way == "whole model":
                continue
            more = row.all_step_ms - row.step_ms
            if way.startswith("pestle"):
                more += self.rows["eager"].all_step_ms - self.rows["eager"].step_ms
            row.all_first_step_s = row.first_step_s + more / 1e3
        if "whole model" in self.runs:
            self.rows["whole model"].all_first_step_s = self.whole_by_two_depths()

    def whole_by_two_depths(self) -> float | None:
        row, made = self.rows["whole model"], sum(self.blocks.values())
        if self.blocks == self.shape.blocks:
            return row.first_step_s
        fewer = {kind: -(-count // 3) for kind, count in self.blocks.items()}
        what = f"{self.shape.name}, whole model of {sum(fewer.values())} blocks"
        if not self.clock.allows(row.first_step_s, what):
            return None
        run = whole_model(Transformer(self.shape, fewer, self.device), self.backend)
        with empty_caches():
            seconds, _, _ = cold(run, self.given("whole model")[0], self.device)
        print(f"{what}: first step {seconds:.1f} s", flush=True)
        a_block = (row.first_step_s - seconds) / (made - sum(fewer.values()))
        return row.first_step_s + a_block * (sum(self.shape.blocks.values()) - made)

    def run(self) -> None:
        self.first("pestle", by_pestle, 40)
        self.resolutions("pestle")
        self.first("whole model", whole_model, 60)
        for format in FORMATS:
            self.first(f"pestle {format}", by_pestle, 30, format)
        self.first("per block", per_block, 25)
        self.time()
        self.reckon_first_steps()
        self.resolutions("per block")
        self.resolutions("whole model")


# ---- what is said of it


def table(rows: list[Row]) -> None:
    base = next((r.step_ms for r in rows if r.way == "whole model"), None)
    head = ["way", "first s", "all blocks", "step ms", "all blocks", "x whole", "step MiB",
            "weights MiB", "graphs", "recompiles", "their s", "error"]  # fmt: skip
    lines = [head]
    for row in rows:
        faster = base / row.step_ms if base and row.step_ms else None
        lines.append([
            row.way, _number(row.first_step_s, 1), _number(row.all_first_step_s, 1),
            _number(row.step_ms, 2), _number(row.all_step_ms, 1), _number(faster, 3),
            _number(row.memory_mib, 0), _number(row.weights_mib, 0), _number(row.graphs, 0),
            " ".join(map(str, row.recompiles)),
            " ".join(f"{s:.1f}" for s in row.resolution_s), _number(row.error, 4),
        ])  # fmt: skip
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    made = ", ".join(f"{count} {kind}" for kind, count in rows[0].blocks.items())
    whole = ", ".join(f"{n} {kind}" for kind, n in SHAPES[rows[0].shape].blocks.items())
    print(f"\n{rows[0].shape}: blocks that ran: {made}; the model has {whole}")
    for line in lines:
        first, *rest = zip(line, widths, strict=True)
        print(first[0].ljust(first[1]), *(text.rjust(width) for text, width in rest), sep="  ")


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


@dataclass
class Bar:
    """What the nodes promise. `value`: None where no time was left to measure it."""

    shape: str
    what: str
    value: float | None
    bar: float
    at_most: bool = False

    @property
    def held(self) -> bool | None:
        if self.value is None:
            return None
        return self.value <= self.bar if self.at_most else self.value >= self.bar

    def __str__(self) -> str:
        word = {True: "held", False: "MISSED", None: "not measured"}[self.held]
        value = "-" if self.value is None else f"{self.value:.3f}"
        side = "most" if self.at_most else "least"
        return f"  {self.what}: {value} (bar: at {side} {self.bar:g}, {word})"


def ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a and b else None


def bars(rows: list[Row]) -> list[Bar]:
    shape = rows[0].shape
    by, missing = {row.way: row for row in rows}, Row(shape, "", {}, 0)
    ours, whole = by.get("pestle", missing), by.get("whole model", missing)
    again = sum(ours.recompiles) if len(ours.recompiles) == 2 else None
    sooner = ratio(whole.all_first_step_s, ours.all_first_step_s)
    made = [
        Bar(shape, "first step sooner than the whole model's, all blocks, times", sooner, 5),
        Bar(shape, "speed of ComfyUI's TorchCompileModel", ratio(whole.step_ms, ours.step_ms), 1),
        Bar(shape, "recompiles of two new resolutions", again, 0, at_most=True),
    ]
    best = min((r.step_ms for r in (ours, whole) if r.step_ms), default=None)
    for format in FORMATS:
        speed = ratio(best, by.get(f"pestle {format}", missing).step_ms)
        least = 1.4 if "flux" in shape else 1.2
        made.append(Bar(shape, f"speed of {format} weights, of compiled bf16's best", speed, least))
    return made


class Line:
    """One line at the end of a file, written anew with each shape, so that a machine that is taken
    away leaves what was measured."""

    def __init__(self, path: Path, args: argparse.Namespace):
        self.path = path
        self.before = path.read_text() if path.exists() else ""
        gpu = {"gpu": {"name": torch.cuda.get_device_name()}} if args.device == "cuda" else {}
        versions = {"torch": torch.__version__, "pestle": pestle.__version__}
        versions |= {"triton": triton} if (triton := _triton()) else {}
        self.head = {
            "date": time.strftime("%Y-%m-%d"), "machine": {"commit": commit()}, **gpu,
            "device": args.device, "backend": args.backend, "versions": versions,
        }  # fmt: skip

    def write(self, rows: list[Row], made: list[Bar]) -> None:
        told = [asdict(bar) | {"held": bar.held} for bar in made]
        line = self.head | {"rows": [asdict(row) for row in rows], "bars": told}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(f"{self.before}{json.dumps(line)}\n")


def _triton() -> str:
    try:
        import triton
    except ImportError:
        return ""
    return triton.__version__


def commit() -> str:
    """What is measured: $PESTLE_COMMIT, or HEAD, "-dirty" where the tree is not HEAD's."""
    if told := os.environ.get("PESTLE_COMMIT"):
        return told
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    done = subprocess.run(git, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def check_compiler(device: str) -> None:
    """What inductor needs is here, said before anything is timed; and the compiler has started."""
    if device == "cuda":
        try:
            import triton  # noqa: F401
        except ImportError:
            sys.exit("comfy_compile_bench: inductor needs Triton on a GPU: pip install triton")
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        sys.exit("comfy_compile_bench: no gcc or clang in PATH: Triton and inductor compile their "
                 "launchers with one")  # fmt: skip
    x = torch.randn(64, 64, device=device)
    start = time.perf_counter()
    with empty_caches():
        torch.compile(lambda a: torch.nn.functional.gelu(a @ a).sum(-1))(x)
    synchronise(device)
    print(f"the compiler's own start: {time.perf_counter() - start:.1f} s", flush=True)


def parse() -> argparse.Namespace:
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", nargs="+", choices=BLOCKS, help="default: flux wan")
    parser.add_argument("--blocks", choices=["few", "all"], default="few")
    parser.add_argument("--way", nargs="+", choices=WAYS, default=WAYS, metavar="WAY")
    parser.add_argument("--device", default="cuda" if gpu else "cpu", choices=["cuda", "cpu"])
    parser.add_argument("--backend", default="inductor", help="of torch.compile; eager is quick")
    parser.add_argument("--rounds", type=int, default=9, help="in which steps are timed")
    parser.add_argument("--seconds", type=float, default=225, help="that all of it may take")
    parser.add_argument("--json", type=Path, help="the file that gets a line more")
    args = parser.parse_args()
    args.shape = args.shape or (["flux", "wan"] if gpu else ["tiny-flux", "tiny-wan"])
    folder = os.environ.get("OUT") or (ROOT / "bench/results" if args.device == "cuda" else None)
    if args.json is None and folder:
        args.json = Path(folder) / "comfy_compile.jsonl"
    if args.device == "cuda" and not gpu:
        parser.error("--device cuda: there is no GPU here; the tiny shapes run with --device cpu")
    return args


@torch.inference_mode()
def main() -> None:
    args = parse()
    torch._dynamo.config.recompile_limit = 64  # as those nodes set it
    whole = Clock(args.seconds)
    if args.backend == "inductor":
        check_compiler(args.device)
    rows: list[Row] = []
    judged: list[Bar] = []
    line = Line(args.json, args) if args.json else None
    for number, name in enumerate(args.shape):
        torch._dynamo.reset()
        reset_code_state()  # which sizes changed; the ways have frames of their own
        last = number == len(args.shape) - 1
        clock = Clock(whole.left() * (1 if last else SHARE.get(name, 0.5)))
        blocks = SHAPES[name].blocks if args.blocks == "all" else BLOCKS[name]
        bench = Bench(name, blocks, args, clock)
        bench.run()
        made = list(bench.rows.values())
        rows += made
        judged += (found := bars(made))
        table(made)
        print(*found, sep="\n", flush=True)
        if line:
            line.write(rows, judged)
        del bench
    print(f"\n{args.seconds - whole.left():.0f} s")


if __name__ == "__main__":
    main()
