"""An exported kernel: `run` gives new outputs, `run_out` writes into given ones, `takes` says why
not. Everything it needs beside PyTorch (and what the kernel imports) is in this folder."""

from ._ops import NAMESPACE, run, run_out, takes

__all__ = ["NAMESPACE", "run", "run_out", "takes"]
