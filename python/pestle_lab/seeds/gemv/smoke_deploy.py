#!/usr/bin/env python3
"""kernel_utils.smoke_test on another machine: this folder goes there (what changed), the test runs
detached and alone on its GPU, its output is shown as it comes, and what it wrote comes back into
results_remote/, profiles_remote/ and ncu_reports_remote/, whatever it ended with. The exit code is
the test's; 10 if the machine can't be reached. The machine needs Python with pestle[lab]."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pestle_lab.errors import LabError
from pestle_lab.remote import jobs, target

HOME = Path(__file__).resolve().parent
FOLDERS = ("results", "profiles", "ncu_reports")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--ssh", required=True, metavar="USER@HOST:PORT")
    made.add_argument("--ssh-key", type=Path, help="[default: what ssh itself finds]")
    made.add_argument("--ssh-option", action="append", default=[], help="as of ssh -o")
    made.add_argument("--gpu", default="0", help="its number there, or none")
    made.add_argument("--python", default="python3", help="there, with pestle[lab]")
    made.add_argument("--attach", metavar="JOB", help="one whose client was lost")
    made.add_argument("--backends", nargs="+", default=[], metavar="NAME")
    made.add_argument("--reference", metavar="NAME")
    made.add_argument("--new", nargs="+", default=[], metavar="NAME")
    made.add_argument("--suite")
    for flag in ("--save", "--profile", "--ncu", "--no-timing"):
        made.add_argument(flag, action="store_true")
    return made


def remote_arguments(args: argparse.Namespace) -> list[str]:
    """Of smoke_test: every one of its own, the reference's name included."""
    made = list(args.backends)
    for name in ("reference", "suite"):
        if value := getattr(args, name):
            made += [f"--{name}", value]
    if args.new:
        made += ["--new", *args.new]
    return made + [f"--{n.replace('_', '-')}" for n in ("save", "profile", "ncu", "no_timing")
                   if getattr(args, n)]  # fmt: skip


def name_here(name: str) -> str:
    first, slash, rest = name.partition("/")
    return f"{first}_remote/{rest}" if slash and first in FOLDERS else name


def main() -> int:
    args = parser().parse_args()
    gpu = None if args.gpu == "none" else int(args.gpu)
    key = args.ssh_key.expanduser() if args.ssh_key else None
    options = jobs.Options(python=args.python, key=key, ssh=args.ssh_option, gpu=gpu)
    try:
        client = jobs.Client(
            target.parse(f"ssh://{args.ssh}"), HOME, options,
            lambda text: print(f"[smoke_deploy] {text}", file=sys.stderr, flush=True),
        )  # fmt: skip
        client.name_here = name_here
        if args.attach:
            return client.attach(args.attach)
        return client.run([], ["-m", "kernel_utils.smoke_test", *remote_arguments(args)])
    except LabError as error:
        print(f"smoke_deploy: {error}", file=sys.stderr)
        return error.code


if __name__ == "__main__":
    sys.exit(main())
