#!/usr/bin/env python3
"""usage: COMMAND 2>&1 | tools/ninja_progress.py LOG NAME: shows how far ninja is in a build that
says little itself. Everything goes into LOG; a line a half-minute goes to the terminal."""

import re
import sys
import time

STEP = re.compile(r"\[(\d+)/(\d+)\]")
SECONDS_BETWEEN = 30


def progress(lines, log, say, clock=time.monotonic):
    start = last = clock()
    for line in lines:
        log.write(line)
        log.flush()
        step = STEP.search(line)
        if step and (clock() - last >= SECONDS_BETWEEN or step[1] == step[2]):
            last = clock()
            say(f"{step[1]} of {step[2]} steps, {last - start:.0f} s")


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    with open(sys.argv[1], "w") as log:
        progress(sys.stdin, log, lambda text: print(f"{sys.argv[2]}: {text}", flush=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
