"""pestle-lab: the command line (docs/site/lab.md)."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from . import benching, checking, errors, history, kernels, problems, report, tables
from .engine import building, clocks, machine
from .exporting import command as exporting_command
from .options import (
    Cases,
    Device,
    FailIfSlower,
    Folders,
    Html,
    Json,
    Keep,
    LockClocks,
    Mode,
    Out,
    Seconds,
    Seed,
    Suite,
    Timeout,
    all_kernels,
    colour,
    console,
    finish,
    folders_of,
    gate,
    modes_of,
    out,
    show_summary,
    show_time,
    show_verdict,
    texts_of,
    texts_to_check,
)  # fmt: skip
from .profiling import command as profiling_command
from .remote import command as remote_command
from .sweeping import command as sweeping_command

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Write a kernel, prove it, measure it.",
)


@app.command("list")
def list_(
    folders: Folders = None,
    as_json: Json = False,
    table: Annotated[bool, typer.Option("--ops", help="The ops of Pestle's table, too.")] = False,
):
    """Problems and kernels."""
    given = folders_of(folders)
    found = kernels.find(all_kernels(folders))
    from pestle._library import contracts

    names = [n for n in problems.find(given) if table or n not in contracts()]
    names += sorted({k.problem for k in found.values()} - set(names))
    if as_json:
        print(
            json.dumps(
                {
                    "problems": names,
                    "kernels": [
                        {"name": k.name, "language": k.language, "path": str(k.path)}
                        for k in found.values()
                    ],
                },
                indent=1,
            )
        )
        return
    shown = Table("problem", "kernel", "language", "file", box=None)
    for name in names:
        own = [k for k in found.values() if k.problem == name]
        for i, kernel in enumerate(own or [None]):
            cells = (kernel.name, kernel.language, str(kernel.path)) if kernel else ("", "", "")
            shown.add_row(name if i == 0 else "", *cells)
    out.print(shown)


@app.command()
def env(as_json: Json = False, device: Device = None):
    """This machine, as reports describe it."""
    found = machine.environment(device or checking.default_device())
    if as_json:
        print(json.dumps(found, indent=1))
        return
    shown = Table(box=None, show_header=False)
    for key, value in found.items():
        shown.add_row(key, json.dumps(value) if isinstance(value, dict) else str(value))
    out.print(shown)


@app.command()
def sol(
    as_json: Json = False,
    device: Device = None,
    again: Annotated[bool, typer.Option("--again", help="Measure anew.")] = False,
):
    """Measured ceilings of this machine: memory and maths."""
    found = machine.ceilings(device or checking.default_device(), again)
    if as_json:
        print(json.dumps(found, indent=1))
        return
    out.print(
        f"memory {found['bytes_per_s'] / 1e9:.1f} GB/s, maths "
        f"{found['flops_per_s'] / 1e12:.3f} TFLOP/s ({found['by']})",
        highlight=False,
    )
    if found["nominal_bytes_per_s"]:
        out.print(
            f"published: {found['nominal_bytes_per_s'] / 1e9:.0f} GB/s, "
            f"{found['nominal_flops_per_s'] / 1e12:.0f} TFLOP/s",
            highlight=False,
        )


@app.command()
def build(
    names: Annotated[list[str], typer.Argument(help="Names or files of kernels.")],
    folders: Folders = None,
    device: Device = None,
    as_json: Json = False,
):
    """Compiles kernels; registers, spills and shared memory of each function."""
    made = report.start(report.command_line(), device or checking.default_device())
    statuses = []
    for name in names:
        kernel = kernels.get(name, all_kernels(folders))
        with console.status(f"building {kernel.name}"):
            done = building.build(kernel, device or checking.default_device())
        statuses.append("ok" if done.ok else "compile_error")
        report.add_kernel(made, kernel, done.json(), device or "", [])
        console.print(
            f"[{colour(statuses[-1])}]{statuses[-1]}[/] {kernel.name} "
            f"{'cached' if done.cached else f'{done.seconds:.1f} s'}",
            highlight=False,
        )
        for function in done.functions:
            console.print(
                f"  {function['name']}: {function['registers']} registers, "
                f"{function['spill_bytes']} bytes spilled, "
                f"{function['shared_bytes']} bytes shared",
                highlight=False,
            )
        if not done.ok:
            console.print(done.log, markup=False, highlight=False)
    finish(made, errors.exit_code(statuses), as_json, None)


@app.command()
def check(
    names: Annotated[list[str], typer.Argument(help="Names or files of kernels.")],
    suite: Suite = "smoke",
    case: Cases = None,
    folders: Folders = None,
    device: Device = None,
    seed: Seed = None,
    timeout: Timeout = 120.0,
    as_json: Json = False,
    path: Out = None,
    page: Html = None,
):
    """Is it right? Against float64, with poison, guards, master copies, repeats."""
    made = report.start(report.command_line(), device or checking.default_device())
    made["settings"] = {"suite": suite, "timeout_s": timeout}
    statuses = []
    for name in names:
        kernel = kernels.get(name, all_kernels(folders))
        problem = problems.get(kernel.problem, folders_of(folders))
        texts, its = texts_to_check(kernel, problem, suite, case)
        of_suite = f" of suite {its}: it takes none of smoke's" if its != suite else ""
        console.print(f"{kernel.name}: {len(texts)} cases{of_suite}", highlight=False)
        done = checking.check(
            kernel,
            problem,
            texts,
            device=device,
            seed=seed,
            timeout=timeout,
            problem_folders=folders_of(folders),
            progress=show_verdict,
        )
        if not done.device:
            console.print(
                f"  [red]{done.cases[0].status}[/] {done.cases[0].message}", highlight=False
            )
        elif not done.build.ok:
            console.print(f"  [red]compile_error[/]\n{done.build.log}", highlight=False)
        elif all(s == "unsupported" for s in done.statuses):
            raise checking.takes_none(kernel, problem, texts, "checked")
        statuses += done.statuses
        report.add_kernel(
            made, kernel, done.build.json(), done.device, [v.json() for v in done.cases]
        )
    finish(made, errors.exit_code(statuses), as_json, path, page)


def _settings(device, mode, seconds, timeout, threshold, folders) -> benching.Settings:
    return benching.Settings(
        device=device,
        modes=modes_of(mode),
        seconds=seconds,
        timeout=timeout,
        threshold=threshold,
        folders=folders_of(folders),
    )


@app.command()
def bench(
    names: Annotated[list[str], typer.Argument(help="Names or files of kernels.")],
    suite: Suite = "performance",
    case: Cases = None,
    folders: Folders = None,
    device: Device = None,
    mode: Mode = None,
    seconds: Seconds = 3.0,
    timeout: Timeout = 120.0,
    as_json: Json = False,
    path: Out = None,
    page: Html = None,
    keep: Keep = None,
    fail_if_slower: FailIfSlower = None,
    baseline: Annotated[
        str | None, typer.Option(help="A kernel's name or file: compared with on every case.")
    ] = None,
    lock_clocks: LockClocks = None,
):
    """How fast? Checked before and after; medians with their 95 % intervals, share of the limit."""
    settings = _settings(device, mode, seconds, timeout, 0.005, folders)
    settings.adds_graph = not mode
    made = report.start(report.command_line(), device or checking.default_device())
    made["settings"] = {"modes": settings.modes, "seconds": seconds, "timeout_s": timeout,
                        "lock_clocks_mhz": lock_clocks}  # fmt: skip
    statuses = []
    for name in names:
        kernel = kernels.get(name, all_kernels(folders))
        problem = problems.get(kernel.problem, folders_of(folders))
        console.print(f"{kernel.name}", highlight=False)
        texts = texts_of(problem, suite, case)
        with clocks.locked(device or checking.default_device(), lock_clocks):
            done = benching.bench(kernel, problem, texts, settings, show_time)
            if baseline:
                _beside(kernels.get(baseline, all_kernels(folders)), done, problem, settings)
        if all(s == "unsupported" for s in done.statuses):
            raise checking.takes_none(kernel, problem, texts, "measured")
        made["ceilings"] = machine.ceilings(done.device)
        statuses += done.statuses
        report.add_kernel(
            made, kernel, done.build.json(), done.device, [t.json() for t in done.cases]
        )
        show_summary(made["kernels"][-1])
    store = keep or history.default_path()
    earlier = history.read(store)
    code = gate(made, earlier, fail_if_slower, errors.exit_code(statuses))
    history.append(made, store)
    mine = {k["name"] for k in made["kernels"]}
    finish(made, code, as_json, path, page, [e for e in earlier if e["kernel"] in mine][-50:])


def _beside(baseline: kernels.Kernel, done: benching.Benched, problem, settings) -> None:
    """Every case that was timed once more, in turns with the baseline."""
    by_id = {timed.verdict.id: timed for timed in done.cases if timed.modes}
    found = benching.compare(baseline, done.kernel, problem, list(by_id), settings, _show_ratio)
    for compared in found:
        if compared.ratio:
            by_id[compared.id].baseline = {"name": baseline.name, **compared.ratio.json()}


@app.command()
def compare(
    a: str,
    b: str,
    suite: Suite = "performance",
    case: Cases = None,
    folders: Folders = None,
    device: Device = None,
    mode: Mode = None,
    seconds: Seconds = 3.0,
    timeout: Timeout = 120.0,
    as_json: Json = False,
    threshold: Annotated[
        float, typer.Option(min=0, help="Percent within which times are the same.")
    ] = 0.5,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 8 if it is AMBIGUOUS.")
    ] = False,
    fail_if_slower: Annotated[
        bool, typer.Option("--fail-if-slower", help="Exit with 8 if B is SLOWER.")
    ] = False,
    path: Out = None,
    page: Html = None,
    lock_clocks: LockClocks = None,
    apart: Annotated[
        bool, typer.Option("--apart", help="Each kernel in processes and on buffers of its own.")
    ] = False,
):
    """Is B faster than A? In turns, by pairs: FASTER, SLOWER, SAME or AMBIGUOUS."""
    settings = _settings(device, mode, seconds, timeout, threshold / 100, folders)
    settings.apart = apart
    one, two = (kernels.get(name, all_kernels(folders)) for name in (a, b))
    problem = problems.get(one.problem, folders_of(folders))
    made = report.start(report.command_line(), device or checking.default_device())
    made["settings"] = {"modes": settings.modes[:1], "seconds": seconds, "threshold": threshold}
    texts = texts_of(problem, suite, case)
    with clocks.locked(device or checking.default_device(), lock_clocks):
        found = benching.compare(one, two, problem, texts, settings, _show_ratio)
    code = errors.exit_code(c.status for c in found)
    if all(c.status == "unsupported" for c in found):
        raise errors.LabError(
            f"no case that both kernels take: nothing was compared. The first is {texts[0]!r}: "
            f"{found[0].message}",
            errors.UNSUPPORTED,
        )
    verdicts = {c.ratio.verdict for c in found if c.ratio}
    if code == 0 and (
        (strict and "AMBIGUOUS" in verdicts) or (fail_if_slower and "SLOWER" in verdicts)
    ):
        code = errors.REGRESSION
    mean = report.mean_ratio([c.json() for c in found])
    if mean is not None:
        console.print(f"  geometric mean: B takes {mean:.4f} of A's time", highlight=False)
    if path or page:
        _report_both(made, one, two, found)
        finish(made, code, False, path, page, ends=False)
    if as_json:
        print(
            json.dumps(
                {
                    "schema": "pestle-lab/compare/1",
                    "a": one.name,
                    "b": two.name,
                    "cases": [c.json() for c in found],
                    "geomean_ratio": mean,
                    "exit_code": code,
                },
                indent=1,
            )
        )
    raise typer.Exit(code)


def _report_both(made: dict, a, b, found: list[benching.Compared]) -> None:
    """Both kernels as bench reports them; A is the baseline of B."""
    for which, kernel in enumerate((a, b)):
        cases = []
        for compared in found:
            failed = benching.Timed(
                checking.Verdict(compared.id, compared.status, compared.message)
            )
            timed = compared.timed[which] if compared.timed else failed
            if which and compared.ratio:
                timed.baseline = {"name": a.name, **compared.ratio.json()}
            cases.append(timed.json())
        report.add_kernel(made, kernel, building.Build().json(), "", cases)


def _show_ratio(done: benching.Compared) -> None:
    if not done.ratio:
        console.print(
            f"  [{colour(done.status)}]{done.status}[/] {done.id}: {done.message}", highlight=False
        )
        return
    console.print(
        f"  {done.ratio.verdict} {done.id}: B takes {done.ratio.value:.4f} of A's time "
        f"[{done.ratio.low:.4f}, {done.ratio.high:.4f}], {done.a.median / 1e3:.3f} and "
        f"{done.b.median / 1e3:.3f} µs{f' ({done.message})' if done.message else ''}",
        markup=False,
        highlight=False,
    )


@app.command("report")
def report_(
    path: Annotated[Path, typer.Argument(help="What --out wrote.")],
    page: Annotated[Path | None, typer.Option("--html", help="One page, into this file.")] = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="A table, into this file.")] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", help="A table, into this file.")
    ] = None,
    kept: Annotated[
        Path | None, typer.Option("--out", help="A report of pestle-lab, into this file.")
    ] = None,
):
    """A saved report as a table here, as a page, as CSV or Markdown. Results of nvbench, gpu-mode
    and flashinfer-bench are read, too."""
    made = report.read(path)
    if kept:
        report.write(made, kept)
        console.print(f"report: {kept}", highlight=False)
    written = {csv: tables.as_csv, markdown: tables.as_markdown}
    if page:
        written[page] = lambda made: report.html(made, history.read(history.default_path()))
    for file, text in written.items():
        if file:
            file.write_text(text(made))
            console.print(f"report: {file}", highlight=False)
    if not any(written):
        shown = Table(*tables.COLUMNS, box=None)
        for row in tables.rows(made):
            shown.add_row(*map(escape, row))
        out.print(shown)


@app.command("history")
def history_(
    kernel: Annotated[str | None, typer.Argument()] = None,
    as_json: Json = False,
    store: Annotated[Path | None, typer.Option("--history")] = None,
):
    """Earlier times."""
    lines = history.read(store or history.default_path(), kernel)
    if not lines:
        raise errors.LabError("no times are kept yet" + (f" of {kernel}" if kernel else ""))
    if as_json:
        print(json.dumps(lines, indent=1))
        return
    shown = Table("when", "kernel", "source", "case", "mode", "median µs", box=None)
    for line in lines:
        shown.add_row(
            line["when"],
            line["kernel"],
            line["source_sha256"][:10],
            line["case"],
            line["mode"],
            str(line["median_us"]),
        )
    out.print(shown)


@app.command()
def new(
    language: str,
    problem: str,
    folder: Annotated[Path, typer.Option()] = Path("."),
    variant: Annotated[str, typer.Option(help="The kernel's name after the slash.")] = "mine",
):
    """A kernel's file to begin with, for a problem."""
    from . import scaffold

    path = scaffold.write(language, problems.get(problem, [folder]), folder, variant)
    console.print(f"{path}\nnext: write run() in it, then pestle-lab check {path}", highlight=False)


@app.command()
def seed(
    kind: Annotated[str, typer.Argument(help="forge or gemv.")],
    folder: Annotated[Path, typer.Argument(help="Made anew.")],
    wheel: Annotated[
        Path | None,
        typer.Option(help="Of pestle, which forge takes along. [default: what is installed]"),
    ] = None,
):
    """A complete project: four ops on 2-D tensors (forge), or NVFP4 GEMV kernels (gemv)."""
    from . import seeding

    written = seeding.write(kind, folder, wheel)
    console.print(f"{folder}: {len(written)} files; begin with {folder / 'README.md'}")


@app.command()
def watch(
    name: Annotated[str, typer.Argument(help="A kernel's file.")],
    folders: Folders = None,
    device: Device = None,
    suite: Suite = "smoke",
    case: Annotated[
        str | None,
        typer.Option("--case", help="Time this one, in turns with the last good version."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.05, help="Of timing.")] = 1.0,
):
    """Checks a kernel each time its file is saved. Ctrl-C ends it."""
    from . import watching

    kernel = kernels.get(name, all_kernels(folders))
    with tempfile.TemporaryDirectory(prefix="pestle-lab-watch-") as copies:
        watching.watch(watching.Watched(
            kernel.path, folders_of(folders), device, suite, case, seconds, console, Path(copies)
        ))  # fmt: skip


app.command()(profiling_command.sanitize)
app.command()(profiling_command.profile)
app.command()(exporting_command.export)
app.command()(sweeping_command.sweep)
# What follows the command's name is the command's.
app.command("run", context_settings={"allow_interspersed_args": False}, no_args_is_help=True)(
    remote_command.run
)


def main() -> None:
    try:
        app(standalone_mode=True)
    except errors.LabError as error:
        console.print(f"pestle-lab: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(error.code)


if __name__ == "__main__":
    main()
