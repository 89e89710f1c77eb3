"""Ray does the scheduling: one task for each item, on the resources that the item needs, started
again by Ray when its worker dies."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from ..benching import Settings
from ..errors import TRANSPORT, LabError
from ..remote.folder import LEFT_OUT
from . import items
from .items import Done, Item

LOOK = 1.0  # seconds between looks at what the cluster has
KIND = "accelerator_type:"  # of the resource by which Ray knows kinds of GPUs


# Of a cluster on this machine: no word of its use to Ray's makers without the user's yes, and
# workers that no other process goes before, since they time.
LOCAL = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}


def _ray():
    try:
        import ray
    except ImportError:
        raise LabError(
            "sweeps run on Ray, which is not installed: pip install 'ray[client]'"
        ) from None
    return ray


def address(text: str) -> str:
    """For ray.init: "local" or ray://HOST:PORT."""
    if text == "local":
        return text
    parts = urlsplit(text)
    try:
        good = parts.scheme == "ray" and parts.hostname and parts.port and not parts.path.strip("/")
    except ValueError:
        good = False
    if not good:
        raise LabError(f"--on {text}: expected local or ray://HOST:PORT")
    return text


def _task():
    """What a worker does. A function within one travels as its code, and bytes go in and come out:
    the server of ray:// would otherwise import what they are of, PyTorch with it, in a thread,
    which has ended it."""

    def measure(job: bytes) -> bytes:
        import pickle

        from pestle_lab.sweeping import items

        return pickle.dumps(items.measure(*pickle.loads(job)))

    return measure


class Cluster:
    """A connection to a cluster, or one of this machine alone; a context manager."""

    def __init__(self, where: str, root: Path):
        self.where, self.root = address(where), root
        self.is_local = where == "local"

    def __enter__(self) -> Cluster:
        self.ray = _ray()
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        try:
            if self.is_local:
                for name, value in LOCAL.items():
                    os.environ.setdefault(name, value)
                self.ray.init("local", include_dashboard=False, **quiet)
            else:
                # The user's folder goes along: what git does not ignore.
                files = {"working_dir": str(self.root), "excludes": sorted(LEFT_OUT)}
                self.ray.init(self.where, runtime_env=files, **quiet)
        except Exception as error:  # of a dozen classes, by what went wrong
            raise LabError(f"--on {self.where}: {_sentence(error)}", TRANSPORT) from None
        return self

    def __exit__(self, *_) -> None:
        self.ray.shutdown()

    def resources(self) -> list[dict[str, float]]:
        """Of each node that is alive."""
        return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]

    def kinds(self) -> list[str]:
        found = {name for node in self.resources() for name in node if name.startswith(KIND)}
        return sorted(name.removeprefix(KIND) for name in found)

    def has_gpus(self) -> bool:
        return any(node.get("GPU", 0) >= 1 for node in self.resources())

    def needs(self, item: Item) -> dict[str, float]:
        """A GPU and a core to feed it; or a whole node, since kernels on a processor take turns."""
        if item.device == "cuda":
            return {"GPU": 1, "CPU": 1, **({KIND + item.gpu: 0.001} if item.gpu else {})}
        sizes = [int(node.get("CPU", 0)) for node in self.resources()]
        return {"CPU": min((size for size in sizes if size), default=1)}

    def _has_room(self, needs: dict[str, float]) -> bool:
        """Whether a node could run it, were it idle."""
        return any(
            all(node.get(name, 0) >= much for name, much in needs.items())
            for node in self.resources()
        )

    def _submit(self, item: Item, folders: list[str], settings: Settings, retries: int):
        needs = self.needs(item)
        task = self.ray.remote(_task()).options(
            num_cpus=needs["CPU"],
            num_gpus=needs.get("GPU", 0),
            accelerator_type=item.gpu or None,
            max_retries=retries,
            name=f"pestle-lab {item.title}",
        )
        root = str(self.root) if self.is_local else ""
        return task.remote(pickle.dumps((item, root, folders, settings))), needs

    def run(
        self,
        wanted: list[Item],
        folders: list[str],
        settings: Settings,
        retries: int,
        patience: float,
    ) -> Iterator[Done]:
        """Items as they end, in whatever order."""
        try:
            yield from self._run(wanted, folders, settings, retries, patience)
        except ConnectionError as error:
            raise LabError(
                f"--on {self.where}: the connection is lost: {_sentence(error)}", TRANSPORT
            ) from None

    def _run(self, wanted, folders, settings, retries, patience) -> Iterator[Done]:
        waiting = {}
        for item in wanted:
            task, needs = self._submit(item, folders, settings, retries)
            waiting[task] = (item, needs)
        without_room = time.monotonic()
        while waiting:
            ended, _ = self.ray.wait(list(waiting), num_returns=1, timeout=LOOK)
            for task in ended:
                yield self._result(task, waiting.pop(task)[0])
            if ended or any(self._has_room(needs) for _, needs in waiting.values()):
                without_room = time.monotonic()
            if time.monotonic() - without_room > patience:
                for task, (item, needs) in waiting.items():
                    self.ray.cancel(task, force=True)
                    yield items.failed(item, "lost", f"no node of the cluster has {_words(needs)}")
                return

    def _result(self, task, item: Item) -> Done:
        errors = self.ray.exceptions
        try:
            return pickle.loads(self.ray.get(task))
        except errors.RayTaskError as error:
            return items.failed(item, "internal_error", _sentence(error.cause or error))
        except errors.RayError as error:  # its worker died once more than it was to be retried
            return items.failed(item, "lost", _sentence(error))


def _words(needs: dict[str, float]) -> str:
    kind = next((f"a GPU {n.removeprefix(KIND)}" for n in needs if n.startswith(KIND)), "a GPU")
    return f"{kind} and {needs['CPU']} cores" if "GPU" in needs else f"{needs['CPU']} cores"


def _sentence(error: BaseException) -> str:
    """The first line that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
