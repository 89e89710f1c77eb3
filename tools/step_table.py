#!/usr/bin/env python3
"""The table that README.md leads with: a step of a diffusion transformer, timed on a GPU.

usage: tools/step_table.py add FILE [COMMIT]  what examples/dit_step.py --json wrote there becomes
                                              the last line of bench/results/dit_step.jsonl,
                                              measured at COMMIT (HEAD), and README.md's table
       tools/step_table.py                    README.md's table, of each row from the last line
                                              that has it
       tools/step_table.py check              fails where README.md says something else
"""

import datetime
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results/dit_step.jsonl"
README = ROOT / "README.md"
BEGIN, END = "<!-- step: made by tools/step_table.py -->\n", "<!-- end of step -->\n"
EXACT, BASE = "bf16, eager", "bf16, torch.compile"
NAMES = {"flux": "FLUX.1, 1024 x 1024", "wan": "Wan 2.1 14B, 81 frames of 480 x 832"}


def last_line() -> dict | None:
    """The last line, with the rows that only lines before it have. Each row's base_ms is what
    compiled bf16 took in the same run; bf16's own rows are of the run that has most of the rows."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    if not lines:
        return None
    found, most = {}, {}
    for line in map(json.loads, lines):
        for shape in NAMES:
            rows = {r["variant"]: r for r in line["rows"] if r["shape"] == shape}
            is_fullest = len(rows) >= most.get(shape, 0)
            most[shape] = max(len(rows), most.get(shape, 0))
            base = rows[BASE]["step_ms"] if BASE in rows else None
            for variant, row in rows.items():
                if is_fullest or variant not in (EXACT, BASE):
                    found[shape, variant] = row | {"base_ms": base}
    rows = [row for shape in NAMES for row in found.values() if row["shape"] == shape]
    return json.loads(lines[-1]) | {"rows": rows}


def cells(row: dict) -> list[str]:
    """Milliseconds, speed by compiled bf16's, memory, error; empty where nothing is to say."""
    faster = f"{row['base_ms'] / row['step_ms']:.2f}" if row["base_ms"] else ""
    memory = [f"{row[key] / 1024:.2f}" for key in ("weights_mb", "peak_mb")]
    error = "" if row["variant"] == EXACT else f"{row['error']:.3f}"
    return [f"{row['step_ms']:,.0f}", faster, *memory, error]


def table(rows: list[dict], shape: str) -> str:
    found = {row["variant"]: row for row in rows if row["shape"] == shape}
    lines = [
        [NAMES[shape], "ms a step", "x compiled bf16", "linears GiB", "peak GiB", "error"],
        ["---", *["--:"] * 5],
    ]
    for variant, row in found.items():
        name = f"**{variant}**" if variant.startswith("pestle") else variant
        lines.append([name, *cells(row)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def section(line: dict | None) -> str:
    """What stands between the marks: nothing until something was measured."""
    if line is None:
        return ""
    versions = ", ".join(f"{k} {v}" for k, v in line["versions"].items() if k != "pestle")
    said = (
        f"A step of two transformers' published sizes on one {line['device']}, random weights, the "
        "same attention\n"
        f"everywhere, reckoned from {line['blocks']} blocks of each kind, whose memory and error "
        "against bf16 these are\n"
        f"([examples/dit_step.py](examples/dit_step.py), {line['date']}; {versions}):\n\n"
    )
    shapes = dict.fromkeys(row["shape"] for row in line["rows"])
    return said + "".join(f"{table(line['rows'], shape)}\n\n" for shape in shapes)


def parts() -> tuple[str, str, str]:
    """README.md before, between and after the marks."""
    before, _, rest = README.read_text().partition(BEGIN)
    between, mark, after = rest.partition(END)
    if not mark:
        sys.exit(f"step_table: README.md lacks the lines {BEGIN.strip()} and {END.strip()}")
    return before, between, after


def write() -> None:
    before, _, after = parts()
    README.write_text(before + BEGIN + section(last_line()) + END + after)


def add(path: str, commit: str) -> None:
    made = json.loads(Path(path).read_text())
    unknown = {row["shape"] for row in made["rows"]} - NAMES.keys()
    if unknown or not made["rows"] or made["device"] == "CPU":
        sys.exit(f"step_table: {path} has to hold rows of flux or wan from a GPU; it has "
                 f"{made['device']}, {sorted(unknown)}")  # fmt: skip
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    line = {"date": date, "machine": {"commit": commit}, **made}
    with RESULTS.open("a") as file:
        file.write(json.dumps(line) + "\n")
    write()


def main() -> None:
    match sys.argv[1:]:
        case ["add", path, *commit]:
            git = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
            head = subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()
            add(path, *(commit or [head]))
        case []:
            write()
        case ["check"]:
            if parts()[1] != section(last_line()):
                sys.exit(
                    "step_table: README.md's table is not the last lines': run tools/step_table.py"
                )
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
