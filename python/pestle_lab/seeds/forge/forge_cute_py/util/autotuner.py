"""The fastest of several configurations, remembered on disk. What is remembered names the device,
the driver's and PyTorch's versions, and the dtype, shape and strides of every tensor, so that no
other machine's answer is taken for this one's."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from .bench import do_bench, summarize_times


@dataclass(frozen=True)
class AutotuneConfig:
    name: str
    kwargs: dict = field(default_factory=dict)

    def all_kwargs(self) -> dict:
        return dict(self.kwargs)


def cache_folder() -> Path:
    for name in ("FORGE_CUTE_PY_CACHE_DIR", "KERNELHEIM_CACHE_DIR"):
        if os.environ.get(name):
            return Path(os.environ[name])
    return Path.home() / ".forge_cute_py" / "cache"


def _described(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), list(value.shape), list(value.stride()), str(value.device)]
    return repr(value)


def _machine() -> list[str | None]:
    if not torch.cuda.is_available():
        return ["cpu", torch.__version__]
    return [torch.cuda.get_device_name(), torch.version.cuda, torch.__version__]


class Autotuner:
    """fn(*args, **kwargs, **config.kwargs), with the configuration that was fastest for arguments
    like these. `key` names the arguments that matter; none: all."""

    def __init__(
        self,
        fn: Callable,
        key: list[str] | None = None,
        configs: list[AutotuneConfig] | None = None,
        cache_results: bool = True,
        do_bench_fn: Callable[..., list[float]] = do_bench,
    ):
        self.fn, self.key, self.cache_results = fn, key, cache_results
        self.configs = list(configs or [AutotuneConfig("default")])
        self.do_bench = do_bench_fn
        self.best: dict[str, int] = {}
        self.signature = inspect.signature(fn)

    def _question(self, args: tuple, kwargs: dict) -> str:
        bound = self.signature.bind_partial(*args, **kwargs).arguments
        if unknown := set(self.key or ()) - set(self.signature.parameters):
            raise ValueError(f"Autotuner: {self.fn.__name__} has no {', '.join(sorted(unknown))}")
        asked = {n: _described(v) for n, v in bound.items() if not self.key or n in self.key}
        configs = [sorted((k, repr(v)) for k, v in c.kwargs.items()) for c in self.configs]
        try:
            code = inspect.getsource(self.fn)
        except (OSError, TypeError):
            code = self.fn.__qualname__
        whole = json.dumps([code, _machine(), asked, configs], sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()

    def _measured(self, args: tuple, kwargs: dict) -> int:
        medians = []
        for config in self.configs:
            call = lambda c=config: self.fn(*args, **kwargs, **c.kwargs)  # noqa: E731
            times = self.do_bench(call, warmup=5, rep=25)
            medians.append(summarize_times(times)["p50_ms"])
        return medians.index(min(medians))

    def choose(self, *args, **kwargs) -> AutotuneConfig:
        question = self._question(args, kwargs)
        path = cache_folder() / f"{question}.json"
        if question not in self.best and self.cache_results and path.exists():
            self.best[question] = json.loads(path.read_text())["config"]
        if question not in self.best:
            self.best[question] = self._measured(args, kwargs)
            if self.cache_results:
                path.parent.mkdir(parents=True, exist_ok=True)
                partial = path.with_suffix(f".{os.getpid()}")
                partial.write_text(json.dumps({"config": self.best[question]}))
                partial.replace(path)
        return self.configs[self.best[question]]

    def __call__(self, *args, **kwargs):
        return self.fn(*args, **kwargs, **self.choose(*args, **kwargs).kwargs)
