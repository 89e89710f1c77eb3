"""pestle-lab watch: save, compile, smoke, and what changed against the last good version."""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console

from . import benching, checking, kernels, problems
from .errors import LabError
from .options import texts_to_check


@dataclass
class Watched:
    """A kernel's file that is looked at again and again."""

    path: Path
    folders: list[Path]
    device: str | None
    suite: str
    case: str | None  # that good versions are timed on
    seconds: float
    console: Console
    copies: Path  # of good versions
    good: kernels.Kernel | None = None  # the last one
    shares: dict[str, float] = field(default_factory=dict)  # its errors, of what is allowed

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False)

    def once(self) -> None:
        try:
            kernel = kernels.get(str(self.path), self.folders)
            problem = problems.get(kernel.problem, self.folders)
            kept = self._copy(kernel)  # before it is run: it may be saved again meanwhile
            if self._is_right(kept, problem):
                if self.case and self.good and self.good.sha256 != kept.sha256:
                    self._compare(kept, problem)
                self.good = kept
        except LabError as error:
            self.say(f"[red]error[/] {error}")

    def _copy(self, kernel: kernels.Kernel) -> kernels.Kernel:
        """In a folder with everything that lies beside it, which it may import or include."""
        folder = Path(tempfile.mkdtemp(dir=self.copies))
        for path in self.path.resolve().parent.iterdir():
            if path.name != self.path.name:
                (folder / path.name).symlink_to(path)
        return replace(kernel, path=Path(shutil.copyfile(kernel.path, folder / self.path.name)))

    def _is_right(self, kernel: kernels.Kernel, problem: problems.Problem) -> bool:
        start = time.monotonic()
        texts, _ = texts_to_check(kernel, problem, self.suite)
        done = checking.check(
            kernel, problem, texts, device=self.device, seed=1,
            timeout=60, problem_folders=self.folders,
        )  # fmt: skip
        seconds = time.monotonic() - start
        bad = [v for v in done.cases if v.status not in ("ok", "unsupported")]
        for verdict in bad[:3]:
            self.say(f"[red]{verdict.status}[/] {verdict.id}: {verdict.message}")
        if bad:
            self.say(f"{len(bad)} of {len(done.cases)} cases failed, {seconds:.1f} s")
            return False
        if "ok" not in done.statuses:
            raise checking.takes_none(kernel, problem, texts, "checked")
        self.say(f"[green]ok[/] {len(done.cases)} cases, {seconds:.1f} s")
        self._show_errors(done.cases)
        return True

    def _show_errors(self, verdicts: list[checking.Verdict]) -> None:
        before, self.shares = self.shares, {
            v.id: max((o["worst_share_of_bound"] for o in v.outputs.values()), default=0.0)
            for v in verdicts
        }  # fmt: skip
        for case, share in self.shares.items():
            if abs(share - before.get(case, share)) > 1e-3:
                self.say(f"  {case}: error {before[case]:.3f} → {share:.3f} of the bound")

    def _compare(self, kernel: kernels.Kernel, problem: problems.Problem) -> None:
        settings = benching.Settings(
            device=self.device, modes=("warm",), seconds=self.seconds, folders=self.folders
        )
        (found,) = benching.compare(self.good, kernel, problem, [self.case], settings)
        if not found.ratio:
            self.say(f"  not timed: {found.status}: {found.message}")
            return
        ratio = found.ratio
        self.say(
            f"  {ratio.verdict} beside the last good version: {ratio.value:.4f} of its time "
            f"\\[{ratio.low:.4f}, {ratio.high:.4f}], {found.b.median / 1e3:.3f} µs"
        )


def watch(watched: Watched) -> None:
    import watchfiles

    watched.say(f"watching {watched.path}; Ctrl-C ends it")
    try:
        watched.once()
        for changes in watchfiles.watch(watched.path.parent, debounce=50, raise_interrupt=True):
            if any(Path(changed).name == watched.path.name for _, changed in changes):
                watched.once()
    except KeyboardInterrupt:
        watched.say("ended")
