#!/usr/bin/env python3
"""Reports of Nsight Compute in words: analyze_ncu.py REPORT.csv... [--compare] [--output FILE]

A report is what `ncu --import R.ncu-rep --csv --page raw --print-units base` prints, or the
R.ncu-rep itself where ncu is installed. --compare puts the figures of several side by side."""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
from pathlib import Path

from pestle_lab.errors import LabError
from pestle_lab.profiling import calls, ncu


def read(path: Path) -> list[ncu.Launch]:
    if not path.exists():
        raise LabError(f"no file {path}")
    if path.suffix != ".ncu-rep":
        return ncu.launches(path.read_text(), None)
    program = calls.program("ncu", f"only it reads {path}")
    command = [program, "--import", str(path), "--csv", "--page", "raw", "--print-units", "base"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise LabError(f"ncu --import {path}: {(done.stderr or done.stdout).strip()}", 1)
    return ncu.launches(done.stdout, None)


def shown(path: Path, launches: list[ncu.Launch]) -> None:
    for launch in launches:
        print(f"\n{path.name}: {launch.name}")
        for title, value in launch.figures.items():
            print(f"  {title:36}{value:>16,.10g}")
        for sentence in launch.findings:
            print(f"  - {sentence}")


def table(found: dict[Path, list[ncu.Launch]]) -> list[list[str]]:
    """A row for each figure, a column for each launch."""
    columns = [(f"{p.stem}: {launch.name}", launch) for p, ls in found.items() for launch in ls]
    titles = dict.fromkeys(title for _, launch in columns for title in launch.figures)
    rows = [["", *(name for name, _ in columns)]]
    for title in titles:
        figures = [launch.figures.get(title) for _, launch in columns]
        rows.append([title, *("" if f is None else f"{f:.10g}" for f in figures)])
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reports", nargs="+", type=Path, metavar="REPORT")
    parser.add_argument("--compare", action="store_true", help="side by side")
    parser.add_argument("--output", type=Path, help="the table as CSV")
    args = parser.parse_args()
    try:
        found = {path: read(path) for path in args.reports}
    except LabError as error:
        print(f"analyze_ncu: {error}", file=sys.stderr)
        return error.code
    rows = table(found)
    if args.compare:
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = [f"{c:>{w}}" if i else f"{c:{w}}"
                     for i, (c, w) in enumerate(zip(row, widths, strict=True))]  # fmt: skip
            print("  ".join(cells))
    else:
        for path, launches in found.items():
            shown(path, launches)
    if args.output:
        with open(args.output, "w", newline="") as file:
            csv.writer(file).writerows(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
