"""pestle-lab sweep."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress
from rich.table import Table

from .. import benching, errors, history, kernels, problems, report
from ..engine import cases
from ..options import (
    Cases,
    Device,
    FailIfSlower,
    Folders,
    Html,
    Json,
    Keep,
    Mode,
    Out,
    Seconds,
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
    show_time,
    texts_of,
)  # fmt: skip
from ..remote import folder
from .cluster import Cluster
from .items import Done, Item, failed


def sweep(
    names: Annotated[list[str], typer.Argument(help="Names or files of kernels.")],
    on: Annotated[str, typer.Option("--on", help="local or ray://HOST:PORT.")] = "local",
    gpus: Annotated[
        list[str] | None,
        typer.Option(
            "--gpu",
            help="Each item on this kind, as Ray calls it (H100), or on every kind: all; "
            "may be repeated. [default: any]",
        ),
    ] = None,
    suite: Suite = "performance",
    case: Cases = None,
    folders: Folders = None,
    device: Device = None,
    mode: Mode = None,
    seconds: Seconds = 3.0,
    timeout: Timeout = 120.0,
    retries: Annotated[
        int, typer.Option(min=0, help="Times that an item is started again if its worker dies.")
    ] = 3,
    patience: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for a node that an item could run on.")
    ] = 60.0,
    as_json: Json = False,
    path: Out = None,
    page: Html = None,
    keep: Keep = None,
    fail_if_slower: FailIfSlower = None,
):
    """bench of kernels x cases x kinds of GPUs, on a Ray cluster (an extra: pestle[ray])."""
    settings = benching.Settings(modes=modes_of(mode), seconds=seconds, timeout=timeout)
    given = folders_of(folders)
    found = {name: kernels.get(name, all_kernels(folders)) for name in names}
    made = report.start(report.command_line(), "cpu")
    made["settings"] = {"modes": settings.modes, "seconds": seconds, "timeout_s": timeout, "on": on}
    root, store = Path.cwd(), keep or history.default_path()
    # Words that hold on the other machine; a cluster of this one sees every folder.
    inside = [str(f.resolve()) for f in given] + names
    if on != "local":
        inside = folder.relative_arguments(inside, root)
    earlier = history.read(store)
    # Ray prints news of its workers, and standard output is the report's.
    with contextlib.redirect_stdout(sys.stderr), Cluster(on, root) as cluster:
        wanted = []
        for name, word in zip(names, inside[len(given) :], strict=True):
            kernel = found[name]
            texts = texts_of(problems.get(kernel.problem, given), suite, case)
            wanted += _items(kernel, word, texts, given, device, gpus, cluster)
        done = _run(cluster, wanted, inside[: len(given)], settings, retries, patience, made, store,
                    {kernel.name: kernel for kernel in found.values()})  # fmt: skip
    _add(made, done, {kernel.name: kernel for kernel in found.values()})
    statuses = [one.status for one in done]
    if all(status == "unsupported" for status in statuses):
        raise errors.LabError("no kernel takes any of its cases: nothing was measured",
                              errors.UNSUPPORTED)  # fmt: skip
    code = gate(made, earlier, fail_if_slower, errors.exit_code(statuses))
    if not as_json:
        out.print(_table(done))
    mine = {k["name"] for k in made["kernels"]}
    finish(made, code, as_json, path, page, [e for e in earlier if e["kernel"] in mine][-50:])


def _items(kernel, word, texts, given, device, gpus, cluster) -> list[Item]:
    """Of one kernel. A case that cannot be read stops everything, before anything runs."""
    problem = problems.get(kernel.problem, given)
    for text in texts:
        cases.make(problem, text)
    where = device or ("cuda" if "cuda" in kernel.devices and cluster.has_gpus() else "cpu")
    if where not in ("cuda", "cpu"):
        raise errors.LabError(f"--device {where}: a sweep takes cuda or cpu; Ray gives the GPU")
    kinds = [""]
    if gpus and where == "cuda":
        kinds = cluster.kinds() if "all" in gpus else gpus
        if unknown := set(kinds) - set(cluster.kinds()):
            raise errors.LabError(
                f"--gpu {', '.join(sorted(unknown))}: the cluster has "
                f"{', '.join(cluster.kinds()) or 'no GPUs that Ray knows the kind of'}"
            )
    return [Item(word, kernel.name, text, where, kind) for text in texts for kind in kinds]


def _run(cluster, wanted, folders, settings, retries, patience, made, store, by_name) -> list[Done]:
    """The items in their order; shown, and kept in the history, as each ends."""
    ended: dict[Item, Done] = {}
    can = [item for item in wanted if item.device in by_name[item.name].devices]
    with Progress(console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(f"{len(wanted)} items", total=len(wanted))

        def show(done: Done) -> None:
            ended[done.item] = done
            progress.advance(bar)
            console.print(
                f"[{len(ended)}/{len(wanted)}] {done.item.name} {done.machine}",
                markup=False,
                highlight=False,
            )
            show_time(done.timed)

        for item in wanted:
            if item not in can:
                needed = " or ".join(by_name[item.name].devices)
                show(
                    failed(item, "no_device", f"{item.name} needs {needed}, and got {item.device}")
                )
        for done in cluster.run(can, folders, settings, retries, patience):
            show(done)
            history.append(_alone(made, done, by_name[done.item.name]), store)
    return [ended[item] for item in wanted]


def _alone(made: dict, done: Done, kernel: kernels.Kernel) -> dict:
    """A report of one item, for the history."""
    single = made | {"kernels": []}
    _add(single, [done], {kernel.name: kernel})
    return single


def _add(made: dict, done: list[Done], by_name: dict) -> None:
    """A kernel of the report for each machine that it ran on."""
    groups: dict[tuple, list[Done]] = {}
    for one in done:
        groups.setdefault((one.item.name, one.item.device, one.machine), []).append(one)
    for (name, device, _), group in groups.items():
        first = group[0]
        report.add_kernel(
            made, by_name[name], first.build.json(), device if first.env else "",
            [one.timed.json() for one in group],
        )  # fmt: skip
        if first.env:
            made["kernels"][-1] |= {"env": first.env, "ceilings": first.ceilings}


def _table(done: list[Done]) -> Table:
    shown = Table(
        "kernel", "case", "machine", "status", "mode", "median µs", "% of limit", box=None
    )
    for one in done:
        head = (one.item.name, one.item.case, one.machine or one.item.gpu)
        status = f"[{colour(one.status)}]{one.status}[/]"
        if not one.timed.modes:
            shown.add_row(*head, status, "", "", "")
        for i, (mode, summary) in enumerate(one.timed.modes.items()):
            share = one.timed.throughput.get("share_of_measured_limit") if i == 0 else None
            shown.add_row(
                *head, status, mode, f"{summary.median / 1e3:.3f}",
                f"{100 * share:.0f}" if share is not None else "",
            )  # fmt: skip
    return shown
