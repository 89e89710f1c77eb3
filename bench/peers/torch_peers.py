"""The same work as Pestle's ops, as PyTorch users write it: what the bars compare with.

ADAPTERS: op -> function(case) -> {peer: (callable, bytes moved)}; a missing bytes (None) means the
case's own. The eager chains are the fastest that we found in plain PyTorch operators.
"""

import torch
import torch.nn.functional as F

DEVICE = "cpu"  # run_peers.py --device sets it

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
FP8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
# Midpoints between the values 0, 0.5, 1, 1.5, 2, 3, 4, 6 of E2M1.
E2M1_MIDPOINTS = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])


def random_tensor(case, name):
    tensor = case["tensors"][name]
    values = torch.empty(tensor["shape"], dtype=DTYPES[tensor["dtype"]], device=DEVICE)
    # One megabyte of normal values, repeated: filling gigabytes takes longer than measuring.
    flat = values.view(-1)
    block = torch.randn(min(flat.numel(), 1 << 20), device=DEVICE).to(values.dtype)
    for start in range(0, flat.numel(), block.numel()):
        part = flat[start : start + block.numel()]
        part.copy_(block[: part.numel()])
    return values


def eager_and_compiled(function, *arguments):
    compiled = torch.compile(function, dynamic=False)
    return {
        "torch_eager": (lambda: function(*arguments), None),
        "torch_compile": (lambda: compiled(*arguments), None),
    }


def quantize_fp8(case):
    dtype = FP8[case["tensors"]["q"]["dtype"]]
    largest = torch.finfo(dtype).max
    granularity = case["attributes"]["granularity"]
    given = "scale" in case["tensors"]

    def rows(x):
        scale = x.abs().amax(-1, keepdim=True).float() / largest
        return (x.float() / scale).clamp(-largest, largest).to(dtype), scale

    def whole(x):
        scale = x.abs().amax().float() / largest
        return (x.float() / scale).clamp(-largest, largest).to(dtype), scale

    def with_scale(x, scale):
        return (x.float() / scale).clamp(-largest, largest).to(dtype)

    x = random_tensor(case, "x")
    if granularity not in ("tensor", "row"):
        return {}
    if given:
        return eager_and_compiled(with_scale, x, torch.tensor(0.01, device=DEVICE))
    return eager_and_compiled(rows if granularity == "row" else whole, x)


def quantize_int8(case):
    def rows(x):
        scale = x.abs().amax(-1, keepdim=True).float() / 127
        return (x.float() / scale).round().clamp(-127, 127).to(torch.int8), scale

    def whole(x):
        scale = x.abs().amax().float() / 127
        return (x.float() / scale).round().clamp(-127, 127).to(torch.int8), scale

    attributes = case["attributes"]
    if attributes.get("hadamard", 0) or attributes["granularity"] not in ("row", "tensor"):
        return {}
    chain = rows if attributes["granularity"] == "row" else whole
    return eager_and_compiled(chain, random_tensor(case, "x"))


def e2m1_codes(values):
    midpoints = E2M1_MIDPOINTS.to(DEVICE)
    codes = torch.bucketize(values.abs(), midpoints, out_int32=True).to(torch.uint8)
    return codes | (torch.signbit(values).to(torch.uint8) << 3)


def pack_high_first(codes):
    pairs = codes.view(*codes.shape[:-1], -1, 2)
    return (pairs[..., 0] << 4) | pairs[..., 1]


def swizzle(scales):
    rows, columns = scales.shape
    padded = F.pad(scales.view(torch.uint8), (0, -columns % 4, 0, -rows % 128))
    tiles = padded.view(padded.shape[0] // 128, 4, 32, padded.shape[1] // 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).contiguous()


def quantize_nvfp4(case):
    def chain(x):
        tensor_scale = x.abs().amax().float() / (448 * 6)
        blocks = x.float().view(x.shape[0], -1, 16)
        scale = (blocks.abs().amax(-1) / 6 / tensor_scale).clamp(max=448)
        scale = scale.to(torch.float8_e4m3fn)
        values = blocks / (scale.float() * tensor_scale).unsqueeze(-1)
        packed = pack_high_first(e2m1_codes(values).view(x.shape))
        return packed, swizzle(scale), tensor_scale

    x = random_tensor(case, "x")
    return {"torch_eager": (lambda: chain(x), None)}


def mx_exponents(blocks, largest):
    amax = blocks.abs().amax(-1)
    return torch.ceil(torch.log2(amax / largest)).clamp(-127, 127)


def quantize_mxfp8(case):
    dtype = FP8[case["tensors"]["q"]["dtype"]]

    def chain(x):
        blocks = x.float().view(x.shape[0], -1, 32)
        exponent = mx_exponents(blocks, torch.finfo(dtype).max)
        codes = (blocks * torch.exp2(-exponent).unsqueeze(-1)).to(dtype)
        return codes, swizzle((exponent + 127).to(torch.uint8))

    x = random_tensor(case, "x")
    return {"torch_eager": (lambda: chain(x), None)}


def quantize_mxfp4(case):
    def chain(x):
        blocks = x.float().view(x.shape[0], -1, 32)
        exponent = mx_exponents(blocks, 6.0)
        values = blocks * torch.exp2(-exponent).unsqueeze(-1)
        return pack_high_first(e2m1_codes(values).view(x.shape)), (exponent + 127).to(torch.uint8)

    x = random_tensor(case, "x")
    return {"torch_eager": (lambda: chain(x), None)}


def quantize_int4(case):
    group = case["attributes"]["group_size"]
    if case["attributes"].get("hadamard", 0):
        return {}
    x = random_tensor(case, "x")

    def symmetric(x):
        groups = x.float().view(x.shape[0], -1, group)
        scale = groups.abs().amax(-1, keepdim=True) / 7
        codes = (groups / scale).round().clamp(-8, 7).to(torch.int8).view(torch.uint8) & 15
        return pack_high_first(codes.view(x.shape)), scale

    def asymmetric(x):
        groups = x.float().view(x.shape[0], -1, group)
        low, high = groups.aminmax(dim=-1, keepdim=True)
        scale = (high - low) / 15
        zero = (-low / scale).round().clamp(0, 15)
        codes = ((groups / scale).round() + zero).clamp(0, 15).to(torch.uint8)
        return pack_high_first(codes.view(x.shape)), scale, zero

    chain = asymmetric if case["attributes"].get("mode") == "asymmetric" else symmetric
    return {"torch_eager": (lambda: chain(x), None)}


def linear(case):
    """bf16 linear of the same M, N, K; weights rotate over more than a gigabyte."""
    shape = case["tensors"]["x"]["shape"]
    n = case["tensors"]["out"]["shape"][-1]
    rows = shape[0] if len(shape) > 1 else 1
    bytes_moved = 2 * (n * shape[-1] + rows * (n + shape[-1]))
    x = torch.randn(shape, device=DEVICE).bfloat16()
    one = torch.randn(n, shape[-1], device=DEVICE).bfloat16()
    weights = [one.clone() for _ in range(max(2, -(-(1 << 30) // (2 * one.numel()))))]
    turn = iter(range(1 << 62))

    def call():
        return F.linear(x, weights[next(turn) % len(weights)])

    return {"torch_bf16_linear": (call, bytes_moved)}


ADAPTERS = {
    "quantize_fp8": quantize_fp8,
    "quantize_int8": quantize_int8,
    "quantize_nvfp4": quantize_nvfp4,
    "quantize_mxfp8": quantize_mxfp8,
    "quantize_mxfp4": quantize_mxfp4,
    "quantize_int4": quantize_int4,
}


def adapter_of(op):
    return linear if op.startswith("linear_") else ADAPTERS.get(op)


COPY_ELEMENTS = 1 << 28  # bf16: half a GiB read, half a GiB written


def copy_of_bf16():
    source = torch.full((COPY_ELEMENTS,), 1.5, dtype=torch.bfloat16, device=DEVICE)
    target = torch.zeros_like(source)
    return lambda: target.copy_(source), 4 * COPY_ELEMENTS
