"""Data, buffers, the error rule, timing, and the process that a kernel runs in."""
