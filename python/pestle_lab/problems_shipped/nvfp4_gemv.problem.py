"""Batched GEMV in NVFP4, as gpu-mode's problem poses it, with inputs of the full range:
negative codes, both nibbles, and every finite scale. Runs on any machine."""

import os
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
from pestle_lab import Bound, Problem, input, output
from pestle_lab.errors import WrongDtype, WrongShape

ORDER = (2, 0, 1)  # a batch after the other, its rows dense
TILES = (5, 2, 4, 0, 1, 3)
# Both codes of a byte, the low nibble's first, times 2: whole numbers, as eight bytes to look up.
_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12], np.float32)
_CODES = np.concatenate([_E2M1, -_E2M1])
_PAIRS = np.stack([np.tile(_CODES, 16), np.repeat(_CODES, 16)], axis=1).view(np.uint64)[:, 0]


def twice(codes: np.ndarray) -> np.ndarray:
    """[rows, K/2] bytes as [rows, K/16, 16] numbers, twice the codes' values."""
    return _PAIRS[codes].view(np.float32).reshape(len(codes), -1, 16)


def permuted(scales: np.ndarray) -> np.ndarray:
    """[rows, K/16, L] into cuBLAS's tiles of 128 rows x 4 scales: [32, 4, rows/128, 4, K/64, L].
    Scale (i, j) lies at [i % 32, i % 128 // 32, i // 128, j % 4, j // 4]."""
    rows, blocks, batch = scales.shape
    tiles, steps = -(-rows // 128), -(-blocks // 4)
    whole = np.zeros((tiles * 128, steps * 4, batch), np.uint8)
    whole[:rows, :blocks] = scales.view(np.uint8)
    parts = whole.reshape(tiles, 4, 32, steps, 4, batch).transpose(2, 1, 0, 4, 3, 5)
    return np.ascontiguousarray(parts).view(scales.dtype)


ROWS = 32  # at a time: their f32 copies stay in the caches


def _some_rows(a, b, scales_a, scales_b, value, size) -> None:
    """The codes' sums over a block are exact in f32; blocks are scaled and added up in f64."""
    codes = twice(a)
    scales = scales_a.astype(np.float64) / 4
    scales *= scales_b
    value[...] = (np.einsum("rki,ki->rk", codes, b) * scales).sum(1)
    np.abs(codes, out=codes)
    size[...] = (np.einsum("rki,ki->rk", codes, np.abs(b)) * np.abs(scales)).sum(1)


def reference(inputs: dict, _: dict) -> dict:
    """In f64, by threads that take some rows each."""
    rows, _, batch = inputs["a"].shape
    value, size = np.empty((2, rows, 1, batch))

    def piece(at: tuple[int, int]) -> None:
        i, which = at[1], slice(at[0], at[0] + ROWS)
        b, scales_b = twice(inputs["b"][:1, :, i])[0], inputs["sfb"][0, :, i].astype(np.float64)
        _some_rows(inputs["a"][which, :, i], b, inputs["sfa"][which, :, i], scales_b,
                   value[which, 0, i], size[which, 0, i])  # fmt: skip

    with ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), 16)) as pool:
        list(pool.map(piece, [(row, i) for i in range(batch) for row in range(0, rows, ROWS)]))
    return {"c": (value, size)}


def fill(name: str, shape: tuple, case, rng: np.random.Generator):
    if name in ("a", "b"):
        return rng.integers(0, 256, shape, dtype=np.uint8)
    # Such that sums stay within f16.
    return np.exp2(rng.uniform(-6, -1, shape)).astype(ml_dtypes.float8_e4m3fn)


def derived(inputs: dict) -> dict:
    return {f"{name}_permuted": permuted(inputs[name]) for name in ("sfa", "sfb")}


def custom_kernel(function, outputs: dict, inputs: dict, attributes: dict) -> None:
    """gpu-mode's entry: custom_kernel((a, b, sfa, sfb, sfa_permuted, sfb_permuted, c)) gives c."""
    import torch

    fp4 = getattr(torch, "float4_e2m1fn_x2", torch.uint8)
    a, b = (inputs[name].view(fp4) for name in ("a", "b"))
    c = outputs["c"]
    data = (a, b, inputs["sfa"], inputs["sfb"], inputs["sfa_permuted"], inputs["sfb_permuted"], c)
    made = function(data)
    if type(made) is not torch.Tensor:
        raise TypeError(f"custom_kernel returned a {type(made).__name__}, not a torch.Tensor")
    said = f"custom_kernel returned {made.dtype}{list(made.shape)}, not {c.dtype}{list(c.shape)}"
    if made.shape != c.shape:
        raise WrongShape(said)
    if made.dtype != c.dtype:
        raise WrongDtype(said)
    if made.data_ptr() != c.data_ptr() or made.stride() != c.stride():
        c.copy_(made)


# What a submission imports from gpu-mode's `task`: names for annotations.
TASK = {"input_t": tuple, "output_t": object, "TestSpec": dict}

problem = Problem(
    name="nvfp4_gemv",
    doc="c[i, 0, z] = sum over k of a[i, k, z] b[0, k, z], both NVFP4 with a scale per 16.",
    args=[
        input(
            "a",
            "u8",
            "M, K/2, L",
            "codes of the matrices, the even k in the low nibble",
            order=ORDER,
        ),
        input(
            "b",
            "u8",
            "128, K/2, L",
            "codes of the vectors in row 0; the other rows do not count",
            order=ORDER,
        ),
        input("sfa", "e4m3", "M, K/16, L", "scales of a", order=ORDER),
        input("sfb", "e4m3", "128, K/16, L", "scales of b", order=ORDER),
        input(
            "sfa_permuted",
            "e4m3",
            "32, 4, cdiv(M,128), 4, cdiv(K,64), L",
            "sfa in tiles",
            order=TILES,
        ),
        input("sfb_permuted", "e4m3", "32, 4, 1, 4, cdiv(K,64), L", "sfb in tiles", order=TILES),
        output("c", "f16", "M, 1, L", "the products", Bound(4, "K"), order=ORDER),
    ],
    constraints=[
        ("K % 64 == 0", "K must be a multiple of 64"),
        ("M % 128 == 0", "M must be a multiple of 128"),
        ("M > 0 && K > 0 && L > 0", "M, K and L must be positive"),
    ],
    reference=reference,
    fill=fill,
    derived=derived,
    adapters={"custom_kernel": custom_kernel},
    modules={"task": TASK},
    flops="2*M*K*L",
    # What a kernel must read: a with one form of its scales, one row of b; and c written.
    bytes="L*(M*K/2 + M*K/16 + K/2 + K/16 + 2*M)",
    suites={
        "smoke": ["M=128 K=256 L=1", "M=256 K=512 L=2"],
        "correctness": [
            "M=128 K=256 L=1",
            "M=128 K=1536 L=1",
            "M=128 K=3072 L=1",
            "M=256 K=7168 L=1",
            "M=2432 K=4608 L=2",
            "M=384 K=7168 L=2",
            "M=512 K=512 L=2",
            "M=512 K=4096 L=2",
            "M=512 K=1536 L=2",
            "M=256 K=512 L=4",
        ],
        "adversarial": ["M=128 K=64 L=3", "M=128 K=64 L=1 memory=offset"],
        "performance": ["M=7168 K=16384 L=1", "M=4096 K=7168 L=8", "M=7168 K=2048 L=4"],
    },
)
