"""One self-contained HTML page of the results: plots as inline SVG, no script, no network."""

import html
import math
import statistics

import performance_bars as bars

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:70em;padding:0 1em}
body{color:#1c2733;background:#fff}
h1,h2,h3{line-height:1.2}table{border-collapse:collapse;font-size:13px}
td,th{border-bottom:1px solid #c8d2dc;padding:.2em .6em;text-align:left;vertical-align:top}
svg{max-width:100%;height:auto}text{font:11px system-ui,sans-serif;fill:currentColor}
.grid{stroke:#c8d2dc;stroke-width:1}.goal{stroke:#c0392b;stroke-width:1;stroke-dasharray:4 3}
.ours{fill:#1f6fb2;fill-opacity:.75}.bad{fill:#c0392b;fill-opacity:.85}.copy{fill:#8a97a3;fill-opacity:.6}
.mean{stroke:#1c2733;stroke-width:2}.met{color:#1e7e34}.MISSED,.MISSING{color:#c0392b}
@media(prefers-color-scheme:dark){body{color:#dfe7ee;background:#14191f}td,th{border-color:#38444f}
.grid{stroke:#38444f}.mean{stroke:#dfe7ee}.ours{fill:#5fb0ee}}
"""
LEFT, WIDTH, ROW = 210, 880, 17  # of plots: room for names, whole width, height of an op's row


def said(text):
    return html.escape(str(text), quote=True)


class Axis:
    """From values to places along a plot's width."""

    def __init__(self, low, high, log=False):
        self.log = log
        self.low, self.high = (math.log(low), math.log(high)) if log else (low, high)

    def at(self, value):
        value = math.log(value) if self.log else value
        share = (value - self.low) / ((self.high - self.low) or 1)
        return LEFT + min(max(share, 0.0), 1.0) * (WIDTH - LEFT - 20)


def line(x1, y1, x2, y2, kind):
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def dot(x, y, kind, title):
    place = f'cx="{x:.1f}" cy="{y:.1f}" r="4"'
    return f'<circle class="{kind}" {place}><title>{said(title)}</title></circle>'


def strips(groups, axis, ticks, goals, good_from):
    """A row for each name, a dot for each (value, title), a bar at their geometric mean."""
    height = ROW * len(groups) + 30
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img">']
    for tick in ticks:
        parts.append(line(axis.at(tick), 0, axis.at(tick), height - 20, "grid"))
        parts.append(
            f'<text x="{axis.at(tick):.1f}" y="{height - 6}" text-anchor="middle">{tick:g}</text>'
        )
    parts += [line(axis.at(goal), 0, axis.at(goal), height - 20, "goal") for goal in goals]
    for i, (name, points) in enumerate(groups):
        y = i * ROW + ROW / 2
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{said(name)}</text>')
        for value, title in points:
            parts.append(dot(axis.at(value), y, "ours" if value >= good_from else "bad", title))
        mean = axis.at(statistics.geometric_mean(value for value, _ in points))
        parts.append(line(mean, y - 6, mean, y + 6, "mean"))
    return "\n".join([*parts, "</svg>"])


def scatter(lines):
    """Rate over bytes moved; grey: the copy of the same size."""
    height, low = 320, min(x["bytes"] for x in lines)
    axis = Axis(low / 1.2, max(x["bytes"] for x in lines) * 1.2, log=True)
    most = max(max(x["gb_per_s"], x["copy_gb_per_s"]) for x in lines) * 1.05
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img">']

    def down(rate):
        return (height - 40) * (1 - rate / most) + 10

    step = 10 ** math.floor(math.log10(most))
    for i in range(int(most / step) + 1):
        parts.append(line(LEFT, down(i * step), WIDTH - 20, down(i * step), "grid"))
        parts.append(f'<text x="{LEFT - 8}" y="{down(i * step) + 4:.1f}" text-anchor="end">'
                     f"{i * step:g} GB/s</text>")  # fmt: skip
    for power in range(10, 40, 2):
        if axis.low <= math.log(2**power) <= axis.high:
            x, size = axis.at(2**power), 2**power / (1 << 20)
            parts.append(
                f'<text x="{x:.1f}" y="{height - 8}" text-anchor="middle">{size:g} MiB</text>'
            )
    for x in lines:
        place = axis.at(x["bytes"])
        parts.append(dot(place, down(x["copy_gb_per_s"]), "copy", "copy of the same size"))
        parts.append(dot(place, down(x["gb_per_s"]), "ours", title_of(x)))
    return "\n".join([*parts, "</svg>"])


def title_of(line):
    return (
        f"{line['op']} {line['case']}: {line['us']:.4g} us, {line['gb_per_s']:.0f} GB/s, "
        f"{line['percent_of_ceiling']:.0f} % of copy"
    )


def by_op(lines, value):
    groups = {}
    for entry in sorted(lines, key=lambda entry: (entry["op"], entry["case"])):
        found = value(entry)
        if found is not None:
            groups.setdefault(entry["op"], []).append(found)
    return sorted(groups.items())


def share(entry):
    return entry["percent_of_ceiling"] / 100, title_of(entry)


def speed(entry):
    times = bars.peer_times(entry, "best")
    if not times:
        return None
    name, us = min(times.items(), key=lambda item: item[1])
    return us / entry["us"], f"{title_of(entry)}; {name} {us:.4g} us"


def verdict_table(verdicts):
    rows = []
    for v in verdicts:
        worst = v.worst()
        geomean = "" if math.isnan(v.geomean) else f"{v.geomean:.3g}"
        last = f"{worst[0]:.3g}: {bars.name_of(worst[2])} against {worst[1]}" if worst else ""
        cells = [v.bar["bar"], v.wanted(), len(v.rows), len(v.missed_rows()), geomean, last]
        body = "".join(f"<td>{said(cell)}</td>" for cell in cells)
        rows.append(f'<tr>{body}<td class="{v.word()}">{v.word()}</td></tr>')
    names = ("bar", "wanted", "rows", "short of it", "geomean", "worst row", "verdict")
    head = "".join(f"<th>{name}</th>" for name in names)
    return f"<table><tr>{head}</tr>\n" + "\n".join(rows) + "</table>"


def section(name, lines, verdicts):
    """A machine's plots."""
    parts = [f"<h2>{said(name)}</h2>"]
    if verdicts:
        parts += ["<h3>Bars</h3>", verdict_table(verdicts)]
    shares, speeds = by_op(lines, share), by_op(lines, speed)
    ticks = [0, 0.2, 0.4, 0.6, 0.8, 1]
    parts += [
        "<h3>Share of the ceiling</h3><p>A dot a case; the bar is the geometric mean. Dashed: 0.88 "
        "and 0.94. Point at a dot for its case.</p>",
        strips(shares, Axis(0, 1.1), ticks, (0.88, 0.94), 0.88),
        "<h3>Rate and size</h3><p>Grey: the copy of the same size.</p>",
        scatter(lines),
    ]
    if speeds:
        values = [value for _, points in speeds for value, _ in points]
        axis = Axis(min(0.5, *values), max(2.0, *values), log=True)
        ticks = [t for t in (0.25, 0.5, 1, 2, 4, 8, 16, 32) if axis.low <= math.log(t) <= axis.high]
        parts += [
            "<h3>Speed beside the best peer</h3><p>Times as fast as the fastest of PyTorch, "
            "torch.compile, comfy-kitchen and quack, timed in the same run.</p>",
            strips(speeds, axis, ticks, (1.0,), 0.98),
        ]
    return "\n".join(parts)


def render(machines):
    """`machines`: (name, bench lines, verdicts) of each."""
    body = "\n".join(section(*machine) for machine in machines if machine[1])
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Pestle: performance'
        f"</title><style>{STYLE}</style></head><body><h1>Performance</h1>"
        "<p>Made by <code>tools/performance.py --html</code> from <code>bench/results</code>, "
        f"which hold the raw samples.</p>\n{body}\n</body></html>\n"
    )
