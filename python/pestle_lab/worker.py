"""The process that a kernel runs in, or two that are compared, on the same buffers. It knows no
right answer: it gets inputs as files, calls the kernel, writes the bytes of every buffer back, and
times.
Requests and answers are lines of JSON on two pipes; what the kernel prints goes to a log.

Clocks, streams and functions that the measuring stands on are taken before the kernel's file is
loaded: what it replaces in these modules or in torch.Tensor changes nothing here."""

from __future__ import annotations

import json
import mmap
import os
import sys
import traceback
from pathlib import Path

import numpy as np
import torch

from .engine import buffers, loading
from .engine.cases import make, numpy_dtype
from .engine.clock import Timer
from .problems import get

_sync, _of_memory, _mmap = torch.cuda.synchronize, torch.frombuffer, mmap.mmap
_open, _truncate, _close = os.open, os.ftruncate, os.close
# Of the C class, whose methods can't be replaced.
_fill, _copy, _clone, _equal = (
    getattr(torch._C.TensorBase, name) for name in ("fill_", "copy_", "clone", "equal")
)


class Worker:
    def __init__(self, job: dict):
        self.job = job
        self.device = torch.device(job["device"])
        self.problem = get(job["problem"], [Path(p) for p in job["problem_folders"]])
        self.sets: list[dict] = []  # live buffers of tensors, by input set
        self.timer = Timer(self.device)
        self.kernels, self.functions = [job["kernel"]], []
        self.mapped: dict[str, torch.Tensor] = {}  # files that bytes of buffers are given in
        self.measure, self.look_at = self.timer.run, self.fetch

    def answers(self) -> dict:
        """What may be asked for, by name."""
        names = ("load", "add", "place", "call", "poison", "fetch", "time", "time_all", "launched")
        return {name: getattr(self, name) for name in names}

    def load(self, request: dict) -> dict:
        self.case = make(self.problem, request["case"])
        known = dict(enumerate(self.functions))
        self.functions = [self._entry(k, known.get(i)) for i, k in enumerate(self.kernels)]
        self.sets = []
        return {}

    def add(self, request: dict) -> dict:
        """A second kernel, for the case and the sets that are there."""
        self.kernels.append(request["kernel"])
        self.functions.append(self._entry(request["kernel"], None))
        return {}

    def _entry(self, kernel: dict, known):
        """The kernel's function for the case; `known` is what it had for the one before."""
        case = self.case
        if kernel["library"]:
            kinds = {
                a.name: (
                    a.kind,
                    a.choices.index(case.attributes[a.name])
                    if a.kind == "choice"
                    else case.attributes[a.name],
                )
                for a in self.problem.contract.of_role("attribute")
            }
            return loading.compiled_entry(
                kernel["library"], kernel["entry"], kernel["arguments"], case.symbols(), kinds
            )
        if known is not None:
            return known
        adapter = self.problem.adapters.get(kernel["entry"])
        return loading.python_entry(kernel["path"], kernel["entry"], adapter, self.problem.modules)

    def _place(self, plan, where, values, same: dict | None) -> dict:
        # Aligned to 256 bytes, as allocators give it, whatever numpy does.
        storage = torch.empty(where.nbytes + 256, dtype=torch.uint8, device=self.device)
        skip = -storage.data_ptr() % 256
        raw = storage[skip : skip + where.nbytes]
        if same is not None:
            _copy(raw, same["raw"])
        elif values is None:
            _fill(raw, buffers.POISON)
        else:
            _copy(raw, torch.from_numpy(values))
        typed = storage[skip + where.start % where.itemsize :]
        count = typed.numel() // where.itemsize * where.itemsize
        flat = typed[:count].view(plan.dtype)
        at = (where.start - where.start % where.itemsize) // where.itemsize
        view = flat.as_strided(where.shape, where.strides, flat.storage_offset() + at)
        return {
            "storage": storage,
            "raw": raw,
            "skip": skip,
            "where": where,
            "view": view,
            "plan": plan,
        }

    def _buffer(self, plan, where, path: str, is_buffer: bool) -> np.ndarray:
        """The bytes of an input's buffer, from a file of them or of its values."""
        if is_buffer:
            return np.fromfile(path, np.uint8)
        dtype = numpy_dtype(plan.dtype)
        return buffers.filled(where, dtype, np.fromfile(path, dtype).reshape(plan.shape))

    def place(self, request: dict) -> dict:
        """New buffers for an input set, or new contents of those it has. Inputs come as files, or
        as copies of another set's."""
        index, made = request["set"], {}
        same = request.get("same_as")
        old = self.sets[index] if index < len(self.sets) else None
        for plan in self.case.plans.values():
            is_input = plan.role == "input"
            where = self.case.layout_of(plan.name)
            copied = self.sets[same][plan.name] if is_input and same is not None else None
            values = None
            if is_input and copied is None:
                path = request["inputs"][plan.name]
                values = self._buffer(plan, where, path, request.get("are_buffers", False))
            new = self._place(plan, where, values, copied)
            if old is not None and request["keep_addresses"]:
                if is_input or not request["keep_outputs"]:
                    _copy(old[plan.name]["raw"], new["raw"])
                new = old[plan.name]
            made[plan.name] = new
        if index < len(self.sets):
            self.sets[index] = made
        else:
            self.sets.append(made)
        self._synchronise()
        return {}

    def _synchronise(self) -> None:
        if self.device.type == "cuda":
            _sync(self.device)

    def _call(self, index: int, which: int = 0) -> None:
        held = self.sets[index]
        outputs = {n: b["view"] for n, b in held.items() if b["plan"].role == "output"}
        inputs = {n: b["view"] for n, b in held.items() if b["plan"].role == "input"}
        stream = 0
        if self.device.type == "cuda":
            stream = torch.cuda.current_stream(self.device).cuda_stream
        self.functions[which](outputs, inputs, dict(self.case.attributes), stream)

    def call(self, request: dict) -> dict:
        """One call on a set, in a mode: plain, another stream, or a captured graph."""
        how, index, which = request["how"], request["set"], request.get("which", 0)
        if how == "stream":
            stream = torch.cuda.Stream(self.device)
            stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(stream):
                self._call(index, which)
                given = [_clone(held["raw"]) for held in self._outputs(index)]
            stream.synchronize()
            self._synchronise()
            if not all(map(_equal, given, (held["raw"] for held in self._outputs(index)))):
                raise RuntimeError(
                    "outputs changed when the given stream was done: work on another stream, "
                    "for which it does not wait"
                )
        elif how == "graph":
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._call(index, which)
            self._synchronise()  # what went past the capture is done, and poisoned
            self._poison(index)
            graph.replay()
        else:
            self._call(index, which)
        self._synchronise()
        return {}

    def _outputs(self, index: int) -> list[dict]:
        return [held for held in self.sets[index].values() if held["plan"].role == "output"]

    def _poison(self, index: int) -> None:
        for held in self._outputs(index):
            _fill(held["storage"], buffers.POISON)
        self._synchronise()

    def poison(self, request: dict) -> dict:
        self._poison(request["set"])
        return {}

    def fetch(self, request: dict) -> dict:
        """The bytes of every buffer of a set into files, guards included."""
        for name, held in self.sets[request["set"]].items():
            raw = held["raw"]
            _copy(self._mapped(request["files"][name], raw.numel()), raw)
        return {}

    def _mapped(self, path: str, size: int) -> torch.Tensor:
        """A file as memory, kept while its size stays: bytes that are copied there are in it, and
        take neither new memory nor a second copy."""
        known = self.mapped.get(path)
        if known is None or known.numel() != size:
            file = _open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
            _truncate(file, size)
            known = self.mapped[path] = _of_memory(_mmap(file, size), dtype=torch.uint8)
            _close(file)
        return known

    def _calls(self, order: list[int], request: dict) -> list:
        which = request.get("which", 0)
        return [lambda i=i: self._call(i, which) for i in order]

    def time(self, request: dict) -> dict:
        """Calls over the sets in the given order; nanoseconds of each. The outputs of the call at
        `look`, if one is looked at, are taken the moment that it is over; they are poisoned before
        it where what is in them would be right."""
        order, look, mode = request["order"], request["look"], request["mode"]
        calls = self._calls(order, request)
        if look is None:
            return {"ns": self.measure(calls, mode)}
        samples = self.measure(calls[:look], mode)
        if request["poisons"]:
            self._poison(order[look])
        samples += self.measure(calls[look : look + 1], mode)
        self.look_at({"set": order[look], "files": request["files"]})
        return {"ns": samples + self.measure(calls[look + 1 :], mode)}

    def time_all(self, request: dict) -> dict:
        """Calls and their times, with nothing between them."""
        calls = self._calls(request["order"], request)
        return {"ns": self.measure(calls, request["mode"])}

    def launched(self, request: dict) -> dict:
        """Names of the device kernels that a call launches; on a CPU, of PyTorch's ops in it."""
        kinds = torch.profiler.ProfilerActivity
        activities = [kinds.CUDA if self.device.type == "cuda" else kinds.CPU]
        with torch.profiler.profile(activities=activities) as profile:
            self._call(0)
            self._synchronise()
        return {"names": sorted({event.key for event in profile.key_averages()})}


def main() -> None:
    requests, answers = (os.fdopen(int(sys.argv[i]), mode) for i, mode in ((1, "r"), (2, "w")))
    known = {}
    for line in requests:
        request = json.loads(line)
        do, token = request.pop("do"), request.pop("token")
        try:
            if do == "start":
                os.environ.update(request["environment"])
                known, answer = Worker(request).answers(), {}
            else:
                answer = known[do](request)
        except BaseException as error:
            answer = {
                "error": f"{type(error).__name__}: {error}",
                "kind": type(error).__name__,
                "traceback": traceback.format_exc(limit=-6),
            }
        answers.write(json.dumps(answer | {"token": token}) + "\n")
        answers.flush()
