"""pestle-lab new: a kernel's file to begin with, whose head and entry are there and whose body is
to be written."""

from __future__ import annotations

from pathlib import Path

import jinja2

from .engine import cases
from .errors import LabError
from .kernels import LANGUAGES
from .problems import Problem


def write(language: str, problem: Problem, folder: Path, variant: str) -> Path:
    if language not in LANGUAGES:
        raise LabError(f"no language {language!r}: there are {', '.join(LANGUAGES)}")
    path = folder / f"{problem.name}_{variant}{LANGUAGES[language]}"
    if path.exists():
        raise LabError(f"{path} exists: --variant names another kernel")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    op = problem.contract
    conditional = [a for a in op.of_role("output") if a.optional and a.present_if]
    outputs = [a for a in op.of_role("output") if a not in conditional]
    written = ", ".join(a.name for a in [*outputs, *conditional])
    text = environment.get_template(f"new.{language}.jinja").render(
        name=f"{problem.name}/{variant}",
        problem=problem,
        outputs=outputs,
        written=f"{written} (those that are not None)" if conditional else written,
        usual=_usual_outputs(problem),
        inputs=[a for a in op.of_role("input") if not a.optional],
        optional=[a for a in op.of_role("input") if a.optional] + conditional,
        attributes=op.of_role("attribute"),
        symbols=_symbols(problem),
    )
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def _usual_outputs(problem: Problem) -> list:
    """What a compiled entry gets, which has no optional arguments: those of the first case."""
    first = next((text for texts in problem.suites.values() for text in texts), None)
    if first is None:
        return [a for a in problem.contract.of_role("output") if not a.optional]
    names = [plan.name for plan in cases.make(problem, first).of_role("output")]
    return [problem.contract.by_name[name] for name in names]


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
