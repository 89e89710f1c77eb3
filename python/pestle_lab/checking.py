"""pestle-lab check: is a kernel right? Poisoned outputs, guard bands, inputs held against master
copies, references made afterwards, new data at old addresses, repeats, streams, graphs."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from .engine import buffers, cases, reference, rules
from .engine.building import Build, build
from .engine.session import Session, WorkerError
from .errors import UNSUPPORTED, LabError
from .kernels import Kernel
from .problems import Problem


@dataclass
class Verdict:
    """What became of one case."""

    id: str
    status: str = "ok"
    message: str = ""
    seed: int = 0
    checks: dict[str, str] = field(default_factory=dict)  # check: ok, or why it was not made
    outputs: dict[str, dict] = field(default_factory=dict)
    log: str = ""

    @property
    def passed(self) -> bool:
        return self.status == "ok"

    def json(self) -> dict:
        return {
            "id": self.id,
            "status": self.status,
            "message": self.message,
            "seed": self.seed,
            "correctness": {"passed": self.passed, "checks": self.checks, "outputs": self.outputs},
            "log": self.log,
        }


class Wrong(Exception):
    def __init__(self, status: str, message: str):
        super().__init__(message)
        self.status = status


def out_of_domain(kernel: Kernel, case: cases.Case) -> str:
    """Why the kernel, by its own words, does not take the case."""
    names = {p.name: cases.DTYPE_NAMES[p.dtype] for p in case.plans.values()}
    first = next(iter(case.plans.values()))
    if kernel.dtypes and cases.DTYPE_NAMES[first.dtype] not in kernel.dtypes:
        return f"{first.name} is {names[first.name]}; the kernel takes {', '.join(kernel.dtypes)}"
    taken = None if kernel.entry in case.problem.adapters else kernel.parameters
    for plan in case.plans.values():
        is_known = taken is None or plan.name in taken
        if not is_known and case.problem.contract.by_name[plan.name].optional:
            return f"the case has {plan.name}, and the kernel no such argument"
    for condition in kernel.constraints:
        if condition.startswith("memory "):
            allowed = condition.removeprefix("memory ").split("|")
            if case.layout not in allowed:
                return f"memory {case.layout}; the kernel takes {', '.join(allowed)}"
        elif not case.call.evaluate(condition):
            return f"the kernel needs {condition}"
    return ""


def takes_none(kernel: Kernel, problem: Problem, texts: list[str], done: str) -> LabError:
    why = out_of_domain(kernel, cases.make(problem, texts[0]))
    return LabError(
        f"{kernel.name} takes none of these {len(texts)} cases: nothing was {done}. The first is "
        f"{texts[0]!r}: {why}",
        UNSUPPORTED,
    )


def judge(
    case: cases.Case,
    session: Session,
    masters: dict,
    fetched: dict,
    truth: dict,
    when: str,
    verdict: Verdict,
    untouched: dict | None = None,
) -> None:
    """Raises Wrong with the first thing that is not as it should be. `untouched`: the bytes of the
    inputs' buffers, where they are known."""
    for plan in case.plans.values():
        where, raw = session.where(plan.name), fetched[plan.name]
        if untouched and plan.role == "input" and np.array_equal(raw, untouched[plan.name]):
            continue
        if touched := buffers.changed_outside(where, raw):
            raise Wrong("out_of_bounds", f"{when}: {touched} bytes beside {plan.name} were written")
        values = where.view(raw, cases.numpy_dtype(plan.dtype))
        if plan.role == "input":
            if not _same_bytes(values, masters[plan.name]):
                raise Wrong("input_modified", f"{when}: {plan.name} was changed")
            continue
        _judge_output(case, plan, values, truth[plan.name], when, verdict)


def _same_bytes(one: np.ndarray, other: np.ndarray) -> bool:
    """Of elements, whatever lies between them: a NaN equals itself."""
    if one.flags.c_contiguous and other.flags.c_contiguous and one.size:
        return np.array_equal(one.reshape(-1).view(np.uint8), other.reshape(-1).view(np.uint8))
    return one.tobytes() == other.tobytes()


def _judge_output(case, plan, values, truth, when, verdict) -> None:
    want, magnitude = truth
    bound = case.problem.bounds[plan.name]
    k = 1 if bound.exact else case.evaluate(bound.k)
    found = rules.compare(plan, values, want, magnitude, bound, k)
    kept = verdict.outputs.get(plan.name)
    worst = -1.0 if kept is None else kept["worst_share_of_bound"]
    if worst is not None and found.worst > worst:
        verdict.outputs[plan.name] = found.json()
    if found.ok:
        return
    raw = np.ascontiguousarray(values).view(np.uint8).reshape(*plan.shape, -1)
    left = int((raw == buffers.POISON).all(-1).sum())
    what = f"{when}: {found.first[0]}; {found.bad} of {found.elements} elements are wrong"
    if left >= found.bad:
        raise Wrong("poisoned", f"{what}, none of which was written")
    status = "nonfinite" if found.nonfinite == found.bad else "wrong_result"
    raise Wrong(status, what)


def one_changed(masters: dict[str, np.ndarray], rng: np.random.Generator) -> dict:
    """Copies in which one element of the first input that can be changed is changed: a float's sign
    and size, or a bit of a code."""
    made = {name: array.copy() for name, array in masters.items()}
    for array in made.values():
        if not array.size or array.dtype.kind == "b":
            continue
        flat = array.reshape(-1)
        at = int(rng.integers(0, flat.size))
        if array.dtype.kind == "f" or array.dtype.name == "bfloat16":
            flat[at] = 1.75 if not flat[at] > 0 else -2.5
            return made
        if array.dtype.itemsize == 1:
            flat.view(np.uint8)[at] ^= 1
            return made
    return made


class CaseCheck:
    """The checks of one case, in order."""

    def __init__(self, kernel: Kernel, case: cases.Case, session: Session, seed: int):
        self.kernel, self.case, self.session, self.seed = kernel, case, session, seed
        self.verdict = Verdict(case.text, seed=seed)

    def _masters(self, salt: int) -> dict[str, np.ndarray]:
        return self.case.inputs((self.seed + salt) % 2**63)

    def _run(
        self,
        when: str,
        salt: int,
        how: str = "plain",
        index: int = 0,
        keep_addresses: bool = False,
        place: bool = True,
    ) -> dict:
        masters = self._masters(salt)
        if place:
            self.session.place(index, masters, keep_addresses)
        self.session.ask("call", set=index, how=how)
        fetched = self.session.fetch(index)
        truth = reference.truth(self.case, masters)  # only now, from the master copies
        judge(self.case, self.session, masters, fetched, truth, when, self.verdict)
        self.verdict.checks[when] = "ok"
        return fetched

    def run(self) -> Verdict:
        try:
            self._all()
        except Wrong as wrong:
            self.verdict.status, self.verdict.message = wrong.status, str(wrong)
        except WorkerError as error:
            self.verdict.status, self.verdict.message = error.status, str(error)
            self.verdict.log = error.log
        return self.verdict

    def _all(self) -> None:
        self.session.open(self.case)
        first = self._run("first call", 0)
        self._repeat(first)
        self._run("new values at the same addresses", 1, keep_addresses=True)
        self._one_changed()
        self._run("the first values at new addresses", 0, index=1)
        if self.session.device.startswith("cuda"):
            self._run("another stream", 2, how="stream")
            if self.kernel.capturable:
                self._run("a captured graph", 3, how="graph")
            else:
                self.verdict.checks["a captured graph"] = "the kernel says that it can't"

    def _one_changed(self) -> None:
        """One value of one input is another at the same address: what was kept by a few samples of
        its data shows."""
        masters = one_changed(self._masters(1), np.random.default_rng(self.seed))
        self.session.place(0, masters, keep_addresses=True)
        self.session.ask("call", set=0, how="plain")
        fetched = self.session.fetch(0)
        when = "one value changed"
        truth = reference.truth(self.case, masters)
        judge(self.case, self.session, masters, fetched, truth, when, self.verdict)
        self.verdict.checks[when] = "ok"

    def _repeat(self, first: dict) -> None:
        self.session.ask("poison", set=0)
        again = self._run("a second call", 0, place=False)
        if not self.kernel.deterministic:
            self.verdict.checks["equal bits"] = "the kernel says that they may differ"
            return
        for plan in self.case.of_role("output"):
            if first[plan.name].tobytes() != again[plan.name].tobytes():
                raise Wrong("nondeterministic", f"{plan.name} has other bits in the second call")
        self.verdict.checks["equal bits"] = "ok"


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def device_of(kernel: Kernel, asked: str | None) -> str | None:
    """Where the kernel will run; None if it can't run on this machine."""
    wanted = asked or default_device()
    if wanted.partition(":")[0] in kernel.devices:
        return wanted
    if asked is None and wanted == "cuda" and "cpu" in kernel.devices:
        return "cpu"
    return None


@dataclass
class Checked:
    kernel: Kernel
    build: Build
    device: str
    cases: list[Verdict]

    @property
    def statuses(self) -> list[str]:
        return [case.status for case in self.cases]


def check(
    kernel: Kernel,
    problem: Problem,
    texts: list[str],
    *,
    device: str | None,
    seed: int | None,
    timeout: float,
    problem_folders: list[Path],
    progress=lambda verdict: None,
) -> Checked:
    """Every case in one process, and a new process after one that was lost."""
    where = device_of(kernel, device)
    if where is None:
        needed = " or ".join(kernel.devices)
        message = (
            f"a {kernel.language} kernel needs {needed}; asked for {device or default_device()}"
        )
        return Checked(kernel, Build(), "", [Verdict(text, "no_device", message) for text in texts])
    made = build(kernel, where)
    if not made.ok:
        verdicts = [Verdict(text, "compile_error", _first_error(made.log)) for text in texts]
        return Checked(kernel, made, where, verdicts)
    verdicts = []
    for verdict in _verdicts(kernel, problem, made, texts, where, seed, timeout, problem_folders):
        verdicts.append(verdict)
        progress(verdict)
    return Checked(kernel, made, where, verdicts)


def _first_error(log: str) -> str:
    return next((line for line in log.splitlines() if "error" in line), log[-500:])


def _verdicts(kernel, problem, made, texts, device, seed, timeout, folders) -> Iterator[Verdict]:
    waiting = list(texts)
    while waiting:
        try:
            with Session(kernel, problem, made, device, timeout, folders) as session:
                while waiting:
                    case = cases.make(problem, waiting.pop(0))
                    # A seed that nobody can know beforehand, unless one is asked for.
                    own = secrets.randbits(62) if seed is None else seed
                    if why := out_of_domain(kernel, case):
                        yield Verdict(case.text, "unsupported", why, own)
                        continue
                    verdict = CaseCheck(kernel, case, session, own).run()
                    yield verdict
                    if verdict.status in ("crash", "timeout", "runtime_error"):
                        break  # its process is lost, or no longer to be trusted
        except WorkerError as error:
            yield Verdict(
                waiting.pop(0) if waiting else "", error.status, str(error), log=error.log
            )
