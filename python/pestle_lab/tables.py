"""A report as a table: on the terminal, as CSV, as Markdown."""

from __future__ import annotations

import csv
import io

COLUMNS = ("kernel", "case", "status", "mode", "median µs", "95 % interval", "n", "GB/s",
           "% of limit", "message")  # fmt: skip


def rows(report: dict) -> list[list[str]]:
    """One for each case and mode; of a case without times, one."""
    found = []
    for kernel in report["kernels"]:
        for case in kernel["cases"]:
            start = [kernel["name"], case["id"], case["status"]]
            message = " ".join(case["message"].split())
            timing = case.get("timing") or {}
            for i, (mode, times) in enumerate(timing.items()):
                figures = case.get("throughput") if i == 0 else None  # they are of the first mode
                found.append([*start, *_times(mode, times), *_figures(figures), message])
            if not timing:
                found.append([*start, *[""] * 6, message])
    return found


def _times(mode: str, times: dict) -> list[str]:
    low, high = times["ci95_us"]
    return [mode, f"{times['median_us']:.3f}", f"{low:.3f} to {high:.3f}", str(times["n"])]


def _figures(throughput: dict | None) -> list[str]:
    if not throughput:
        return ["", ""]
    share = 100 * throughput["share_of_measured_limit"]
    return [f"{throughput['gbps']:.1f}", f"{share:.0f}"]


def as_csv(report: dict) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *rows(report)])
    return text.getvalue()


def as_markdown(report: dict) -> str:
    where = (report["env"]["gpu"] or {}).get("name") or report["env"]["cpu"]
    numbers = {"median µs", "95 % interval", "n", "GB/s", "% of limit"}
    lines = [
        f"`{' '.join(report['command'])}` on {where}, {report['started']}, exit code "
        f"{report['exit_code']}",
        "",
        _line(COLUMNS),
        _line("--:" if name in numbers else "---" for name in COLUMNS),
        *(_line(cell.replace("|", "\\|") for cell in row) for row in rows(report)),
    ]
    return "\n".join(lines) + "\n"


def _line(cells) -> str:
    return f"| {' | '.join(cells)} |"
