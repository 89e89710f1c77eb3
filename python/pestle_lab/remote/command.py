"""pestle-lab run: any command of the lab on another machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import USAGE, LabError
from ..options import console, out
from . import installing, jobs, modal, target

COMMANDS = {"list", "env", "sol", "build", "check", "bench", "compare", "report", "history", "new",
            "seed", "sanitize", "profile", "export"}  # fmt: skip
On = Annotated[
    str, typer.Option("--on", metavar="TARGET", help=f"{target.FORMS}.", show_default=False)
]


def _environment(given: list[str] | None) -> dict[str, str]:
    made = {}
    for text in given or []:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise LabError(f"--env {text}: expected NAME=VALUE")
        made[name] = value
    return made


def run(
    on: On,
    words: Annotated[list[str] | None, typer.Argument(metavar="COMMAND...")] = None,
    gpu: Annotated[str, typer.Option(help="Which one there, or none: the lock.")] = "0",
    python: Annotated[str, typer.Option(help="There, with pestle[lab].")] = "python3",
    key: Annotated[Path | None, typer.Option("--ssh-key", help="A private key's file.")] = None,
    ssh: Annotated[
        list[str] | None, typer.Option("--ssh-option", help="As of ssh -o; may be repeated.")
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", help="NAME=VALUE there; may be repeated.")
    ] = None,
    sbatch: Annotated[
        list[str] | None,
        typer.Option("--sbatch", help="Of SLURM: --sbatch=--time=10; may be repeated. [--gpus=1]"),
    ] = None,
    wheel: Annotated[
        Path | None,
        typer.Option(help="Of pestle, for --install and Modal. [default: what is installed here]"),
    ] = None,
    install: Annotated[
        bool, typer.Option("--install", help="Install this Pestle there first, if it has not.")
    ] = False,
    patience: Annotated[
        float, typer.Option(min=0, help="Seconds that a lost connection is tried again.")
    ] = 60.0,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the job's folder there.")] = False,
    attach: Annotated[str | None, typer.Option(help="A job that was started before.")] = None,
    cancel: Annotated[str | None, typer.Option(help="A job to be ended.")] = None,
    jobs_: Annotated[bool, typer.Option("--jobs", help="List the jobs there.")] = False,
):
    """Any command on another machine: pestle-lab run --on ssh://me@host:22 check mine.py"""
    where, words = target.parse(on), list(words or [])
    asked = [attach is not None, cancel is not None, jobs_, bool(words)]
    if sum(asked) != 1:
        raise LabError("run needs one of: a command of the lab, --attach, --cancel, --jobs", USAGE)
    if words and words[0] not in COMMANDS:
        raise LabError(f"run {words[0]}: expected one of {', '.join(sorted(COMMANDS))}")
    options = jobs.Options(
        python=python, key=key, ssh=list(ssh or []), gpu=target.parse_gpu(gpu),
        env=_environment(env), patience=patience, keep=keep, sbatch=list(sbatch or []),
        wheel=wheel,
    )  # fmt: skip

    def say(text: str) -> None:
        console.print(f"[run] {text}", markup=False, highlight=False)

    if install and (words or attach):
        options = installing.installed(where, options, say)
    kind = modal.Client if where.kind == "modal" else jobs.Client
    client = kind(where, Path.cwd(), options, say)
    if jobs_:
        for job in client.jobs():
            ended = "" if job["code"] is None else f" with {job['code']}"
            out.print(f"{job['id']} {job['state']}{ended}: {' '.join(job['command'])}",
                      markup=False, highlight=False)  # fmt: skip
    elif cancel:
        client.cancel(cancel)
    else:
        raise typer.Exit(client.attach(attach) if attach else client.run(words))
