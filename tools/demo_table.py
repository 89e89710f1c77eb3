#!/usr/bin/env python3
"""usage: demo_table.py FOLDER FORMAT...: one line for each FOLDER/FORMAT.json that pestle quantize
wrote; fails if a format's report holds no quantised layer."""

import json
import sys
from pathlib import Path

folder, formats = Path(sys.argv[1]), sys.argv[2:]
print(f"{'format':<14}{'layers':>7}{'before':>10}{'after':>10}{'worst error':>13}  layer")
for name in formats:
    report = json.loads((folder / f"{name}.json").read_text())
    layers = [layer for layer in report["layers"] if layer["format"]]
    if not layers:
        sys.exit(f"{name}: no layer was quantised")
    worst = max(layers, key=lambda layer: layer["relative_error"])
    sizes = [f"{report[key] / 2**20:.1f} MiB" for key in ("bytes_before", "bytes_after")]
    print(
        f"{name:<14}{len(layers):>7}{sizes[0]:>10}{sizes[1]:>10}"
        f"{worst['relative_error']:>13.5f}  {worst['name']}"
    )
