"""What the commands of the lab share: options, consoles, the end of a report."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from . import benching, checking, errors, history, kernels, problems, report, suites
from .engine import cases
from .engine.clock import MODES

console = Console(stderr=True, soft_wrap=True)
out = Console(soft_wrap=True)
if not out.is_terminal:  # tables in a file or a pipe are not cut to a screen's width
    out = Console(soft_wrap=True, width=1000)

Folders = Annotated[
    list[Path] | None,
    typer.Option(
        "--kernels", "-k", help="A folder of kernels and problems; may be given again. [default: .]"
    ),
]
Device = Annotated[
    str | None, typer.Option(help="cuda, cuda:1, cpu. [default: cuda if there is one]")
]
Suite = Annotated[
    str,
    typer.Option(
        help="smoke, correctness, adversarial, performance, huge, or all (the first three); or a "
        "file of your cases: FILE.yaml, FILE.json:NAME."
    ),
]
Cases = Annotated[
    list[str] | None,
    typer.Option(
        "--case",
        help='A case instead of a suite: "M=64 K=256 x=bf16 memory=strided"; may be repeated.',
    ),
]
Json = Annotated[bool, typer.Option("--json", help="The report as JSON on standard output.")]
Out = Annotated[Path | None, typer.Option("--out", help="The report as JSON into this file.")]
Html = Annotated[Path | None, typer.Option("--html", help="The report as one HTML page.")]
Timeout = Annotated[
    float, typer.Option(min=1, help="Seconds that one answer of a kernel may take.")
]
Seed = Annotated[
    int | None, typer.Option(help="Of the data. [default: a secret one for each case]")
]
Seconds = Annotated[float, typer.Option(min=0.05, help="Time to spend on a case and mode.")]
Mode = Annotated[
    list[str] | None,
    typer.Option("--mode", help="cold, warm, graph, host; may be given again. [default: cold]"),
]
LockClocks = Annotated[
    int | None,
    typer.Option(
        min=1, help="MHz at which the GPU is held meanwhile (root's). [default: left as they are]"
    ),
]
Keep = Annotated[Path | None, typer.Option("--history", help="The history's file.")]
FailIfSlower = Annotated[
    float | None,
    typer.Option(min=0, help="Exit with 8 if a case became slower by more than this many percent."),
]


def folders_of(given: list[Path] | None) -> list[Path]:
    return list(given or [Path.cwd()])


def all_kernels(given: list[Path] | None) -> list[Path]:
    return [*folders_of(given), kernels.BUILT_IN]


def modes_of(given: list[str] | None) -> tuple[str, ...]:
    for one in given or []:
        if one not in MODES:
            raise errors.LabError(f"--mode {one}: expected one of {', '.join(MODES)}")
    return tuple(given or ["cold"])


def texts_of(problem: problems.Problem, suite: str, given: list[str] | None) -> list[str]:
    if given:
        return given
    if suites.is_file(suite):
        return suites.read(suite)
    if suite == "all":
        texts = [t for s in problems.SUITES[:2] for t in problem.suites.get(s, [])]
        return list(dict.fromkeys([*texts, *problem.cases("adversarial")]))
    return problem.cases(suite)


def _cases(problem: problems.Problem, suite: str) -> list[str]:
    with contextlib.suppress(errors.LabError):  # it has none
        return problem.cases(suite)
    return []


def _taken(kernel: kernels.Kernel, problem: problems.Problem, texts: list[str]) -> list[str]:
    return [t for t in texts if not checking.out_of_domain(kernel, cases.make(problem, t))]


def texts_to_check(
    kernel: kernels.Kernel, problem: problems.Problem, suite: str, given: list[str] | None = None
) -> tuple[list[str], str]:
    """Those asked for, and the suite's name. The suite smoke has a few cases of each problem, of
    which a kernel of one dtype may take none: then the next suite's."""
    texts = texts_of(problem, suite, given)
    if given or suite != "smoke" or _taken(kernel, problem, texts):
        return texts, suite
    for name in ("correctness", "adversarial", "performance"):
        if found := _taken(kernel, problem, _cases(problem, name)):
            return found, name
    return texts, suite


def text_to_profile(kernel: kernels.Kernel, problem: problems.Problem) -> str:
    """The first case that the kernel takes, of those for performance if there is one."""
    every = [t for s in ("performance", *problems.SUITES[:3]) for t in _cases(problem, s)]
    return first_taken(kernel, problem, every, "called")


def first_taken(
    kernel: kernels.Kernel, problem: problems.Problem, texts: list[str], done: str
) -> str:
    """Of these cases; an error that says what was not done where the kernel takes none."""
    for text in texts:
        if not checking.out_of_domain(kernel, cases.make(problem, text)):
            return text
    raise checking.takes_none(kernel, problem, texts, done)


def finish(
    made: dict,
    code: int,
    as_json: bool,
    path: Path | None,
    page: Path | None = None,
    lines: list[dict] | None = None,
    ends: bool = True,
) -> None:
    report.finish(made, code)
    if path:
        report.write(made, path)
    if as_json:
        print(json.dumps(made, indent=1))
    if page:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(report.html(made, lines or []))
        console.print(f"report: {page}", highlight=False)
    if ends:
        raise typer.Exit(code)


def colour(status: str) -> str:
    return {"ok": "green", "unsupported": "yellow"}.get(status, "red")


def show_verdict(verdict: checking.Verdict) -> None:
    console.print(f"  [{colour(verdict.status)}]{verdict.status}[/] {verdict.id}", highlight=False)
    if verdict.message:
        console.print(f"      {verdict.message}", markup=False, highlight=False)
    if not verdict.passed and verdict.status != "unsupported":
        console.print(
            f'      again: --case "{verdict.id}" --seed {verdict.seed}',
            markup=False,
            highlight=False,
        )


def show_time(timed: benching.Timed) -> None:
    show_verdict(timed.verdict)
    for mode, summary in timed.modes.items():
        rest = ""
        if timed.throughput and mode == next(iter(timed.modes)):
            rest = (
                f", {timed.throughput['gbps']:.1f} GB/s, "
                f"{100 * timed.throughput['share_of_measured_limit']:.0f} % of the "
                f"{timed.throughput['bound_by']} limit"
            )
        console.print(
            f"      {mode} {summary.median / 1e3:.3f} µs "
            f"[{summary.low / 1e3:.3f}, {summary.high / 1e3:.3f}], n = {summary.n}{rest}",
            markup=False,
            highlight=False,
        )
        if unsure := summary.why_unsure("it"):
            console.print(f"      [yellow]{unsure}[/]", highlight=False)
    for mode, count in timed.flagged.items():
        if count:
            console.print(
                f"      [yellow]{count} of the samples of {mode} had an SM clock under 75 % of the "
                "run's median[/]",
                highlight=False,
            )
    if timed.launched:
        rest = f" and {len(timed.launched) - 4} more" if len(timed.launched) > 4 else ""
        names = ", ".join(name[:60] for name in timed.launched[:4])
        console.print(f"      launched: {names}{rest}", markup=False, highlight=False)


def show_summary(kernel: dict) -> None:
    """The geometric means of a kernel's cases, where there are several."""
    summary = kernel["summary"]
    words = []
    if summary["geomean_pct_sol"] is not None:
        words.append(f"{summary['geomean_pct_sol']:.0f} % of the limit")
    if summary["geomean_ratio"] is not None:
        words.append(f"{summary['geomean_ratio']:.4f} of the baseline's time")
    if words and len(kernel["cases"]) > 1:
        console.print(f"  geometric mean: {', '.join(words)}", markup=False, highlight=False)


def gate(made: dict, earlier: list[dict], percent: float | None, code: int) -> int:
    """The exit code, with --fail-if-slower held against the history."""
    if percent is None:
        return code
    found = history.slower(made, earlier, percent / 100)
    for sentence in found:
        console.print(f"[red]slower[/] {sentence}", highlight=False)
    return code or (errors.REGRESSION if found else errors.OK)
