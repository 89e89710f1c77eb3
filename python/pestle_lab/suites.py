"""Suites of a user's own, in a file of YAML or JSON: `--suite cases.yaml` or `cases.yaml:NAME`.

- S=4x1000 x=bf16 memory=strided        suites:
- {S: 4x1000, x: bf16, scale: 0.5}        short: [S=4x64]
"""

from __future__ import annotations

from pathlib import Path

import yaml

from .errors import LabError

_ENDINGS = (".yaml", ".yml", ".json")


def is_file(suite: str) -> bool:
    return suite.partition(":")[0].endswith(_ENDINGS)


def read(suite: str) -> list[str]:
    """The cases of FILE or FILE:NAME, as lines."""
    file, _, name = suite.partition(":")
    try:
        found = yaml.safe_load(Path(file).read_text())
    except (OSError, yaml.YAMLError) as error:
        raise LabError(f"--suite {suite}: {error}") from None
    if isinstance(found, dict):
        found = _named(found.get("suites", found), file, name)
    elif name:
        raise LabError(f"--suite {suite}: {file} is one list of cases and has no names")
    if not isinstance(found, list) or not found:
        raise LabError(f"--suite {suite}: expected a list of cases, or lists by name")
    return [_line(case, suite) for case in found]


def _named(suites: object, file: str, name: str) -> object:
    if not isinstance(suites, dict) or name not in suites:
        known = ", ".join(map(str, suites)) if isinstance(suites, dict) else "none"
        raise LabError(f"--suite {file}:{name}: no such suite in {file}; there are {known}")
    return suites[name]


def _line(case: object, suite: str) -> str:
    if isinstance(case, str):
        return case
    if isinstance(case, dict):
        return " ".join(f"{key}={_word(value)}" for key, value in case.items())
    raise LabError(f"--suite {suite}: {case!r} is no case; expected NAME=VALUE or a mapping")


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
