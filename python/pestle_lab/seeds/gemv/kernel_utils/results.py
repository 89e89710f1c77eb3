"""Results of a run, and their JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field

FAILED = -1.0  # avg_time_ms of what was not timed


@dataclass
class CorrectnessResult:
    test_name: str
    backend_name: str
    is_correct: bool
    test_params: str
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    error_msg: str | None = None
    error_type: str | None = None  # the workbench's status: wrong_result, timeout, unsupported ...


@dataclass
class PerformanceResult:
    test_name: str
    backend_name: str
    successfully_ran: bool
    test_params: str
    avg_time_ms: float = FAILED  # the median
    speedup: float = 0.0  # over the reference; 0 where one of the two was not timed
    reference_time_ms: float = FAILED
    error_msg: str | None = None


@dataclass
class BackendResults:
    backend_name: str
    correctness_tests: list[CorrectnessResult] = field(default_factory=list)
    performance_tests: list[PerformanceResult] = field(default_factory=list)

    @property
    def unsupported(self) -> bool:
        tests = self.correctness_tests
        return bool(tests) and all(t.error_type == "unsupported" for t in tests)

    @property
    def correctness_score(self) -> float:
        tests = self.correctness_tests
        return sum(t.is_correct for t in tests) / len(tests) if tests else 0.0

    @property
    def all_correct(self) -> bool:
        return bool(self.correctness_tests) and all(t.is_correct for t in self.correctness_tests)

    @property
    def _speedups(self) -> list[float]:
        return [p.speedup for p in self.performance_tests if p.speedup > 0]

    @property
    def avg_speedup(self) -> float:
        return sum(self._speedups) / len(self._speedups) if self._speedups else 0.0

    @property
    def geomean_speedup(self) -> float:
        if not self._speedups:
            return 0.0
        return math.exp(sum(map(math.log, self._speedups)) / len(self._speedups))

    def summary(self) -> str:
        if self.unsupported:
            return f"{self.backend_name:20} {'unsupported':>12}"
        times = f"{self.avg_speedup:9.2f}x {self.geomean_speedup:9.2f}x" if self._speedups else ""
        return f"{self.backend_name:20} {self.correctness_score:12.1%} {times}".rstrip()


@dataclass
class TestSuiteResults:
    __test__ = False  # not one of pytest's

    suite_name: str
    backends: list[BackendResults] = field(default_factory=list)

    def get_backend(self, name: str) -> BackendResults | None:
        return next((b for b in self.backends if b.backend_name == name), None)

    def summary_table(self) -> str:
        head = f"{'Backend':20} {'Correctness':>12} {'Speedup':>10} {'Geomean':>10}"
        return "\n".join([head, *(b.summary() for b in self.backends)])

    def to_json(self) -> str:
        made = [
            {
                "backend_name": b.backend_name,
                "correctness_score": b.correctness_score,
                "all_correct": b.all_correct,
                "avg_speedup": b.avg_speedup,
                "geomean_speedup": b.geomean_speedup,
                "correctness_tests": [asdict(t) for t in b.correctness_tests],
                "performance_tests": [asdict(t) for t in b.performance_tests],
            }
            for b in self.backends
        ]
        return json.dumps({"suite_name": self.suite_name, "backends": made}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> TestSuiteResults:
        read = json.loads(text)
        return cls(
            read["suite_name"],
            [
                BackendResults(
                    b["backend_name"],
                    [CorrectnessResult(**t) for t in b["correctness_tests"]],
                    [PerformanceResult(**t) for t in b["performance_tests"]],
                )
                for b in read["backends"]
            ],
        )
