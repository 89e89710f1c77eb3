"""What submissions to gpu-mode import: `from task import input_t, output_t`."""

from kernel_utils.task import TestSpec, input_t, output_t

__all__ = ["TestSpec", "input_t", "output_t"]
