"""pestle-lab sanitize and pestle-lab profile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from .. import checking, errors, kernels, problems, report
from ..engine.building import Build, build
from ..errors import LabError
from ..options import (
    Cases,
    Device,
    Folders,
    Json,
    Out,
    Seed,
    Suite,
    Timeout,
    all_kernels,
    colour,
    console,
    finish,
    folders_of,
    text_to_profile,
    texts_to_check,
)  # fmt: skip
from . import profilers, sanitizer
from .calls import Calls

Name = Annotated[str, typer.Argument(help="A kernel's name or file.")]
Folder = Annotated[Path, typer.Option("--folder", help="Of the tool's own files.")]


def _place(kernel: kernels.Kernel, asked: str | None, on_gpu: bool, tool: str) -> str:
    where = checking.device_of(kernel, asked)
    if where is None:
        raise LabError(
            f"a {kernel.language} kernel needs {' or '.join(kernel.devices)}; asked for "
            f"{asked or checking.default_device()}",
            errors.UNSUPPORTED,
        )
    if on_gpu and not where.startswith("cuda"):
        raise LabError(
            f"{tool} sees what runs on a GPU, and this would run on {where}", errors.UNSUPPORTED
        )
    return where


def _built(kernel: kernels.Kernel, where: str) -> Build:
    made = build(kernel, where)
    if not made.ok:
        raise LabError(f"{kernel.name} does not compile:\n{made.log}", errors.COMPILE_ERROR)
    return made


def sanitize(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="KERNEL [TOOL...]",
            help=f"A kernel's name or file, and {', '.join(sanitizer.TOOLS)} or all, in any order. "
            "[all]",
        ),
    ],
    suite: Suite = "smoke",
    case: Cases = None,
    folders: Folders = None,
    device: Device = None,
    seed: Seed = None,
    timeout: Timeout = 120.0,
    folder: Folder = Path("sanitizer"),
    as_json: Json = False,
    path: Out = None,
):
    """NVIDIA's compute-sanitizer around a kernel: how many findings, and where the first is."""
    name, chosen = sanitizer.chosen(words)
    kernel = kernels.get(name, all_kernels(folders))
    problem = problems.get(kernel.problem, folders_of(folders))
    where = _place(kernel, device, True, "compute-sanitizer")
    texts, _ = texts_to_check(kernel, problem, suite, case)
    code = sanitized(
        kernel, problem, texts, chosen, where, folder,
        folders=folders_of(folders), seed=seed, timeout=timeout, as_json=as_json, path=path,
    )  # fmt: skip
    raise typer.Exit(code)


def sanitized(
    kernel, problem, texts, tools, where, folder, *, folders, seed, timeout, as_json, path
) -> int:
    made, built = report.start(report.command_line(), where), _built(kernel, where)
    made["settings"] = {"tools": tools, "timeout_s": timeout}
    found, verdicts = {}, []
    group = Calls(kernel, problem, built, texts, where, folders, seed=seed, timeout=timeout)
    with group:
        for tool in tools:
            with console.status(f"{tool}: {len(group.cases)} cases"):
                found[tool], verdicts = sanitizer.run(group, tool, folder)
            count, first = found[tool].findings, found[tool].first
            console.print(
                f"  [{'red' if count else 'green'}]{tool}[/] {count} findings", highlight=False
            )
            if first:
                console.print(f"      {first}", markup=False, highlight=False)
            for verdict in verdicts:
                if not verdict.passed:
                    console.print(f"  [{colour(verdict.status)}]{verdict.status}[/] {verdict.id}",
                                  highlight=False)  # fmt: skip
                    console.print(f"      {verdict.message}", markup=False, highlight=False)
    report.add_kernel(made, kernel, built.json(), where, [v.json() for v in verdicts])
    made["kernels"][0]["sanitizer"] = {tool: finding.json() for tool, finding in found.items()}
    statuses = [v.status for v in verdicts]
    statuses += ["sanitizer" for finding in found.values() if finding.findings]
    code = errors.exit_code(statuses)
    try:
        finish(made, code, as_json, path)
    except typer.Exit:
        return code


def profile(
    tool: Annotated[str, typer.Argument(help="ncu, nsys or torch.")],
    name: Name,
    case: Annotated[
        str | None,
        typer.Option("--case", help="[default: the first for performance that the kernel takes]"),
    ] = None,
    folders: Folders = None,
    device: Device = None,
    seed: Seed = None,
    timeout: Timeout = 120.0,
    folder: Folder = Path("profiles"),
    sections: Annotated[str, typer.Option("--set", help="Of ncu: full, detailed, basic.")] = "full",
    more: Annotated[
        list[str] | None, typer.Option("--tool-option", help="For the tool; may be repeated.")
    ] = None,
    as_json: Json = False,
):
    """One call under a profiler: where its time goes, in figures and in words."""
    if tool not in profilers.TOOLS:
        raise LabError(f"profile {tool}: expected one of {', '.join(profilers.TOOLS)}")
    kernel = kernels.get(name, all_kernels(folders))
    problem = problems.get(kernel.problem, folders_of(folders))
    where = _place(kernel, device, tool == "ncu", "ncu")
    text = case or text_to_profile(kernel, problem)
    raise typer.Exit(profiled(
        tool, kernel, problem, text, where, folder, sections, list(more or []),
        folders=folders_of(folders), seed=seed, timeout=timeout, as_json=as_json,
    ))  # fmt: skip


def profiled(
    tool, kernel, problem, text, where, folder, sections, more, *, folders, seed, timeout, as_json
) -> int:
    built = _built(kernel, where)
    group = Calls(kernel, problem, built, [text], where, folders, seed=seed, timeout=timeout)
    with group:
        found = profilers.profile(tool, group, folder, sections, more)
    console.print(
        f"{kernel.name} {text}: [{colour(found.verdict.status)}]{found.verdict.status}[/] "
        f"{found.verdict.message}",
        highlight=False,
    )
    _show(found)
    code = errors.exit_code([found.verdict.status])
    if as_json:
        made = {"schema": "pestle-lab/profile/1", "kernel": kernel.name, "device": where,
                **found.json(), "exit_code": code}  # fmt: skip
        print(json.dumps(made, indent=1))
    return code


def _show(found: profilers.Profile) -> None:
    for launch in found.launches:
        console.print(f"\n{launch.name}", markup=False, highlight=False)
        for title, value in launch.figures.items():
            console.print(f"  {title:36}{value:>16,.10g}", markup=False, highlight=False)
        for sentence in launch.findings:
            console.print(f"  - {sentence}", markup=False, highlight=False)
        for item, good in launch.checklist.items():
            mark = {True: "[x]", False: "[ ]", None: "[?]"}[good]
            console.print(f"  {mark} {item}", markup=False, highlight=False)
    if found.rows:
        table = Table("what", "calls", "on the host, µs", "on the device, µs", box=None)
        for row in found.rows[:15]:
            table.add_row(row["name"], str(row["calls"]), f"{row['host_us']:.1f}",
                          f"{row['device_us']:.1f}")  # fmt: skip
        console.print(table)
    if found.text:
        console.print(found.text, markup=False, highlight=False)
    for file in found.files:
        console.print(f"profile: {file}", markup=False, highlight=False)
