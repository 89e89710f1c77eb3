#!/usr/bin/env python3
"""usage: ncu_extract.py REPORT.ncu-rep|REPORT.csv [--json] [--kernel NAME]: the figures of an ncu
report that say where the time goes. A .csv is what `ncu --import R --csv --page raw` prints."""

from __future__ import annotations

import argparse
import csv
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

METRICS = {
    "gpu__time_duration.sum": "time",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "maths, % of the limit",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": "memory, % of the limit",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "DRAM, % of the limit",
    "dram__bytes_read.sum": "bytes read from DRAM",
    "dram__bytes_write.sum": "bytes written to DRAM",
    "lts__t_sector_hit_rate.pct": "L2 hits, %",
    "launch__registers_per_thread": "registers of a thread",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy, %",
}
STALL = "smsp__average_warps_issue_stalled_"


def table(path: Path) -> str:
    if path.suffix == ".csv":
        return path.read_text()
    if shutil.which("ncu") is None:
        sys.exit(f"ncu_extract: ncu is not installed, and only it reads {path}")
    command = ["ncu", "--import", str(path), "--csv", "--page", "raw"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def kernels(text: str, wanted: str) -> list[dict]:
    """The second line of the table has units."""
    start = text.find('"ID"')
    if start < 0:
        sys.exit("ncu_extract: no table of kernels in this report")
    rows = list(csv.DictReader(io.StringIO(text[start:])))
    units, found = rows[0], []
    for row in rows[1:]:
        if wanted not in row["Kernel Name"]:
            continue
        figures = {
            title: f"{row[name]} {units[name]}".strip()
            for name, title in METRICS.items()
            if row.get(name)
        }
        stalls = {
            name.removeprefix(STALL).partition("_per_issue")[0]: float(value.replace(",", ""))
            for name, value in row.items()
            if name.startswith(STALL) and value and "not_issued" not in name
        }
        top = sorted(stalls, key=stalls.get, reverse=True)[:3]
        found.append({"kernel": row["Kernel Name"], **figures, "top stalls": ", ".join(top)})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--kernel", default="", help="only kernels with this in their name")
    args = parser.parse_args()
    if not args.report.exists():
        sys.exit(f"ncu_extract: no file {args.report}")
    found = kernels(table(args.report), args.kernel)
    if not found:
        sys.exit(f"ncu_extract: no kernel with {args.kernel!r} in its name")
    if args.json:
        print(json.dumps(found, indent=1))
        return
    for kernel in found:
        for name, value in kernel.items():
            print(f"{name:24}{value}")
        print()


if __name__ == "__main__":
    main()
