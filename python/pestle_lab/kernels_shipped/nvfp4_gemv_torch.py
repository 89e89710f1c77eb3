# kernel: nvfp4_gemv/torch
# language = "python"
# entry = "run"
# notes = "Decodes to f32 and multiplies: the slow and plain way, the ladder's first rung."
import torch


def _e2m1(codes: torch.Tensor) -> torch.Tensor:
    """f32 of codes: twice a magnitude is a whole number. No table: to bring one from the host is
    nothing that a graph captures."""
    exponent, half = codes >> 1 & 3, codes & 1
    twice = (half + 2 * exponent.clamp(max=1)) << (exponent - 1).clamp(min=0)
    return twice * (0.5 - (codes >> 3))


def _decode(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """[rows, K/2, L] and [rows, K/16, L] as f32 [L, rows, K]."""
    codes = codes.permute(2, 0, 1).to(torch.int32)
    values = torch.stack((_e2m1(codes & 15), _e2m1(codes >> 4)), -1).flatten(-2)
    return values * scales.permute(2, 0, 1).float().repeat_interleave(16, -1)


def run(c, a, b, sfa, sfb, sfa_permuted, sfb_permuted):
    matrices, vectors = _decode(a, sfa), _decode(b[:1], sfb[:1])
    c.copy_((matrices.double() @ vectors.double().mT).permute(1, 2, 0))
