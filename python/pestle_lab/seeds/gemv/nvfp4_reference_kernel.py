"""The reference: decodes to f32 and multiplies, on any machine."""

import torch
from kernel_utils.backends import BACKENDS
from kernel_utils.task import input_t, output_t

_SIZES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
_VALUES = [*_SIZES, *(-size for size in _SIZES)]


def decode(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Two codes a byte, the even k low, and a scale for 16, as f32 [l, rows, k]."""
    table = torch.tensor(_VALUES, device=codes.device)
    codes = codes.view(torch.uint8).permute(2, 0, 1).int()
    values = torch.stack((table[codes & 15], table[codes >> 4]), -1).flatten(-2)
    return values * scales.permute(2, 0, 1).float().repeat_interleave(16, -1)


def ref_kernel(data: input_t) -> output_t:
    a, b, scale_a, scale_b, _, _, c = data
    product = decode(a, scale_a).double() @ decode(b[:1], scale_b[:1]).double().mT
    return c.copy_(product.permute(1, 2, 0))


BACKENDS.register(
    name="reference",
    kernel_fn=ref_kernel,
    description="Decodes to f32, multiplies in f64",
    language="pytorch",
)
