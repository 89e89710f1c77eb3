"""linear_int4's two bounds: decoded=as_x leaves room for a weight that was rounded to x's dtype,
and exact does not."""

import pestle
import pytest
import torch

M, N, K, GROUP = 8, 48, 512, 64


def bound(terms: torch.Tensor, k: int) -> torch.Tensor:
    return 4 * k**0.5 * 2.0**-24 * terms


@pytest.mark.parametrize("mode", ["symmetric", "asymmetric"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_bound_of_as_x_takes_a_rounded_weight(dtype, mode):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(M, K, generator=generator).to(dtype)
    weight = torch.randn(N, K, generator=generator)
    how = {"group_size": GROUP, "mode": mode}
    tensors = pestle.quantize_int4(weight, **how)
    values = pestle.dequantize_int4(*tensors, **how, out_dtype=torch.float32).double()
    rounded = pestle.dequantize_int4(*tensors, **how, out_dtype=dtype).double()
    reference, terms = x.double() @ values.t(), x.double().abs() @ values.abs().t()

    off = (x.double() @ rounded.t() - reference).abs()
    assert (off <= bound(terms, 268435456 + K)).all()
    assert (off > bound(terms, K)).any()
    for decoded, k in (("exact", K), ("as_x", 268435456 + K)):
        out = pestle.linear_int4(x, *tensors, **how, decoded=decoded, out_dtype=torch.float32)
        assert ((out.double() - reference).abs() <= bound(terms, k) + 2.0**-24 * terms).all()


def test_the_bound_for_f32_stays():
    x, weight = torch.randn(M, K), torch.randn(N, K)
    codes, scale = pestle.quantize_int4(weight, group_size=GROUP)
    made = [
        pestle.linear_int4(x, codes, scale, group_size=GROUP, decoded=decoded)
        for decoded in ("exact", "as_x")
    ]
    assert torch.equal(*made)
