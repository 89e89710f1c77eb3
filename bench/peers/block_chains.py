"""Block formats in plain operators: what the chains of PyTorch share."""

import torch
import torch.nn.functional as F

# Midpoints between the values 0, 0.5, 1, 1.5, 2, 3, 4, 6 of E2M1.
E2M1_MIDPOINTS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


def e2m1_codes(values):
    midpoints = torch.tensor(E2M1_MIDPOINTS, device=values.device)
    codes = torch.bucketize(values.abs(), midpoints, out_int32=True).to(torch.uint8)
    return codes | (torch.signbit(values).to(torch.uint8) << 3)


def pack_high_first(codes):
    pairs = codes.view(*codes.shape[:-1], -1, 2)
    return (pairs[..., 0] << 4) | pairs[..., 1]


def pack_low_first(codes):
    pairs = codes.view(*codes.shape[:-1], -1, 2)
    return (pairs[..., 1] << 4) | pairs[..., 0]


def swizzle(scales):
    rows, columns = scales.shape
    padded = F.pad(scales.view(torch.uint8), (0, -columns % 4, 0, -rows % 128))
    tiles = padded.view(padded.shape[0] // 128, 4, 32, padded.shape[1] // 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).contiguous()


def unswizzle(scales):
    rows, columns = scales.shape
    tiles = scales.view(torch.uint8).view(rows // 128, columns // 4, 32, 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).reshape(rows, columns).view(scales.dtype)


def mx_exponents(blocks, largest):
    amax = blocks.abs().amax(-1)
    return torch.ceil(torch.log2(amax / largest)).clamp(-127, 127)


def nvfp4_codes(x, tensor_scale):
    blocks = x.float().view(x.shape[0], -1, 16)
    scale = (blocks.abs().amax(-1) / 6 / tensor_scale).clamp(max=448)
    scale = scale.to(torch.float8_e4m3fn)
    values = blocks / (scale.float() * tensor_scale).unsqueeze(-1)
    return pack_high_first(e2m1_codes(values).view(x.shape)), swizzle(scale), tensor_scale


def mxfp8_codes(x, dtype=torch.float8_e4m3fn):
    blocks = x.float().view(x.shape[0], -1, 32)
    exponent = mx_exponents(blocks, LARGEST[dtype])
    codes = (blocks * torch.exp2(-exponent).unsqueeze(-1)).view(x.shape).to(dtype)
    return codes, swizzle((exponent + 127).to(torch.uint8))
