# kernel: nvfp4_gemv/torch
# language = "python"
# entry = "run"
# notes = "Decodes to f32 and multiplies: the slow and plain way, the ladder's first rung."
import torch

_VALUES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
_VALUES = _VALUES + [-v for v in _VALUES]


def _decode(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """[rows, K/2, L] and [rows, K/16, L] as f32 [L, rows, K]."""
    table = torch.tensor(_VALUES, device=codes.device)
    codes = codes.permute(2, 0, 1).to(torch.int32)
    values = torch.stack((table[codes & 15], table[codes >> 4]), -1).flatten(-2)
    return values * scales.permute(2, 0, 1).float().repeat_interleave(16, -1)


def run(c, a, b, sfa, sfb, sfa_permuted, sfb_permuted):
    matrices, vectors = _decode(a, sfa), _decode(b[:1], sfb[:1])
    c.copy_((matrices.double() @ vectors.double().mT).permute(1, 2, 0))
