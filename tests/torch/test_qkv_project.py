"""qkv_project beside three layers of its own: every format, gradients of x, weights and biases."""

import pestle
import pytest
import torch

K, WIDTHS, NAMES = 256, (96, 32, 17), "qkv"
FORMATS = {
    "float": {},
    "int8_row": {"hadamard": 64},
    "int8_tensor": {},
    "int4": {"group_size": 64, "mode": "asymmetric"},
    "nvfp4": {},
}


def quantised(weight, format):
    """(codes, other tensors by name, the weight that they stand for)."""
    if format == "float":
        return weight, {}, weight
    if format.startswith("int8"):
        how = {"granularity": format[5:], "hadamard": FORMATS[format].get("hadamard", 0)}
        codes, scale = pestle.quantize_int8(weight, **how)
        tensors = {"scale": scale}
        decoded = pestle.dequantize_int8(codes, scale, **how, out_dtype=torch.float32)
    elif format == "int4":
        codes, scale, zero = pestle.quantize_int4(weight, **FORMATS[format])
        tensors = {"scale": scale, "zero": zero}
        decoded = pestle.dequantize_int4(
            codes, scale, zero, **FORMATS[format], out_dtype=torch.float32
        )
    else:
        one = torch.full((1,), 0.01)
        codes, scale = pestle.quantize_nvfp4(weight, one)
        tensors = {"scale": scale, "global_scale": one}
        decoded = pestle.dequantize_nvfp4(codes, scale, one, out_dtype=torch.float32)
    return codes, tensors, decoded


def layers(format):
    weights, options, decoded = [], dict(FORMATS[format], format=format), []
    for i, (name, n) in enumerate(zip(NAMES, WIDTHS, strict=True)):
        weight = torch.randn(n, K, generator=torch.Generator().manual_seed(i))
        codes, tensors, values = quantised(weight, format)
        weights.append(codes)
        decoded.append(values)
        options |= {f"{kind}_{name}": tensor for kind, tensor in tensors.items()}
    return weights, options, decoded


@pytest.mark.parametrize("format", FORMATS)
def test_values_and_gradients(format):
    weights, options, decoded = layers(format)
    x = torch.randn(2, 5, K, generator=torch.Generator().manual_seed(9), requires_grad=True)
    biases = [torch.randn(n, requires_grad=True) for n in WIDTHS]
    for name, bias in zip(NAMES, biases, strict=True):
        options[f"bias_{name}"] = bias
    leaves = [x, *biases]
    if format == "float":
        weights = [w.detach().requires_grad_() for w in weights]
        leaves += weights
        decoded = weights
    made = pestle.qkv_project(x, *weights, **options)
    wanted = [torch.nn.functional.linear(x, w, b) for w, b in zip(decoded, biases, strict=True)]
    asked = [torch.randn_like(y) for y in wanted]
    for y, reference in zip(made, wanted, strict=True):
        torch.testing.assert_close(y, reference, atol=2e-4, rtol=1e-4)
    gradients = torch.autograd.grad(made, leaves, asked)
    for g, reference in zip(gradients, torch.autograd.grad(wanted, leaves, asked), strict=True):
        torch.testing.assert_close(g, reference, atol=5e-4, rtol=1e-4)


def test_an_output_that_nobody_asks_for_has_no_part_in_the_gradient():
    weights, options, decoded = layers("int8_tensor")
    x = torch.randn(4, K, requires_grad=True)
    _, k, _ = pestle.qkv_project(x, *weights, **options)
    (gradient,) = torch.autograd.grad(k.sum(), x)
    torch.testing.assert_close(gradient, decoded[1].sum(0).expand(4, K), atol=1e-3, rtol=1e-4)


def test_rows_with_gaps_have_gradients():
    """x and the gradients as slices of larger tensors, whose leading dimensions are not even."""
    weights, options, decoded = layers("int4")
    x = torch.randn(3, 7, K)[:, 1:6].requires_grad_()
    made = pestle.qkv_project(x, *weights, **options)
    asked = [torch.randn(3, 9, n)[:, 2:7] for n in WIDTHS]
    (gradient,) = torch.autograd.grad(made, x, asked)
    reference = sum(d @ w for d, w in zip(asked, decoded, strict=True))
    torch.testing.assert_close(gradient, reference, atol=5e-4, rtol=1e-4)


def test_codes_are_no_weight_with_a_gradient():
    weights, options, _ = layers("nvfp4")
    with pytest.raises(pestle.InvalidArgumentError, match="weight_q"):
        pestle.qkv_project(torch.randn(2, K), weights[0].float(), *weights[1:], **options)


def own_call(format, x, weight, bias, tensors):
    """One of the three products, by its op."""
    how = FORMATS[format]
    if format == "float":
        return pestle.matmul(x, weight.T, bias=bias)
    if format.startswith("int8"):
        return pestle.linear_int8(x, weight, **tensors, bias=bias, granularity=format[5:], **how)
    return getattr(pestle, f"linear_{format}")(x, weight, **tensors, bias=bias, **how)


@pytest.mark.parametrize("format", FORMATS)
def test_few_rows_have_the_bits_of_three_calls(format, device):
    weights, options, _ = layers(format)
    options = {n: t.to(device) if torch.is_tensor(t) else t for n, t in options.items()}
    weights = [(w.bfloat16() if format == "float" else w).to(device) for w in weights]
    x = torch.randn(9, K, dtype=torch.bfloat16, device=device)
    options["bias_v"] = torch.randn(WIDTHS[2], device=device)
    made = pestle.qkv_project(x, *weights, **options)
    for y, name, weight in zip(made, NAMES, weights, strict=True):
        tensors = {
            kind: options[f"{kind}_{name}"]
            for kind in ("scale", "zero", "global_scale")
            if f"{kind}_{name}" in options
        }
        assert torch.equal(y, own_call(format, x, weight, options.get(f"bias_{name}"), tensors))
