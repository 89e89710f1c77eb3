"""comfy-kitchen on Pestle's cases: its functions, on the backend that it chooses itself and, on a
GPU, on Triton where it has that too.

What a function of its own does not do, such as a computed scale, is done as its layouts do it.
"""

import itertools
import math

import torch
import torch_linear

NAME = "comfy_kitchen"
FLOAT_CODES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
LAYOUTS = {
    "linear_fp8": "TensorCoreFP8Layout",
    "linear_nvfp4": "TensorCoreNVFP4Layout",
    "linear_mxfp8": "TensorCoreMXFP8Layout",
}


def unavailable(device):
    try:
        import comfy_kitchen
    except ImportError as error:
        return f"comfy_kitchen can't be imported: {error}"
    if device == "cuda" and not comfy_kitchen.list_backends()["cuda"]["available"]:
        return f"its cuda backend: {comfy_kitchen.list_backends()['cuda']['unavailable_reason']}"
    return ""


def kitchen():
    import comfy_kitchen

    return comfy_kitchen


def served(name):
    """A function that only its registry has."""
    return lambda **arguments: kitchen().registry.get_implementation(name, kwargs=arguments)(
        **arguments
    )


def quantize_fp8(case):
    dtype, x = case.dtype("q"), case.tensor("x")
    if case.attribute("granularity") != "tensor" or case.attribute("rounding") != "nearest":
        return None
    run = kitchen().quantize_per_tensor_fp8
    if case.has("scale"):
        scale = case.tensor("scale")
        return lambda: run(x, scale, dtype)
    return lambda: run(x, x.abs().amax().float() / torch.finfo(dtype).max, dtype)


def dequantize_fp8(case):
    if case.attribute("granularity") != "tensor":
        return None
    q, scale, dtype = case.tensor("q"), case.tensor("scale"), case.dtype("out")
    return lambda: kitchen().dequantize_per_tensor_fp8(q, scale, dtype)


def stochastic_round_fp8(case):
    x, rng, dtype = case.tensor("x"), case.tensor("rng"), case.dtype("q")
    return lambda: kitchen().stochastic_rounding_fp8(x, rng, dtype)


def usual_blocks(case):
    plain = case.attribute("scale_layout") == "plain"
    return not plain and case.attribute("rounding", "nearest") == "nearest"


def pads(case, x, step):
    """Its kernels take rows and columns in multiples of `step`, or pad as they write, which its
    layouts ask for when a tensor has others: here where that is next to no work (32760 rows become
    32768, 0.02 % more codes)."""
    padded = math.prod(-(-size // step) * step for size in x.shape)
    return bool(case.attribute("pad")) or x.numel() < padded <= 1.01 * x.numel()


def quantize_nvfp4(case):
    if not usual_blocks(case):
        return None
    x = case.tensor("x")
    pad = pads(case, x, 16)
    first = case.attribute("nibbles") == "high_first"
    run = kitchen().quantize_nvfp4
    if case.has("global_scale"):
        g = case.tensor("global_scale")
        return lambda: run(x, g, pad_16x=pad, hi_first=first)
    return lambda: run(x, torch.amax(x.abs()).float() / 2688, pad_16x=pad, hi_first=first)


def dequantize_nvfp4(case):
    if not usual_blocks(case):
        return None
    q, g = case.tensor("q"), case.tensor("global_scale")
    scale = case.codes("scale", torch.float8_e4m3fn)
    dtype, first = case.dtype("out"), case.attribute("nibbles") == "high_first"
    return lambda: kitchen().dequantize_nvfp4(q, g, scale, dtype, first)


def quantize_mxfp8(case):
    if not usual_blocks(case) or case.dtype("q") != torch.float8_e4m3fn:
        return None
    x = case.tensor("x")
    pad = pads(case, x, 32)
    return lambda: kitchen().quantize_mxfp8(x, pad)


def dequantize_mxfp8(case):
    if not usual_blocks(case):
        return None
    if case.dtype("q") != torch.float8_e4m3fn:
        return None
    q, scale, dtype = case.tensor("q"), case.codes("scale", torch.float8_e8m0fnu), case.dtype("out")
    return lambda: kitchen().dequantize_mxfp8(q, scale, dtype)


def quantize_int8(case):
    granularity, group = case.attribute("granularity"), case.attribute("hadamard")
    if case.has("scale") or case.attribute("rounding") != "nearest" or granularity == "group":
        return None
    x = case.tensor("x")
    if group:
        run = served("quantize_int8_convrot_weight")
        return (lambda: run(weight=x, group_size=group)) if granularity == "row" else None
    if granularity == "row":
        return lambda: kitchen().quantize_int8_rowwise(x)
    return lambda: kitchen().quantize_int8_tensorwise(x)


def dequantize_int8(case):
    group, granularity = case.attribute("hadamard"), case.attribute("granularity")
    if granularity == "group" or (group and granularity != "row"):
        return None
    q, scale, code = case.tensor("q"), case.tensor("scale"), FLOAT_CODES[case.dtype("out")]
    if group:
        run = served("dequantize_int8_convrot_weight_dtype")
        return lambda: run(q=q, scale=scale, group_size=group, output_dtype_code=code)
    run = served("dequantize_int8_simple_dtype")
    return lambda: run(q=q, scale=scale, output_dtype_code=code)


def rope(name):
    def adapter(case):
        unusual = case.attribute("inverse") or case.attribute("rot_dim") or case.has("cos")
        if unusual or case.has("weight2"):
            return None
        split = "_split_half" if case.attribute("pairs") == "split_half" else ""
        if split and case.shape("freqs")[2] > case.shape("x")[2]:
            return None  # only neighbouring pairs have longer freqs trimmed there
        suffix = "" if case.has("x2") else "1"
        run = getattr(kitchen(), name + split + suffix)
        tensors = [case.tensor(n) for n in ("x", "x2") if case.has(n)]
        rest = [case.tensor("freqs")]
        if name == "rms_rope":
            rest.append(case.tensor("weight").to(case.dtype("x")))
        return lambda: run(*tensors, *rest)

    return adapter


def modulated(name):
    def adapter(case):
        if not case.only("x", "scale", "shift") or not case.plain():
            return None
        x = case.tensor("x")
        groups = max(1, case.tensor("scale").numel() // case.shape("scale")[-1])
        rows = x.view(groups, -1, x.shape[-1])
        by, plus = (case.tensor(n).view(groups, 1, -1).to(x.dtype) for n in ("scale", "shift"))
        return lambda: getattr(kitchen(), name)(rows, by, plus, case.attribute("eps"))

    return adapter


def linear(case):
    """Through its QuantizedTensor, or int8_linear, which quantises x too; weights rotate over more
    than a gigabyte."""
    known = ("x", "weight", "scale", "global_scale", "norm_weight")
    if not case.only(*known) or len(case.shape("x")) != 2 or not case.has("out"):
        return None
    if case.attribute("activation", "none") != "none":
        return None
    if case.attribute("granularity", "tensor") == "group":
        return None
    n, k = case.shape("out")[-1], torch_linear.columns(case)
    x, one = case.tensor("x"), torch.randn(n, k, device=case.device).to(case.dtype("x"))
    count = range(min(256, max(2, -(-(1 << 30) // (n * k)))))
    turn = itertools.count()
    if case.op == "linear_int8":
        weights = [kitchen().quantize_int8_rowwise(one) for _ in count]
        how = {"convrot": bool(case.attribute("hadamard"))}
        how["convrot_groupsize"] = case.attribute("hadamard") or 256
        return lambda: kitchen().int8_linear(
            torch_linear.changed(case, x),
            *weights[next(turn) % len(weights)],
            out_dtype=x.dtype,
            **how,
        )
    if case.op not in LAYOUTS or case.attribute("granularity", "tensor") != "tensor":
        return None
    made = [kitchen().tensor.QuantizedTensor.from_float(one, LAYOUTS[case.op]) for _ in count]
    return lambda: torch.nn.functional.linear(
        torch_linear.changed(case, x), made[next(turn) % len(made)]
    )


ADAPTERS = {
    "adaln": modulated("adaln"),
    "apply_rope": rope("apply_rope"),
    "dequantize_fp8": dequantize_fp8,
    "dequantize_int8": dequantize_int8,
    "dequantize_mxfp8": dequantize_mxfp8,
    "dequantize_nvfp4": dequantize_nvfp4,
    "linear_fp8": linear,
    "linear_int8": linear,
    "linear_mxfp8": linear,
    "linear_nvfp4": linear,
    "quantize_fp8": quantize_fp8,
    "quantize_int8": quantize_int8,
    "quantize_mxfp8": quantize_mxfp8,
    "quantize_nvfp4": quantize_nvfp4,
    "rms_adaln": modulated("rms_adaln"),
    "rms_rope": rope("rms_rope"),
    "stochastic_round_fp8": stochastic_round_fp8,
}


def on(backend, call):
    def run():
        with kitchen().use_backend(backend):
            return call()

    return run


def calls(case):
    adapter = ADAPTERS.get(case.op)
    if case.attribute("transposed"):
        return {}  # it has no quantiser that gives the transposed codes too
    call = adapter(case) if adapter else None
    if call is None:
        return {}
    made = {NAME: (call, None)}
    status = kitchen().list_backends()["triton"]
    if case.device == "cuda" and case.op in TRITON and status["available"]:
        made[f"{NAME}_triton"] = (on("triton", call), None)
    return made


# What its README's matrix has for Triton, and its RoPE family. Its NVFP4 quantiser does not compile
# below sm_100: run_peers then says so and goes on.
TRITON = {
    "adaln", "apply_rope", "dequantize_fp8", "quantize_fp8", "quantize_mxfp8", "quantize_nvfp4",
    "rms_adaln", "rms_rope",
}  # fmt: skip
