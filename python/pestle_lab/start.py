"""pestle-lab, from its first line: PyTorch takes seconds to import, in this process and in the one
that the kernel runs in, so both begin at once."""

from __future__ import annotations

import sys

from .engine import child

# Commands that run a kernel in a process of its own, with nothing before it.
_RUN_A_KERNEL = ("check", "bench", "watch")


def main() -> None:
    if sys.argv[1:2] and sys.argv[1] in _RUN_A_KERNEL and "--help" not in sys.argv:
        child.prepare()
    from .app import main

    main()
