"""The bars of bench/bars_cuda.json, judged from result lines: figure, peer, verdict.

A bar is data: which rows (ops, a pattern of their cases, least or most bytes moved), which
figure, and the limit for every row or for the geometric mean. Figures: share_of_copy; speed (a
peer's time over ours; "best" is the fastest there is); time_ratio (ours, less what is free, over
a peer's); over_row (a row's time over that of a row of ours, which "row" makes of its case: a
pattern, what stands in its place, an implementation); tera_per_s (operations); launches (kernels,
copies and clears of one call); host_ns (a call's cost beyond a bare launch). Rows of an
implementation that was forced count where a bar names it ("impl", a pattern) alone. A bar without
enough rows is missing, which counts as missed. Rows with "reads": 2 are held to bytes that count
each pass of the usual way, though ours reads them once (its contract counts them once, too).
"""

import json
import math
import re
from pathlib import Path

MIB = 1 << 20
FIGURES = ("share_of_copy", "speed", "time_ratio", "over_row", "tera_per_s", "launches", "host_ns")
PEERS = (
    "torch_eager",
    "torch_compile",
    "cublaslt",
    "comfy_kitchen",
    "comfy_kitchen_triton",
    "quack",
)


def read_bars(path):
    return json.loads(Path(path).read_text())["bars"]


def rule_of(line, selectors):
    """The first that takes the line."""
    for rule in selectors:
        known = "*" in rule["ops"] or line["op"] in rule["ops"]
        if known and re.search(rule.get("case", ""), line["case"]):
            return rule
    return None


def selected(line, selectors):
    return rule_of(line, selectors) is not None


def is_row(bar, line):
    moved = line["bytes"] / MIB
    return (
        selected(line, bar["rows"])
        and not selected(line, bar.get("but", []))
        and bool(line["gpu"].get("portable")) == bar.get("portable", False)
        and moved >= bar.get("min_mib", 0)
        and moved <= bar.get("max_mib", math.inf)
        and (not bar.get("graph") or line.get("graph"))
        and line["dtype"] == bar.get("dtype", line["dtype"])
        and (re.search(bar["impl"], line["impl"]) if "impl" in bar else not line.get("forced"))
    )


def peer_times(line, wanted):
    times = {
        name: peer["us"] if isinstance(peer, dict) else peer
        for name, peer in (line.get("peers") or {}).items()
    }
    names = PEERS if wanted == "best" else wanted
    return {name: times[name] for name in names if name in times}


def over_row(rule, line, lines):
    """The row's time over the other's; None where that was not measured."""
    wanted = re.sub(rule["case"], rule["by"], line["case"])
    for other in lines:
        same = other["op"] == line["op"] and other["case"] == wanted
        as_built = bool(other["gpu"].get("portable")) == bool(line["gpu"].get("portable"))
        ours = other["impl"] == rule["impl"] if "impl" in rule else not other.get("forced")
        if same and as_built and ours and other is not line:
            return line["us"] / other["us"], f"{other['us']:.4g} us of {name_of(other)}"
    return None


def share_of_copy(line, reads):
    """Of the copy's speed, with what is read counted `reads` times."""
    share = line["percent_of_ceiling"] / 100
    said = f"copy at {line['copy_gb_per_s']:.0f} GB/s"
    if reads == 1:
        return share, said
    counted = (reads * line["reads"] + line["writes"]) / line["bytes"]
    return share * counted, f"{said}, its input counted {reads} times"


def value_of(bar, line, lines):
    """(value, against what), or None where the row has no such figure."""
    if bar["figure"] == "over_row":
        return over_row(bar["row"], line, lines)
    if bar["figure"] == "tera_per_s":
        return line["flops"] / line["us"] * 1e-6, "the limit"
    if bar["figure"] == "launches":
        launches = line.get("launches")
        return (len(launches), " ".join(launches)) if launches else None
    share = line["percent_of_ceiling"] / 100
    if bar["figure"] == "share_of_copy":
        return share_of_copy(line, rule_of(line, bar["rows"]).get("reads", 1))
    times = peer_times(line, bar["peers"])
    if not times:
        return None
    name, us = min(times.items(), key=lambda item: item[1])
    if "peer_under" in bar and share * line["us"] / us >= bar["peer_under"]:
        return None
    said = f"{name} {us:.4g} us"
    if bar["figure"] == "speed":
        return us / line["us"], said
    return max(0.0, line["us"] - bar["beyond_us"]) / us, said


def host_values(bar, lines):
    known = re.compile(bar.get("hosts", ""))
    return [
        (line["call_ns"] - line["launch_ns"], f"bare launch {line['launch_ns']:.0f} ns", line)
        for line in lines
        if known.search(line["host_cost"])
    ]


class Verdict:
    def __init__(self, bar, rows):
        self.bar, self.rows = bar, rows  # rows: (value, against, line)
        self.most = "every_at_most" in bar
        self.limit = bar.get("every_at_most", bar.get("every"))
        values = [value for value, _, _ in rows if value > 0]
        self.geomean = math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan
        self.missing = len(rows) < bar.get("count", 1)

    def row_met(self, value):
        if self.limit is None:
            return True
        return value <= self.limit if self.most else value >= self.limit

    def missed_rows(self):
        return [row for row in self.rows if not self.row_met(row[0])]

    def met(self):
        geomean_met = self.geomean >= self.bar.get("geomean", -math.inf)
        return not self.missing and not self.missed_rows() and geomean_met

    def word(self):
        return "MISSING" if self.missing else "met" if self.met() else "MISSED"

    def worst(self):
        return (max if self.most else min)(self.rows, key=lambda row: row[0], default=None)

    def wanted(self):
        parts = []
        if self.limit is not None:
            parts.append(f"every row at {'most' if self.most else 'least'} {self.limit:g}")
        if "geomean" in self.bar:
            parts.append(f"geomean at least {self.bar['geomean']:g}")
        return ", ".join(parts)


def judge(bars, bench, host):
    """A verdict for each bar; `bench` and `host` are result lines of one GPU."""
    verdicts = []
    for bar in bars:
        if bar["figure"] == "host_ns":
            rows = host_values(bar, host)
        else:
            lines = [line for line in bench if is_row(bar, line)]
            found = [(value_of(bar, line, bench), line) for line in lines]
            rows = [(value[0], value[1], line) for value, line in found if value]
        verdicts.append(Verdict(bar, rows))
    return verdicts


def name_of(line):
    return f"{line.get('op', line.get('host_cost'))} '{line['case']}'"


def table(verdicts):
    lines = [
        "| bar | wanted | rows | short of it | geomean | worst row | against | verdict |",
        "|---|---|--:|--:|--:|---|---|---|",
    ]
    for v in verdicts:
        worst = v.worst()
        geomean = "" if math.isnan(v.geomean) else f"{v.geomean:.3g}"
        last = f"{worst[0]:.3g} `{name_of(worst[2])}` | {worst[1]}" if worst else "| "
        counts = f"{len(v.rows)} | {len(v.missed_rows())} | {geomean}"
        lines.append(f"| {v.bar['bar']} | {v.wanted()} | {counts} | {last} | {v.word()} |")
    return lines


def text(verdicts, every_row=False):
    lines = []
    for v in verdicts:
        rows = f"{len(v.rows)} rows, {len(v.missed_rows())} short of it"
        geomean = "" if math.isnan(v.geomean) else f", geomean {v.geomean:.3g}"
        lines.append(f"{v.word():8}{v.bar['bar']}: {v.wanted()}; {rows}{geomean}")
        shown = v.rows if every_row else v.missed_rows()
        for value, against, line in sorted(shown, key=lambda row: row[0]):
            verdict = "met" if v.row_met(value) else "missed"
            lines.append(f"    {value:8.3g} {verdict:7} {name_of(line)} against {against}")
    met = sum(v.met() for v in verdicts)
    return [*lines, f"{met} met, {len(verdicts) - met} missed or missing"]
