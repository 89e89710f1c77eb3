"""bench/attention_peers.py's lines: what tools/performance.py says of them.

A line is a row and a direction, with each candidate's rate. Of a row and direction the last line
counts.
"""

PEERS = ("flash_attention_4", "flash_attention_4, deterministic", "cudnn", "flash", "efficient")
NAMES = ("FlashAttention-4", "deterministic", "cuDNN", "PyTorch's flash", "efficient")


def is_attention(line):
    return "direction" in line


def ratio(line):
    """Of our rate to the best peer's of the same kind, or None where no peer takes the row."""
    best = max((line["tflops"].get(peer, 0) for peer in PEERS), default=0)
    return line["tflops"]["pestle"] / best if best and "pestle" in line["tflops"] else None


def table(lines):
    found = {(line["row"], line["direction"]): line for line in lines}
    page = [
        f"| row | B, heads, S, D | | Pestle | deterministic | {' | '.join(NAMES)} | of the best |",
        f"|---|---|---|{'--:|' * (len(NAMES) + 3)}",
    ]
    for (row, direction), line in found.items():
        b, hq, hk, s, d = line["shape"]
        heads = str(hq) if hq == hk else f"{hq}:{hk}"
        rates = [line["tflops"].get(n) for n in ("pestle", "pestle, deterministic", *PEERS)]
        cells = [f"{rate:.0f}" if rate else "" for rate in rates]
        share = ratio(line)
        cells.append(f"{share:.2f}" if share else "")
        page.append(f"| {row} | {b}, {heads}, {s}, {d} | {direction} | {' | '.join(cells)} |")
    return page
