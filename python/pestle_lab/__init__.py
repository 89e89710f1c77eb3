"""The workbench: write a kernel, prove it, measure it (docs/site/lab.md). By `pestle-lab`."""

from .problems import Bound, Problem, attribute, choice, input, output

__all__ = ["Bound", "Problem", "attribute", "choice", "input", "output"]
