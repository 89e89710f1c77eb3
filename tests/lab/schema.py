"""Whether a report is as its published schema says."""

import json
from importlib.resources import files

import jsonschema


def published(report: dict) -> None:
    text = files("pestle_lab").joinpath("report.schema.json").read_text()
    jsonschema.Draft202012Validator(json.loads(text)).validate(report)
