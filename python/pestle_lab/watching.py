"""pestle-lab watch: save, compile, smoke, and what changed against the last good version."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from . import checking, kernels, problems
from .errors import LabError


def once(
    path: Path,
    folders: list[Path],
    device: str | None,
    suite: str,
    last_good: dict | None,
    console: Console,
) -> dict | None:
    """One turn; the errors of the version if it is right, else those of the last that was."""
    start = time.monotonic()
    try:
        kernel = kernels.get(str(path), folders)
        problem = problems.get(kernel.problem, folders)
        done = checking.check(
            kernel,
            problem,
            problem.cases(suite),
            device=device,
            seed=1,
            timeout=60,
            problem_folders=folders,
        )
    except LabError as error:
        console.print(f"[red]error[/] {error}", highlight=False)
        return last_good
    seconds = time.monotonic() - start
    bad = [v for v in done.cases if v.status not in ("ok", "unsupported")]
    for verdict in bad[:3]:
        console.print(f"[red]{verdict.status}[/] {verdict.id}: {verdict.message}", highlight=False)
    if bad:
        console.print(f"{len(bad)} of {len(done.cases)} cases failed, {seconds:.1f} s")
        return last_good
    worst = {
        v.id: max((o["worst_share_of_bound"] for o in v.outputs.values()), default=0.0)
        for v in done.cases
    }
    console.print(f"[green]ok[/] {len(done.cases)} cases, {seconds:.1f} s", highlight=False)
    for case, share in worst.items():
        if last_good and case in last_good and abs(share - last_good[case]) > 1e-3:
            console.print(
                f"  {case}: error {last_good[case]:.3f} → {share:.3f} of the bound", highlight=False
            )
    return worst


def watch(
    path: Path, folders: list[Path], device: str | None, suite: str, console: Console
) -> None:
    import watchfiles

    console.print(f"watching {path}; Ctrl-C ends it", highlight=False)
    last_good = once(path, folders, device, suite, None, console)
    try:
        for changes in watchfiles.watch(path.parent, debounce=50, raise_interrupt=True):
            if any(Path(changed).name == path.name for _, changed in changes):
                last_good = once(path, folders, device, suite, last_good, console)
    except KeyboardInterrupt:
        console.print("ended")
