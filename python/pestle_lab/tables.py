"""A report as a table: on the terminal, as CSV, as Markdown."""

from __future__ import annotations

import csv
import io

COLUMNS = ("kernel", "case", "status", "mode", "median µs", "95 % interval", "n", "GB/s",
           "% of limit", "x baseline", "message")  # fmt: skip


def rows(report: dict) -> list[list[str]]:
    """One for each case and mode; of a case without times, one."""
    found = []
    for kernel in report["kernels"]:
        for case in kernel["cases"]:
            start = [kernel["name"], case["id"], case["status"]]
            message = " ".join(case["message"].split())
            timing = case.get("timing") or {}
            for i, (mode, times) in enumerate(timing.items()):
                figures = case if i == 0 else {}  # they are of the first mode
                found.append([*start, *_times(mode, times), *_figures(figures), message])
            if not timing:
                found.append([*start, *[""] * 7, message])
        found += _means(kernel)
    return found


def _means(kernel: dict) -> list[list[str]]:
    summary = kernel["summary"]
    share, ratio = summary.get("geomean_pct_sol"), summary.get("geomean_ratio")
    if len(kernel["cases"]) < 2 or (share is None and ratio is None):
        return []
    figures = ["" if share is None else f"{share:.0f}", "" if ratio is None else f"{ratio:.4f}"]
    return [[kernel["name"], "geometric mean", *[""] * 6, *figures, ""]]


def _times(mode: str, times: dict) -> list[str]:
    """Another program's report may have a mean alone."""
    interval = " to ".join(f"{end:.3f}" for end in times["ci95_us"] or [])
    middle = times["median_us"] if times["median_us"] is not None else times["mean_us"]
    return [mode, f"{middle:.3f}", interval, str(times["n"] or "")]


def _figures(case: dict) -> list[str]:
    throughput, baseline = case.get("throughput") or {}, case.get("baseline")
    speed, share = throughput.get("gbps"), throughput.get("share_of_measured_limit")
    return [
        "" if speed is None else f"{speed:.1f}",
        "" if share is None else f"{100 * share:.0f}",
        f"{baseline['ratio']:.4f}" if baseline else "",
    ]


def as_csv(report: dict) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *rows(report)])
    return text.getvalue()


def as_markdown(report: dict) -> str:
    where = (report["env"]["gpu"] or {}).get("name") or report["env"]["cpu"]
    numbers = {"median µs", "95 % interval", "n", "GB/s", "% of limit", "x baseline"}
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
