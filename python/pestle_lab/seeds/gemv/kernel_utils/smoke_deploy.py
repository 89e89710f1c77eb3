"""kernel_utils.smoke_test on another machine: this folder goes there (what changed), the test runs
detached and alone on its GPU, its output is shown as it comes, and what it wrote comes back into
results_remote/, profiles_remote/ and ncu_reports_remote/, whatever it ended with. The exit code is
the test's; 10 if the machine can't be reached. The machine needs Python with pestle[lab], which
--install brings to a Python that has none."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pestle_lab.errors import LabError
from pestle_lab.remote import installing, jobs, target

HOME = Path(__file__).resolve().parent.parent
FOLDERS = ("results", "profiles", "ncu_reports")
ENDED_HERE = 130  # by Ctrl-C: the job goes on


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="smoke_deploy.py", description=__doc__)
    made.add_argument("--ssh", required=True, metavar="USER@HOST:PORT")
    made.add_argument("--ssh-key", type=Path, help="[default: what ssh itself finds]")
    made.add_argument("--ssh-option", action="append", default=[], metavar="NAME=VALUE",
                      help="as of ssh -o")  # fmt: skip
    made.add_argument("--gpu", default="0", help="its number there, or none [default: 0]")
    made.add_argument("--python", default="python3",
                      help="there, with pestle[lab] [default: python3]")  # fmt: skip
    made.add_argument("--install", action="store_true",
                      help="install this machine's Pestle there first, if it has not")  # fmt: skip
    made.add_argument("--attach", metavar="JOB", help="one whose client was lost")
    made.add_argument("--cancel", metavar="JOB", help="end one")
    made.add_argument("--backends", nargs="+", default=[], metavar="NAME",
                      help="all, if none is named")  # fmt: skip
    made.add_argument("--reference", metavar="NAME", help="what speedups are over")
    made.add_argument("--new", nargs="+", default=[], metavar="NAME",
                      help="these, and the reference")  # fmt: skip
    made.add_argument("--suite", help="smoke, correctness, performance or all [default: smoke]")
    made.add_argument("--save", action="store_true", help="bring the results")
    made.add_argument("--profile", action="store_true", help="bring PyTorch's traces")
    made.add_argument("--ncu", action="store_true", help="bring Nsight Compute's reports")
    made.add_argument("--no-timing", action="store_true", help="check, and time nothing")
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


def say(text: str) -> None:
    print(f"[smoke_deploy] {text}", file=sys.stderr, flush=True)


def client_of(args: argparse.Namespace) -> jobs.Client:
    key = args.ssh_key.expanduser() if args.ssh_key else None
    options = jobs.Options(
        python=args.python, key=key, ssh=args.ssh_option, gpu=target.parse_gpu(args.gpu)
    )
    where = target.parse(f"ssh://{args.ssh.removeprefix('ssh://')}")
    if args.install and not args.cancel:
        options = installing.installed(where, options, say)
    made = jobs.Client(where, HOME, options, say)
    made.name_here = name_here
    made.program = f"smoke_deploy.py --ssh {args.ssh}"
    return made


def run(args: argparse.Namespace) -> int:
    client = client_of(args)
    if args.cancel:
        client.cancel(args.cancel)
        return 0
    if args.attach:
        return client.attach(args.attach)
    return client.run([], ["-m", "kernel_utils.smoke_test", *remote_arguments(args)])


def main(arguments: list[str] | None = None) -> int:
    args = parser().parse_args(arguments)
    try:
        return run(args)
    except LabError as error:
        print(f"smoke_deploy: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        return ENDED_HERE


if __name__ == "__main__":
    sys.exit(main())
