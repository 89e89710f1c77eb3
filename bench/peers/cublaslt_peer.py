"""cuBLASLt itself on matrix products: the fastest of the eight algorithms that it names first.

Its library is the one that torch has loaded. The numbers below are cublasLt.h's. Rows of ours are
cuBLAS's columns: out^T = b^T a^T.
"""

import ctypes

import torch

NAME = "cublaslt"
ALGORITHMS = 8
WORKSPACE = 32 << 20
COMPUTE_32F, REAL_32F = 68, 0
REALS = {
    torch.float32: 0,
    torch.float16: 2,
    torch.bfloat16: 14,
    torch.float8_e4m3fn: 28,
    torch.float8_e5m2: 29,
}
TRANS_A, TRANS_B, SCALE_A, SCALE_B, FAST, MODE_A, MODE_B = 3, 4, 17, 18, 25, 31, 32
SCALES_OF_ROWS = 3
MOST_WORKSPACE = 1


class Heuristic(ctypes.Structure):
    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class Library:
    def __init__(self):
        torch.empty(16, 16, device="cuda").mm(torch.empty(16, 16, device="cuda"))  # loads it
        self.library = next(filter(None, map(self.load, ("13", "12"))))
        handle = ctypes.c_void_p()
        self.call("cublasLtCreate", ctypes.byref(handle))
        self.handle = handle
        self.workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device="cuda")

    @staticmethod
    def load(version):
        try:
            return ctypes.CDLL(f"libcublasLt.so.{version}")
        except OSError:
            return None

    def call(self, name, *arguments):
        status = getattr(self.library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} failed with status {status}")

    def made(self, name, *arguments):
        made = ctypes.c_void_p()
        self.call(name, ctypes.byref(made), *arguments)
        return made

    def set(self, name, made, attribute, value):
        self.call(name, made, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)))


loaded = None


def library():
    global loaded
    loaded = loaded or Library()
    return loaded


class Product:
    """out = a @ b of two matrices, of codes with decode scales; b may be a transposed view."""

    def __init__(self, a, b, out, scales=None, fast=True):
        self.tensors = a, b, out  # kept, and scales with them
        self.scales = scales
        lt = self.lt = library()
        self.desc = lt.made("cublasLtMatmulDescCreate", COMPUTE_32F, REAL_32F)
        b_along_k, a_along_k = b.stride(0) == 1, a.stride(1) == 1
        self.attribute(TRANS_A, ctypes.c_int32(b_along_k))
        self.attribute(TRANS_B, ctypes.c_int32(not a_along_k))
        if scales:
            self.attribute(FAST, ctypes.c_int8(fast))
            for attribute, mode, scale in (
                (SCALE_A, MODE_A, scales[1]),
                (SCALE_B, MODE_B, scales[0]),
            ):
                self.attribute(attribute, ctypes.c_void_p(scale.data_ptr()))
                if scale.numel() > 1:
                    self.attribute(mode, ctypes.c_int32(SCALES_OF_ROWS))
        self.a = self.layout(a.mT if a_along_k else a)
        self.b = self.layout(b if b_along_k else b.mT)
        self.out = self.layout(out.mT)
        self.algorithms = self.ask()

    def attribute(self, which, value):
        self.lt.set("cublasLtMatmulDescSetAttribute", self.desc, which, value)

    def layout(self, columns):
        """Of a matrix whose columns are dense."""
        rows, count = columns.shape
        stride = ctypes.c_int64(max(columns.stride(1), 1) if count > 1 else rows)
        return self.lt.made(
            "cublasLtMatrixLayoutCreate",
            REALS[columns.dtype],
            ctypes.c_uint64(rows),
            ctypes.c_uint64(count),
            stride,
        )

    def ask(self):
        lt = self.lt
        preference = lt.made("cublasLtMatmulPreferenceCreate")
        most = ctypes.c_size_t(WORKSPACE)
        lt.set("cublasLtMatmulPreferenceSetAttribute", preference, MOST_WORKSPACE, most)
        found = (Heuristic * ALGORITHMS)()
        count = ctypes.c_int()
        lt.call(
            "cublasLtMatmulAlgoGetHeuristic",
            *(lt.handle, self.desc, self.b, self.a, self.out, self.out, preference),
            ALGORITHMS,
            found,
            ctypes.byref(count),
        )
        lt.call("cublasLtMatmulPreferenceDestroy", preference)
        return [h for h in found[: count.value] if h.state == 0 and h.workspace <= WORKSPACE]

    def run(self, algorithm):
        a, b, out = self.tensors
        lt, one, zero = self.lt, ctypes.c_float(1), ctypes.c_float(0)
        address = ctypes.c_void_p(out.data_ptr())
        lt.call(
            "cublasLtMatmul",
            *(lt.handle, self.desc, ctypes.byref(one)),
            *(ctypes.c_void_p(b.data_ptr()), self.b, ctypes.c_void_p(a.data_ptr()), self.a),
            *(ctypes.byref(zero), address, self.out, address, self.out),
            ctypes.byref(self.algorithms[algorithm].algorithm),
            ctypes.c_void_p(lt.workspace.data_ptr()),
            ctypes.c_size_t(WORKSPACE),
            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
        )
        return out

    def __del__(self):
        for name, made in (
            ("MatmulDesc", "desc"),
            ("MatrixLayout", "a"),
            ("MatrixLayout", "b"),
            ("MatrixLayout", "out"),
        ):
            if hasattr(self, made):
                self.lt.call(f"cublasLt{name}Destroy", getattr(self, made))


def unavailable(device):
    return "" if device == "cuda" else "it is for GPUs"


def products(case):
    """The case's products, or none where cuBLASLt has not all of it."""
    if not case.plain() or case.attribute("activation") != "none":
        return []
    if (
        case.op == "matmul"
        and case.has("out")
        and case.only("a", "b")
        and case.dtype("a").itemsize == 2
    ):
        a, b = case.tensor("a"), case.tensor("b")
        out = torch.empty(case.shape("out"), dtype=case.dtype("out"), device=a.device)
        return [Product(a, b, out)] if a.dim() == 2 and a.dtype == b.dtype else []
    if case.op == "matmul_backward" and case.only("d_out", "a", "b"):
        d_out, a, b = (case.tensor(name) for name in ("d_out", "a", "b"))
        if a.dim() != 2 or a.itemsize != 2 or not a.dtype == b.dtype == d_out.dtype:
            return []
        return [
            Product(d_out, b.mT, torch.empty_like(a)),
            Product(a.mT, d_out, torch.empty_like(b)),
        ]
    granular = case.attribute("granularity")
    if (
        case.op == "scaled_mm_fp8"
        and case.has("out")
        and granular in ("tensor", "row")
        and case.only(*"ab", *SCALES)
    ):
        a, b = case.tensor("a"), case.tensor("b")
        out = torch.empty(case.shape("out"), dtype=case.dtype("out"), device=a.device)
        scales = tuple(map(case.tensor, SCALES))
        return [Product(a, b.mT, out, scales, case.attribute("accumulation") == "fast")]
    return []


SCALES = ("scale_a", "scale_b")
best = {}  # of a case: each product's algorithm


def microseconds(product, algorithm, count):
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    events[0].record()
    for _ in range(count):
        product.run(algorithm)
    events[1].record()
    events[1].synchronize()
    return events[0].elapsed_time(events[1]) * 1e3 / count


def fastest(product, least_us=3000):
    """Of all algorithms in turn, twice, as long as it takes to tell them apart."""
    which = range(len(product.algorithms))
    once = min(microseconds(product, i, 2) for i in which)
    count = max(2, min(100, int(least_us / once)))
    times = [[microseconds(product, i, count) for i in which] for _ in range(2)]
    return min(which, key=lambda i: min(turn[i] for turn in times))


def calls(case):
    found = products(case)
    if not found:
        return {}
    if (case.op, case.text) not in best:
        best[case.op, case.text] = [fastest(product) for product in found]
    chosen = best[case.op, case.text]
    return {
        NAME: (lambda: [p.run(i) for p, i in zip(found, chosen, strict=True)], None),
    }
