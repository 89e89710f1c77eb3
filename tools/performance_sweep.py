"""Sweeps (`pestle bench --sweep`): what tools/performance.py says of them.

A line is a point: an op at one form and shape, with a time and a copy's time for each kind of data.
Of the lines of a point the last one counts.
"""

import statistics
from dataclasses import dataclass, field

# Shares of the copy: over all points and kinds of data of an op's form.
BARS = {"plain": (0.94, 0.85)}
OTHER_BARS = (0.85, 0.70)  # quantised output, rotated, gradients
SPREAD = 0.03
# Below, starting and ending a kernel weighs. Those points count; the page says what holds without.
SMALL = 16 << 20


def is_sweep(line):
    return "sweep" in line


def sweep_faults(line):
    faults = []
    if not line["us"] or min(line["us"].values()) <= 0 or min(line["copy_us"].values()) <= 0:
        faults.append("has no times, or some that are none")
    if set(line["us"]) != set(line["copy_us"]):
        faults.append("has times of data without a copy's, or the other way round")
    if not line["agree"]:
        faults.append("calls on the same inputs left other results")
    return faults


@dataclass
class FormSummary:
    op: str
    form: str
    kind: str
    points: int = 0
    median: float = 0.0
    least: float = 0.0
    least_at: str = ""
    least_large: float = 1.0  # of calls of SMALL bytes and more; 1 where there are none
    spread: float = 0.0
    slowest_data: str = ""
    missed: list = field(default_factory=list)


def shares(line):
    return {data: line["copy_us"][data] / us for data, us in line["us"].items()}


def spread_by_data(lines):
    """How much longer the slowest kind of data takes than the fastest, and which it is.

    Medians over shapes of the time beside that of normal data at the same shape, so that noise of
    single points does not add up.
    """
    ratios = {}
    for line in lines:
        for data, us in line["us"].items():
            ratios.setdefault(data, []).append(us / line["us"]["normal"])
    medians = {data: statistics.median(found) for data, found in ratios.items()}
    slowest = max(medians, key=medians.get)
    return medians[slowest] / min(medians.values()) - 1, slowest


def summary_of(lines):
    first = lines[0]
    found = FormSummary(first["sweep"], first["form"], first["class"], len(lines))
    points = [(share, data, line) for line in lines for data, share in shares(line).items()]
    found.median = statistics.median(share for share, _, _ in points)
    found.least, data, line = min(points, key=lambda point: point[0])
    found.least_at = f"{line['rows']} x {line['width']}, {data}, {line['impl'].split('/')[-1]}"
    large = [share for share, _, line in points if line["bytes"] >= SMALL]
    found.least_large = min(large, default=1.0)
    found.spread, found.slowest_data = spread_by_data(lines)
    median_bar, least_bar = BARS.get(found.kind, OTHER_BARS)
    if found.median < median_bar:
        found.missed.append("median")
    if found.least < least_bar:
        found.missed.append("least")
    if found.spread > SPREAD:
        found.missed.append("data")
    return found


def summaries(lines):
    points = {(x["sweep"], x["form"], x["rows"], x["width"]): x for x in lines}
    forms = {}
    for line in points.values():
        forms.setdefault((line["sweep"], line["form"]), []).append(line)
    return [summary_of(found) for _, found in sorted(forms.items())]


def extra(form):
    """The form without its extents."""
    return " ".join(word for word in form.split() if "{" not in word and word != "B=")


def table(lines):
    found = summaries(lines)
    page = [
        f"{sum(s.points for s in found)} points, each with up to four kinds of data; shares of a "
        f"copy of as many bytes. Bars: median {BARS['plain'][0]}, least {BARS['plain'][1]} for "
        f"plain ops; {OTHER_BARS[0]} and {OTHER_BARS[1]} with quantised output, rotation, or for "
        f"gradients; data {SPREAD:.0%}.",
        "",
        "| op | form | kind | points | median | least | where | from 16 MiB | data | missed |",
        "|---|---|---|--:|--:|--:|---|--:|--:|---|",
    ]
    for s in found:
        page.append(
            f"| `{s.op}` | `{extra(s.form)}` | {s.kind} | {s.points} | {s.median:.2f} | "
            f"{s.least:.2f} | {s.least_at} | {s.least_large:.2f} | {s.spread:.1%} | "
            f"{', '.join(s.missed)} |"
        )
    return page


def text(lines):
    """For a terminal: every form, and how many meet all bars."""
    found = summaries(lines)
    rows = []
    for s in found:
        word = "MISSED " + ",".join(s.missed) if s.missed else "met"
        rows.append(
            f"{word:24} {s.op:24} median {s.median:.2f} least {s.least:.2f} "
            f"(from 16 MiB {s.least_large:.2f}) data {s.spread:.1%} {s.slowest_data:8} "
            f"{s.points:4} points  {extra(s.form)}  [{s.least_at}]"
        )
    met = sum(not s.missed for s in found)
    return [*rows, f"{met} of {len(found)} forms meet every bar"]


def all_met(lines):
    return all(not s.missed for s in summaries(lines))
