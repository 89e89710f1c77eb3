"""pestle-lab new: a kernel's file to begin with, whose head and entry are there and whose body is
to be written."""

from __future__ import annotations

from pathlib import Path

import jinja2

from .errors import LabError
from .kernels import LANGUAGES
from .problems import Problem


def write(language: str, problem: Problem, folder: Path, variant: str) -> Path:
    if language not in LANGUAGES:
        raise LabError(f"no language {language!r}: there are {', '.join(LANGUAGES)}")
    path = folder / f"{problem.name}_{variant}{LANGUAGES[language]}"
    if path.exists():
        raise LabError(f"{path} exists")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    op = problem.contract
    text = environment.get_template(f"new.{language}.jinja").render(
        name=f"{problem.name}/{variant}",
        problem=problem,
        outputs=[a for a in op.of_role("output") if not a.optional or not a.present_if],
        inputs=[a for a in op.of_role("input") if not a.optional],
        optional=[a for a in op.of_role("input") if a.optional],
        attributes=op.of_role("attribute"),
        symbols=_symbols(problem),
    )
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def _symbols(problem: Problem) -> list[str]:
    """Those that stand alone in a shape: what a compiled entry gets as 64-bit integers. A shape of
    any rank (`*M`) has none, so its elements are counted."""
    import re

    found: dict[str, None] = {}
    for arg in problem.contract.of_role("input"):
        if arg.optional:
            continue
        for shape in arg.shapes.values():
            for star, word in re.findall(r"(\*?)([A-Z]\w*)", shape):
                found.setdefault(f"{arg.name}.numel" if star else word)
    return list(found)
