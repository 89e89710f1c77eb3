"""A model whose calls run compiled: nothing of it is changed between calls."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import nn

from ..errors import InvalidArgumentError
from .artifacts import artifact_path, can_keep, load_artifacts, save_artifacts
from .blocks import repeated_blocks
from .compiling import CompiledFunction, compiled_function, has_guard_filter
from .report import CompileReport, Peak, Stopwatch, Watch
from .scope import STANCES, dynamo_settings, scoped, stance
from .settings import CompileSettings

LOG = logging.getLogger("pestle.comfy")
DEFAULT_ERROR_BOUND = 0.05


def ignored_by_torch(settings: CompileSettings) -> list[str]:
    """A sentence for each thing that was asked for and that this PyTorch can't do."""
    told = [*settings.options()[1], *dynamo_settings(settings)[1]]
    version = f"PyTorch {torch.__version__}"
    if not has_guard_filter():
        told.append(f"{version} can't leave guards out: what a step hands down may compile again")
    if settings.ptx_cache_dir and not can_keep():
        told.append(f"{version} keeps no compiled kernels in a file: another process finds only "
                    "inductor's and Triton's own")  # fmt: skip
    return told


class CompiledModel:
    """Runs a model compiled. `run(root, call)` swaps the forwards of `root`'s blocks (or its own)
    for compiled ones, calls `call`, and puts them back, whatever happens.

    A step in which something was compiled is compared with an eager one: where the relative error
    is above `error_bound`, or compiling fails, the model runs eagerly from then on; the report and
    the log say why. `error_bound=None` compares nothing.

    `stance`: what a step does that would compile after another one has: "default" compiles,
    "eager_on_recompile" runs that part eagerly, "fail_on_recompile" raises.
    """

    def __init__(
        self, root: nn.Module, settings: CompileSettings,
        error_bound: float | None = DEFAULT_ERROR_BOUND, stance: str = "default",
    ):  # fmt: skip
        if stance not in STANCES:
            raise InvalidArgumentError(f'stance is "{stance}"; the stances: {", ".join(STANCES)}')
        self.settings, self.error_bound, self.stance = settings, error_bound, stance
        self.report = CompileReport(
            model=type(root).__name__, settings=settings.to_dict(), error_bound=error_bound
        )
        self.functions = self._functions(root)
        for sentence in ignored_by_torch(settings):
            self._say(sentence)
        self._started, self._uncompared, self._compiled = False, False, False

    def _functions(self, root: nn.Module) -> dict[type, CompiledFunction]:
        """Of each class that is compiled."""
        only_blocks = self.settings.compile_transformer_blocks_only
        found = repeated_blocks(root) if only_blocks else {}
        if only_blocks and not found:
            self._say(f"{type(root).__name__} repeats no block: it is compiled whole")
        found = found or {type(root): [root]}
        names = {id(module): name for name, module in root.named_modules()}
        self.names = [names[id(module)] for modules in found.values() for module in modules]
        self._paths = [tuple(filter(None, name.split("."))) for name in self.names]
        made = {}
        for one, modules in found.items():
            made[one], reused = compiled_function(modules[0], self.settings)
            self.report.reused |= reused
            self.report.regions[one.__name__] = len(modules)
        return made

    def _say(self, sentence: str, level: int = logging.WARNING) -> None:
        self.report.note(sentence)
        LOG.log(level, "%s", sentence)

    def modules(self, root: nn.Module) -> list[nn.Module]:
        """What is compiled of a model of this architecture. (A step waits for it: get_submodule
        takes ten times as long.)"""
        found = []
        for path in self._paths:
            module = root
            for name in path:
                module = module._modules[name]
            found.append(module)
        return found

    @contextlib.contextmanager
    def swapped(self, root: nn.Module) -> Iterator[None]:
        """`root` with compiled forwards. Modules whose forward another has replaced keep that."""
        modules = [m for m in self.modules(root) if "forward" not in vars(m)]
        try:
            for module in modules:
                vars(module)["forward"] = partial(self.functions[type(module)], module)
            yield
        finally:
            for module in modules:
                vars(module).pop("forward", None)

    def run(
        self, root: nn.Module, call: Callable[[], torch.Tensor], shape: tuple[int, ...] = (),
        comparable: bool = True,
    ) -> torch.Tensor:  # fmt: skip
        """`call` runs the model and gives its output; it can be called twice if `comparable`."""
        if self.report.fallback:
            return call()
        device = next((p.device for p in root.parameters()), torch.device("cpu"))
        with scoped(self.settings):
            try:
                if not self._started:
                    self._start(root, call, shape, device)
                out = self._measured(root, call, shape, device)
            except _compile_errors() as error:
                self._fall_back(f"compiling failed: {_short(error)}")
                return call()
            if self._uncompared:
                self._save(root, device)
        new, self._uncompared = self._uncompared, False
        if not new or self.error_bound is None:
            return out
        if not comparable:
            self._say("not compared with eager: others wrap this model's steps and may count them")
            return out
        return self._compared(out, call)

    def _start(self, root: nn.Module, call: Callable, shape: tuple, device: torch.device) -> None:
        """Before the first step."""
        self._started = True
        if self.settings.ptx_cache_dir:
            path = self._artifacts(root, device)
            if load_artifacts(path):
                self._say(f"compiled kernels read from {path}", logging.INFO)
        if not self.settings.experimental_ptx:
            return
        for _ in range(self.settings.warmup_runs):
            self._warmed(_warm_up_matmul(device, self.settings.backend))
        for number in range(self.settings.warmup_runs):
            self._measured(root, call, shape, device)
            self._warmed(f"warm-up: the model, run {number + 1}")

    def _warmed(self, sentence: str) -> None:
        self.report.warmups.append(sentence)
        LOG.info("%s", sentence)

    def _measured(self, root, call, shape, device) -> torch.Tensor:
        watch, stopwatch, peak = Watch(self.report), Stopwatch(device), Peak(device)
        # Before there is anything compiled, torch's other stances would leave it at that.
        with self.swapped(root), stance(self.stance if self._compiled else "default"):
            out = call()
        self._compiled = True
        compiled = watch.compiled()
        self.report.add_call(stopwatch.stop(tuple(shape), compiled))
        peak.add_to(self.report)
        self._uncompared |= compiled > 0
        self._note_limit()
        return out

    def _note_limit(self) -> None:
        limit = self.settings.recompile_limit
        names = [graph.function for graph in self.report.graphs]
        for name in set(names):
            if names.count(name) >= limit:
                self.report.note(
                    f"{name} was compiled {limit} times, the limit: what is new runs eagerly"
                )

    def _compared(self, out: torch.Tensor, call: Callable) -> torch.Tensor:
        eager = call()
        error = relative_error(out, eager)
        self.report.error = max(error, self.report.error or 0.0)
        if error <= self.error_bound:
            return out
        self._fall_back(
            f"the error against eager is {error:.3g}, above the bound of {self.error_bound:g}"
        )
        return eager

    def _fall_back(self, reason: str) -> None:
        self.report.fallback = reason
        LOG.warning("%s runs eagerly: %s", self.report.model, reason)

    def _artifacts(self, root: nn.Module, device: torch.device):
        key = (type(root).__qualname__, *self.report.regions.items(), *self.settings.key()[:-1])
        return artifact_path(self.settings.ptx_cache_dir, key, device)

    def _save(self, root: nn.Module, device: torch.device) -> None:
        if not self.settings.ptx_cache_dir:
            return
        path = self._artifacts(root, device)
        try:
            size = save_artifacts(path)
        except OSError as error:
            self._say(f"compiled kernels are not kept: {error}")
            return
        if size:
            self._say(f"compiled kernels kept in {path}", logging.INFO)


def relative_error(out: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference over the norm of what is expected; infinite where one is not finite
    and the other is."""
    if out.shape != expected.shape:
        return float("inf")
    finite = torch.isfinite(expected)
    if not torch.equal(torch.isfinite(out), finite):
        return float("inf")
    # Zero where both are not finite.
    noise = torch.where(finite, out.double() - expected.double(), 0.0).norm()
    power = torch.where(finite, expected.double(), 0.0).norm()
    return float(noise / power) if power else (0.0 if not noise else float("inf"))


def _compile_errors() -> tuple[type[BaseException], ...]:
    from torch._dynamo import exc as dynamo
    from torch._inductor import exc as inductor

    return (dynamo.TorchDynamoException, inductor.CppCompileError, inductor.OperatorIssue)


def _short(error: BaseException) -> str:
    """The first paragraph of a message of torch's, on one line."""
    paragraph = str(error).strip().split("\n\n")[0]
    return " ".join(paragraph.split())[:400] or type(error).__name__


def _warm_up_matmul(device: torch.device, backend: str) -> str:
    """One matrix product: triton.ops', where Triton still has it, else a compiled one."""
    if device.type == "cuda":
        try:
            from triton.ops import matmul
        except ImportError:
            pass
        else:
            a = torch.randn(256, 256, device=device, dtype=torch.float16)
            matmul(a, a)
            return "warm-up: triton.ops.matmul"
    a = torch.randn(512, 512, device=device)
    torch.compile(torch.matmul, backend=backend)(a, a)
    return "warm-up: a compiled matmul"
