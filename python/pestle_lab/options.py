"""What the commands of the lab share: options, consoles, the end of a report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from . import kernels, problems, report

console = Console(stderr=True, soft_wrap=True)
out = Console(soft_wrap=True)

Folders = Annotated[
    list[Path] | None,
    typer.Option(
        "--kernels", "-k", help="A folder of kernels and problems; may be given again. [default: .]"
    ),
]
Device = Annotated[
    str | None, typer.Option(help="cuda, cuda:1, cpu. [default: cuda if there is one]")
]
Suite = Annotated[str, typer.Option(help="smoke, correctness, adversarial, performance or all.")]
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


def folders_of(given: list[Path] | None) -> list[Path]:
    return list(given or [Path.cwd()])


def all_kernels(given: list[Path] | None) -> list[Path]:
    return [*folders_of(given), kernels.BUILT_IN]


def texts_of(problem: problems.Problem, suite: str, given: list[str] | None) -> list[str]:
    if given:
        return given
    if suite == "all":
        return [t for s in problems.SUITES[:3] for t in problem.suites.get(s, [])]
    return problem.cases(suite)


def finish(
    made: dict,
    code: int,
    as_json: bool,
    path: Path | None,
    page: Path | None = None,
    lines: list[dict] | None = None,
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
    raise typer.Exit(code)


def colour(status: str) -> str:
    return {"ok": "green", "unsupported": "yellow"}.get(status, "red")
