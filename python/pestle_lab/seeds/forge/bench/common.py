"""What all benchmarks share: inputs, a check against the reference before any time is taken, bytes,
and the shape of a result."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from forge_cute_py import ops, ref
from forge_cute_py.util import do_bench, estimate_bandwidth, summarize_times
from forge_cute_py.util.bench import default_device

SCHEMA = "forge-bench/1"
WRONG, FAILED = 4, 5  # exit codes
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1e-2, torch.float32: 1e-5}
REDUCTION_SLACK = 10  # sums of a row, rounded in another order


@dataclass(frozen=True)
class Work:
    """A call to time, what it must give, and the bytes that it moves at least."""

    call: Callable[[], torch.Tensor]
    truth: Callable[[], torch.Tensor]
    nbytes: int
    slack: int = 1


def values(m: int, n: int, dtype: str) -> torch.Tensor:
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r}, expected one of {', '.join(DTYPES)}")
    return torch.randn(m, n, device=default_device()).to(DTYPES[dtype])


def _moved(*tensors: torch.Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def copy_transpose(m: int, n: int, dtype: str, tile_size: int = 16) -> Work:
    x = values(m, n, dtype)
    return Work(
        lambda: ops.copy_transpose(x, tile_size), lambda: ref.copy_transpose(x), 2 * _moved(x), 0
    )


def reduce(m: int, n: int, dtype: str, dim: int = -1, reduce_op: str = "sum") -> Work:
    x = values(m, n, dtype)
    truth = lambda: ref.reduce(x, dim, reduce_op)  # noqa: E731
    return Work(
        lambda: ops.reduce(x, dim, reduce_op), truth, _moved(x, x.select(dim, 0)), REDUCTION_SLACK
    )


def reduce_sum(m: int, n: int, dtype: str, dim: int = -1) -> Work:
    x = values(m, n, dtype)
    return Work(
        lambda: ops.reduce_sum(x, dim),
        lambda: ref.reduce_sum(x, dim),
        _moved(x, x.select(dim, 0)),
        REDUCTION_SLACK,
    )


def softmax_online(m: int, n: int, dtype: str, dim: int = -1) -> Work:
    x = values(m, n, dtype)
    return Work(
        lambda: ops.softmax_online(x, dim), lambda: ref.softmax_online(x, dim), 2 * _moved(x)
    )


def softmax_backward(m: int, n: int, dtype: str) -> Work:
    dy, y = values(m, n, dtype), torch.softmax(values(m, n, dtype), -1)
    return Work(lambda: ops.softmax_bwd(dy, y), lambda: ref.softmax_backward(dy, y), 3 * _moved(y))


OPS = {f.__name__: f for f in (copy_transpose, reduce, reduce_sum, softmax_online)}


class WrongResult(Exception):
    pass


def check(work: Work) -> None:
    got, truth = work.call(), work.truth()
    limit = TOLERANCE[truth.dtype] * work.slack
    try:
        torch.testing.assert_close(got, truth, atol=limit, rtol=limit, equal_nan=False)
    except AssertionError as error:
        raise WrongResult(str(error).replace("\n", " ")) from None


def measure(work: Work, warmup: int, iterations: int) -> dict:
    check(work)
    times = summarize_times(do_bench(work.call, warmup=warmup, rep=iterations))
    check(work)
    return {
        "times_ms": times,
        "bandwidth_gbps": estimate_bandwidth(work.nbytes, times["p50_ms"]),
    }


def environment() -> dict:
    on_gpu = torch.cuda.is_available()
    major, minor = torch.cuda.get_device_capability() if on_gpu else (0, 0)
    return {
        "python_version": sys.version.split()[0],
        "torch_version": torch.__version__,
        "cuda_version": torch.version.cuda,
        "device": "cuda" if on_gpu else "cpu",
        "gpu_name": torch.cuda.get_device_name() if on_gpu else None,
        "sm": f"{major}{minor}" if on_gpu else None,
        "cuda_driver_version": _driver() if on_gpu else None,
    }


def _driver() -> str | None:
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"],
            capture_output=True, text=True, timeout=20,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def counts(
    parser: argparse.ArgumentParser, warmup: int | None = 10, iterations: int | None = 50
) -> None:
    """Without a default it is the suite's."""
    how = "as the suite says" if iterations is None else "%(default)s"
    parser.add_argument(
        "--warmup", type=int, default=warmup, help=f"calls before those that are timed [{how}]"
    )
    parser.add_argument(
        "--iterations", type=int, default=iterations, help=f"calls that are timed [{how}]"
    )
    parser.add_argument("--out", type=Path, help="write the results as JSON to this file")


def lists(parser: argparse.ArgumentParser, name: str, default: list, **options) -> None:
    """Values after --NAME, with spaces or commas between them."""
    kind = type(default[0])

    class Split(argparse.Action):
        def __call__(self, parser, namespace, texts, option_string=None):
            words = [word for text in texts for word in text.split(",") if word.strip()]
            try:
                values = [kind(word) for word in words]
            except ValueError:
                parser.error(f"--{name}: {' '.join(texts)!r} is no list of numbers")
            allowed = options.get("allowed")
            if not values or (allowed and set(values) - set(allowed)):
                known = f", expected {', '.join(map(str, allowed))}" if allowed else ""
                parser.error(f"--{name}: {' '.join(texts)!r}{known}")
            setattr(namespace, self.dest, values)

    parser.add_argument(
        f"--{name}", nargs="+", action=Split, default=default, help=options.get("help")
    )


def line(name: str, case: dict) -> str:
    times = case["times_ms"]
    return (
        f"{name:34} p50 {times['p50_ms']:9.4f} ms  mean {times['mean_ms']:9.4f}  "
        f"p90 {times['p90_ms']:9.4f}  {case['bandwidth_gbps']:8.1f} GB/s"
    )


def where() -> str:
    if torch.cuda.is_available():
        return f"on {torch.cuda.get_device_name()}, cache flushed before each call"
    return "on the CPU (no GPU here), cache flushed before each call"


def compare(named: dict[str, Work], args: argparse.Namespace, heading: dict) -> dict:
    """Prints one line for each way to do the same; how many times as fast the first is."""
    found = {}
    for name, work in named.items():
        found[name] = measure(work, args.warmup, args.iterations)
        print(line(f"  {name}", found[name]))
    first = next(iter(found))
    for name in list(found)[1:]:
        ratio = found[name]["times_ms"]["p50_ms"] / found[first]["times_ms"]["p50_ms"]
        print(f"    {first} is {ratio:.2f} times as fast as {name}")
    return heading | {"status": "ok", "ways": found}


def save(path: Path | None, cases: list[dict], args: argparse.Namespace, **more) -> None:
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    made = {
        "schema": SCHEMA,
        **more,
        "warmup": args.warmup,
        "iterations": args.iterations,
        "env": environment(),
        "cases": cases,
    }
    path.write_text(json.dumps(made, indent=1) + "\n")
    print(f"results: {path}")


def finish(main: Callable[[], int]) -> None:
    """Ends the process: a mistake of the caller is a sentence, and so is a wrong result."""
    try:
        sys.exit(main())
    except WrongResult as error:
        print(f"wrong result: {error}", file=sys.stderr)
        sys.exit(WRONG)
    except ValueError as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        sys.exit(2)
