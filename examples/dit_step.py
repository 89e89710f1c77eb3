"""A step of a diffusion transformer, timed: bf16 PyTorch, its compiler, peers, and Pestle.

python examples/dit_step.py                      # FLUX's and Wan's shapes, on a GPU
python examples/dit_step.py --shape tiny-flux    # anywhere
python examples/dit_step.py --json step.json --markdown step.md --plot step.svg --limit 200

Two blocks of each kind run with random weights, attention by PyTorch everywhere; a step is reckoned
from the blocks' times and how many of them the model has. Errors are of the last block's output
against bf16's. What is not installed, or would begin after --limit seconds, is named and left out.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
import torch._inductor.config
from dit_blocks import (
    SHAPES,
    Fp8Kit,
    Int8Kit,
    Linear,
    Nvfp4Kit,
    Shape,
    TorchKit,
    linears,
    make_blocks,
    make_input,
)
from torch import nn

BLOCKS = 2  # of each kind that run


@dataclass
class Row:
    shape: str
    variant: str
    step_ms: float
    block_ms: dict[str, float]
    weights_mb: float  # of the linear layers of the blocks that ran
    peak_mb: float  # while they ran; 0 without a GPU
    error: float  # relative, against bf16


class Missing(Exception):
    """A row that can't be had, and why."""


def compiled(blocks: nn.ModuleList) -> nn.ModuleList:
    for block in blocks:
        block.compile(dynamic=False)
    return blocks


def torchao_blocks(name: str) -> Callable:
    """The peer's own way: nn.Linear modules, quantize_, torch.compile. Of what it would set of
    inductor's configuration the fusion of INT8 products is kept; its tuning by coordinate descent,
    which no other variant has, takes minutes a block."""

    def make(shape, kind, device):
        try:
            from torchao import quantization as ao
        except ImportError as error:
            raise Missing(f"torchao: {error}") from None
        config = {
            "int8": lambda: ao.Int8DynamicActivationInt8WeightConfig(set_inductor_config=False),
            "fp8": lambda: ao.Float8DynamicActivationFloat8WeightConfig(
                granularity=ao.PerRow(), set_inductor_config=False
            ),
        }[name]()
        torch._inductor.config.force_fuse_int_mm_with_mul = True
        blocks = with_linear_modules(make_blocks(shape, kind, BLOCKS, TorchKit(), device))
        wanted = {id(layer.module) for layer in linears(blocks)}
        ao.quantize_(blocks, config, filter_fn=lambda module, _: id(module) in wanted)
        return compiled(blocks)

    return make


class _KitchenFp8(TorchKit):
    """Both sides in FP8, activations by a scale of one: what ComfyUI does with a file that brings
    no input_scale, and the least work."""

    one = None

    def linear(self, x, layer):
        from comfy_kitchen.tensor import QuantizedTensor

        if self.one is None:
            self.one = torch.ones((), device=x.device)
        x = QuantizedTensor.from_float(x, "TensorCoreFP8Layout", scale=self.one)
        return super().linear(x, layer)


def kitchen_blocks(kit: Callable, layout: str, compile: bool = False, **options) -> Callable:
    """comfy-kitchen's QuantizedTensor as the weight, as ComfyUI has it."""

    def make(shape, kind, device):
        try:
            from comfy_kitchen.tensor import QuantizedTensor
        except ImportError as error:
            raise Missing(f"comfy-kitchen: {error}") from None
        blocks = make_blocks(shape, kind, BLOCKS, kit(), device)
        for layer in linears(blocks):
            weight = QuantizedTensor.from_float(layer.weight.data, layout, **options)
            layer.weight = nn.Parameter(weight, requires_grad=False)
        return compiled(blocks) if compile else blocks

    return make


class _ByModule(TorchKit):
    def linear(self, x, layer):
        return layer.module(x)


def with_linear_modules(blocks: nn.ModuleList) -> nn.ModuleList:
    for layer in linears(blocks):
        rows, columns = layer.weight.shape
        with torch.device("meta"):
            layer.module = nn.Linear(columns, rows)
        layer.module.weight, layer.module.bias = layer.weight, layer.bias
        layer.weight = None
    for module in blocks.modules():
        if hasattr(module, "kit"):
            module.kit = _ByModule()
    return blocks


def ours(kit: TorchKit, compile: bool = False) -> Callable:
    def make(shape, kind, device):
        blocks = make_blocks(shape, kind, BLOCKS, kit, device)
        return compiled(blocks) if compile else blocks

    return make


VARIANTS: dict[str, Callable] = {
    "bf16, eager": ours(TorchKit()),
    "bf16, torch.compile": ours(TorchKit(), compile=True),
    "comfy-kitchen fp8": kitchen_blocks(_KitchenFp8, "TensorCoreFP8Layout"),
    "comfy-kitchen int8": kitchen_blocks(TorchKit, "TensorWiseINT8Layout", per_channel=True),
    "pestle int8": ours(Int8Kit()),
    "pestle fp8": ours(Fp8Kit()),
    "pestle nvfp4 weights": ours(Nvfp4Kit()),
    "pestle int8, compiled": ours(Int8Kit(), compile=True),
    "torchao int8, compiled": torchao_blocks("int8"),
    "pestle fp8, compiled": ours(Fp8Kit(), compile=True),
    "torchao fp8, compiled": torchao_blocks("fp8"),
    "comfy-kitchen int8, compiled": kitchen_blocks(
        TorchKit, "TensorWiseINT8Layout", compile=True, per_channel=True
    ),
}


def time_ms(run: Callable, device: str, seconds: float) -> float:
    """Median of single runs after warming up, until the time is spent and at least five times."""
    run()
    run()
    times, until = [], time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < until:
        if device == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        else:
            begin = time.perf_counter()
            run()
            times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


def weight_bytes(layer: Linear) -> int:
    if getattr(layer, "module", None) is None:
        return layer.nbytes()
    weight = layer.module.weight
    names = getattr(weight, "tensor_data_names", None) or ()
    parts = [getattr(weight, name) for name in names] or [weight]
    return sum(part.nbytes for part in parts)


@dataclass
class Inputs:
    """What every row of a shape shares: made once, since a film's tokens take seconds."""

    shape: Shape
    device: str

    def __post_init__(self):
        self.x, self.state = make_input(self.shape, self.device)
        self.exact: dict[str, torch.Tensor] = {}  # bf16's results by kind of block, on the CPU


@torch.inference_mode()
def measure(inputs: Inputs, variant: str, seconds: float) -> Row:
    shape, device = inputs.shape, inputs.device
    block_ms, weights, peak, error = {}, 0, 0.0, 0.0
    for kind in shape.blocks:
        blocks = VARIANTS[variant](shape, kind, device)
        weights += sum(weight_bytes(layer) for layer in linears(blocks))

        def run(blocks=blocks):
            y = inputs.x
            for block in blocks:
                y = block(y, inputs.state)
            return y

        made = run()
        exact = inputs.exact.setdefault(kind, made.cpu()).to(device)
        error = max(error, relative_error(made, exact))
        del made, exact
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        block_ms[kind] = time_ms(run, device, seconds) / BLOCKS
        if device == "cuda":
            peak = max(peak, torch.cuda.max_memory_allocated() / 2**20)
        del blocks
    step = sum(block_ms[kind] * count for kind, count in shape.blocks.items())
    return Row(shape.name, variant, step, block_ms, weights / 2**20, peak, error)


def relative_error(made: torch.Tensor, exact: torch.Tensor) -> float:
    """In pieces: a film's activations in f32 would be the largest thing in memory."""
    off = total = 0.0
    for a, b in zip(made.split(4096), exact.split(4096), strict=True):
        off += float((a.float() - b.float()).square().sum())
        total += float(b.float().square().sum())
    return (off / total) ** 0.5


def cells(rows: list[Row]) -> list[list[str]]:
    """Heading and lines of a shape's table."""
    base = next((r.step_ms for r in rows if r.variant == "bf16, torch.compile"), None)
    kinds = list(rows[0].block_ms)
    head = [rows[0].shape, "ms a step", "x compiled bf16", *(f"ms {k}" for k in kinds)]
    head += ["weights MB", "peak MB", "error"]
    lines = [
        [
            row.variant, f"{row.step_ms:.2f}", f"{base / row.step_ms:.2f}" if base else "",
            *(f"{row.block_ms[k]:.3f}" for k in kinds),
            f"{row.weights_mb:.0f}", f"{row.peak_mb:.0f}", f"{row.error:.4f}",
        ]
        for row in rows
    ]  # fmt: skip
    return [head, *lines]


def print_table(rows: list[Row]) -> None:
    lines = cells(rows)
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for line in lines:
        first, *rest = zip(line, widths, strict=True)
        print(first[0].ljust(first[1]), *(text.rjust(width) for text, width in rest), sep="  ")
    print()


def save_markdown(rows: list[Row], path: str) -> None:
    parts = []
    for shape in dict.fromkeys(row.shape for row in rows):
        head, *lines = cells([row for row in rows if row.shape == shape])
        rule = ["---", *["--:"] * (len(head) - 1)]
        table = [f"| {' | '.join(line)} |" for line in (head, rule, *lines)]
        parts.append("\n".join(table))
    with open(path, "w") as file:
        file.write("\n\n".join(parts) + "\n")


def plot(rows: list[Row], path: str) -> None:
    try:
        import matplotlib
    except ImportError:
        sys.exit("dit_step: --plot needs matplotlib: pip install matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    shapes = list(dict.fromkeys(row.shape for row in rows))
    figure, axes = pyplot.subplots(1, len(shapes), figsize=(6 * len(shapes), 4), squeeze=False)
    for ax, shape in zip(axes[0], shapes, strict=True):
        mine = [row for row in rows if row.shape == shape]
        colors = ["tab:blue" if r.variant.startswith("pestle") else "tab:gray" for r in mine]
        bars = ax.barh([r.variant for r in mine], [r.step_ms for r in mine], color=colors)
        ax.bar_label(bars, fmt="%.1f", padding=3)
        ax.invert_yaxis()
        ax.margins(x=0.15)
        ax.set_title(f"{shape}: ms a step, reckoned")
    figure.tight_layout()
    figure.savefig(path)
    print(f"picture: {path}")


def parse() -> argparse.Namespace:
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", nargs="+", choices=SHAPES, help="default: flux wan")
    parser.add_argument("--variant", nargs="+", choices=VARIANTS, metavar="NAME")
    parser.add_argument("--device", default="cuda" if gpu else "cpu", choices=["cuda", "cpu"])
    parser.add_argument("--seconds", type=float, default=1.0, help="of timing a kind of block")
    parser.add_argument("--limit", type=float, default=float("inf"), metavar="SECONDS",
                        help="begin no row after these")  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="write the rows there")
    parser.add_argument("--markdown", metavar="FILE", help="write the tables there")
    parser.add_argument("--plot", metavar="FILE", help="draw them there (svg, png, pdf)")
    args = parser.parse_args()
    args.shape = args.shape or (["flux", "wan"] if gpu else ["tiny-flux", "tiny-wan"])
    if args.device == "cuda" and not gpu:
        parser.error("--device cuda: there is no GPU here; the tiny shapes run with --device cpu")
    return args


def tell(text: str) -> None:
    """Progress: one line in a terminal, a line each elsewhere."""
    start, end = ("\x1b[K", "\r") if sys.stderr.isatty() else ("", "\n")
    print(f"{start}{text}", end=end, file=sys.stderr, flush=True)


def versions() -> dict[str, str]:
    found = {"torch": torch.__version__}
    for name in ("pestle", "torchao", "comfy-kitchen"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def save(rows: list[Row], args: argparse.Namespace) -> None:
    """After every row, so that a run that is cut short leaves what it has."""
    if args.json:
        device = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
        made = {"device": device, "versions": versions(), "blocks": BLOCKS}
        with open(args.json, "w") as file:
            json.dump({**made, "rows": [asdict(row) for row in rows]}, file, indent=1)
    if args.markdown and rows:
        save_markdown(rows, args.markdown)


def left_out(shape: str, variant: str, why) -> None:
    print(f"{shape}: {variant}: left out, {why}", file=sys.stderr)


def run_shape(shape: str, variants: list[str], args, before: list[Row], until: float) -> list[Row]:
    inputs = Inputs(SHAPES[shape], args.device)
    rows: list[Row] = []
    for variant in variants:
        if time.monotonic() > until:
            left_out(shape, variant, f"{args.limit:g} s are over")
            continue
        tell(f"{shape}: {variant} ...")
        begin = time.monotonic()
        try:
            rows.append(measure(inputs, variant, args.seconds))
        except Exception as error:
            if not isinstance(error, Missing) and variant.startswith(("pestle", "bf16")):
                raise
            lines = str(error).splitlines() or [type(error).__name__]  # a peer's error ends its row
            left_out(shape, variant, lines[0])
            continue
        torch._dynamo.reset()
        save(before + rows, args)
        took = time.monotonic() - begin
        tell(f"{shape}: {variant}: {rows[-1].step_ms:.2f} ms a step ({took:.0f} s)")
    return rows


def main() -> None:
    args = parse()
    variants = args.variant or list(VARIANTS)
    if variants[0] != "bf16, eager":
        variants.insert(0, "bf16, eager")  # what errors are against
    begin, rows = time.monotonic(), []
    for index, name in enumerate(args.shape):
        # Each shape has its share of the limit, and what those before it left of theirs.
        share = args.limit * (index + 1) / len(args.shape)
        made = run_shape(name, variants, args, rows, begin + share)
        if made:
            print_table(made)
        rows += made
    save(rows, args)
    if args.plot:
        plot(rows, args.plot)


if __name__ == "__main__":
    main()
