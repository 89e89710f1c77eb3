#!/usr/bin/env python3
"""usage: tools/test_budgets.py LOGS: the closing table of tools/test.sh.

LOGS/stages.tsv has a line for each stage: name, verdict, seconds. LOGS/STAGE/*.xml are the JUnit
files of its tests. Prints the stages, then what each subject's tests took against the minutes that
it was given. A subject over its budget is shown, and fails nothing: clocks of busy machines say
little.
"""

import re
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

# From nothing, on a new machine with two cores.
WHOLE_MINUTES = 45


@dataclass(frozen=True)
class Subject:
    """Tests whose id matches `tests`, wherever they run, and `stages` that serve it alone."""

    name: str
    minutes: float
    tests: str
    stages: tuple[str, ...] = ()


SUBJECTS = (
    Subject("QuantizedTensor", 4, r"quantized\.|quantized_tensor|QuantizedTensor"),
    Subject("attention", 6, r"attention"),
    Subject("GEMM", 6, r"gemm|matmul|scaled_mm|linear_|matrix_product", ("gemm",)),
    Subject("workbench", 4, r"pestle_lab|\blab\b|test_lab", ("lab",)),
    Subject("Rust", 6, r"\brust\b", ("rust",)),
    Subject("ComfyUI", 6, r"comfy", ("comfyui", "comfy")),
)


@dataclass(frozen=True)
class Stage:
    name: str
    verdict: str
    seconds: float


def read_stages(logs: Path) -> list[Stage]:
    lines = (logs / "stages.tsv").read_text().splitlines()
    rows = [line.split("\t") for line in lines if line]
    return [Stage(name, verdict, float(seconds)) for name, verdict, seconds in rows]


def test_seconds(folder: Path) -> list[tuple[str, float]]:
    """Id (after its file's) and seconds of each test in the JUnit files of `folder`."""
    found = []
    for file in sorted(folder.glob("*.xml")):
        try:
            root = ElementTree.parse(file).getroot()
        except ElementTree.ParseError as fault:  # of a program that was stopped
            print(f"{file}: not read: {fault}")
            continue
        found += [
            (
                f"{file.stem}.{case.get('classname')}.{case.get('name')}",
                float(case.get("time") or 0),
            )
            for case in root.iter("testcase")
        ]
    return found


def seconds_of(subject: Subject, stages: list[Stage], tests: dict[str, list]) -> float:
    pattern = re.compile(subject.tests)
    total = 0.0
    for stage in stages:
        if stage.name in subject.stages:
            total += stage.seconds
        else:
            total += sum(s for name, s in tests.get(stage.name, []) if pattern.search(name))
    return total


def report(stages: list[Stage], tests: dict[str, list]) -> list[str]:
    lines = [f"{s.name:<12} {s.verdict:<6} {s.seconds:4.0f} s" for s in stages]
    whole = sum(s.seconds for s in stages) / 60
    rows = [("all stages", whole, WHOLE_MINUTES)]
    rows += [(s.name, seconds_of(s, stages, tests) / 60, s.minutes) for s in SUBJECTS]
    for name, minutes, most in rows:
        over = "  OVER BUDGET" if minutes > most else ""
        lines.append(f"{name:<16} {minutes:5.1f} of {most:g} min{over}")
    return lines


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__.splitlines()[0], file=sys.stderr)
        return 2
    logs = Path(sys.argv[1])
    stages = read_stages(logs)
    print("\n".join(report(stages, {s.name: test_seconds(logs / s.name) for s in stages})))
    return 0


if __name__ == "__main__":
    sys.exit(main())
