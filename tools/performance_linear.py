"""bench/linear_peers.py's lines: what tools/performance.py says of them.

A line is a shape and a number of rows of x, with each candidate's microseconds. Of a shape, rows
and `what` the last line counts.
"""

import math

# ours, the bar, whose fastest it is beside
DISPATCHED = (
    ("pestle bf16", 0.97, ("torch bf16",)),
    ("pestle fp8 x fp8", 0.95, ("torch fp8",)),
    ("pestle int8, x quantised", 1.0, ("torch bf16", "pestle bf16")),
    ("pestle fp8, x quantised", 1.0, ("torch bf16", "pestle bf16")),
)


def is_linear(line):
    return "linear" in line


def newest(lines, what):
    return {tuple(line["linear"]): line for line in lines if line["what"] == what}


def speeds(found, ours, peers):
    """(how many times as fast as the fastest peer, shape), the slowest first."""
    ratios = []
    for shape, line in found.items():
        others = [line["us"][peer] for peer in peers if peer in line["us"]]
        if others and ours in line["us"]:
            ratios.append((min(others) / line["us"][ours], shape))
    return sorted(ratios)


def geomean(ratios):
    return math.exp(sum(math.log(r) for r, _ in ratios) / len(ratios))


def place(shape):
    return " x ".join(map(str, shape))


def dispatched_table(found):
    page = ["| | beside | shapes | bar | below it | geomean | least | where |",
            "|---|---|--:|--:|--:|--:|--:|---|"]  # fmt: skip
    for ours, bar, peers in DISPATCHED:
        ratios = speeds(found, ours, peers)
        if not ratios:
            continue
        below = sum(ratio < bar for ratio, _ in ratios)
        page.append(
            f"| {ours} | {', '.join(peers)} | {len(ratios)} | {bar:g} | {below} | "
            f"{geomean(ratios):.2f} | {ratios[0][0]:.2f} | {place(ratios[0][1])} |"
        )
    return page


def weight_only_table(found):
    """Microseconds by rows of x, for each shape and kind of weights; humming's behind ours."""
    rows = sorted({m for m, _, _ in found})
    page = [f"| N x K | weights | {' | '.join(f'M = {m}' for m in rows)} |",
            f"|---|---|{'--:|' * len(rows)}"]  # fmt: skip
    for n, k in dict.fromkeys((n, k) for _, n, k in found):
        own = {m: line for (m, *shape), line in found.items() if shape == [n, k]}
        names = dict.fromkeys(name for line in own.values() for name in line["us"])
        for name in names:
            if name.startswith("humming"):
                continue
            peer = name.replace("pestle", "humming")
            cells = []
            for m in rows:
                us = own[m]["us"] if m in own else {}
                cell = f"{us[name]:.3g}" if name in us else ""
                cells.append(cell + (f" ({us[peer]:.3g})" if peer in us and peer != name else ""))
            page.append(f"| {n} x {k} | {name.removeprefix('pestle ')} | {' | '.join(cells)} |")
    return page


def tables(lines):
    """What the page says; bars of the sweep first."""
    page = []
    if found := newest(lines, "dispatched"):
        page += ["M x N x K, how many times as fast as the fastest beside it:", ""]
        page += [*dispatched_table(found), ""]
    if found := newest(lines, "weight_only"):
        page += ["Quantised weights, x of bf16, microseconds (humming's in brackets):", ""]
        page += [*weight_only_table(found), ""]
    return page
