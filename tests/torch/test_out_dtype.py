"""out_dtype follows x, as PyTorch's would; where codes are asked for it is bf16."""

import pestle
import pytest
import torch

X = torch.randn(3, 256)
CALLS = {
    "matmul": lambda x: pestle.matmul(x, torch.randn(256, 32).to(x.dtype)),
    "linear_fp8": lambda x: pestle.linear_fp8(x, *pestle.quantize_fp8(torch.randn(32, 256))),
    "linear_int8": lambda x: pestle.linear_int8(x, *pestle.quantize_int8(torch.randn(32, 256))),
    "hadamard": pestle.hadamard,
    "copy": pestle.copy,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", CALLS)
def test_out_dtype_follows_x(name, dtype):
    assert CALLS[name](X.to(dtype)).dtype == dtype


def test_copies_of_integers_lose_no_digit():
    x = torch.tensor([2**24 + 1, -(2**30) - 3], dtype=torch.int32)
    assert torch.equal(pestle.copy(x), x)


def test_kept_output_beside_codes_is_bf16():
    out = pestle.matmul(X, torch.randn(256, 32), out_format="fp8_row", keep_out=True)[0]
    assert out.dtype == torch.bfloat16
