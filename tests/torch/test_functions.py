"""The Python functions: signatures, overload choice, errors, gradients, what `why` says."""

import inspect
import subprocess
import sys
import threading
from pathlib import Path

import cases
import pestle
import pytest
import torch
from pestle import _contract, _stub

X = torch.randn(8, 256, generator=torch.Generator().manual_seed(1))


def test_signature_and_docstring_come_from_the_contract():
    text = str(inspect.signature(pestle.quantize_fp8))
    assert text == (
        "(x, scale=None, *, granularity='tensor', rounding='nearest', seed=0, "
        "transposed=False, q_dtype=None, backend=None)"
    )
    for op in pestle.list_ops():
        doc = getattr(pestle, op).__doc__
        assert doc.startswith(_contract.op(op).doc)
        assert all(f"    {arg.name}" in doc for arg in _contract.op(op).args)


def test_outputs_follow_the_arguments():
    q, scale = pestle.quantize_fp8(X, granularity="row")
    assert scale.shape == (8, 1)
    again = pestle.quantize_fp8(X, scale, granularity="row")
    assert torch.equal(again.view(torch.uint8), q.view(torch.uint8))
    assert len(pestle.quantize_int4(X, group_size=32)) == 2
    assert len(pestle.quantize_int4(X, group_size=32, mode="asymmetric")) == 3


def test_dtype_of_an_output():
    q, _ = pestle.quantize_fp8(X, q_dtype=torch.float8_e5m2)
    assert q.dtype == torch.float8_e5m2
    assert pestle.dequantize_fp8(*pestle.quantize_fp8(X), out_dtype=torch.float32).dtype == X.dtype
    with pytest.raises(pestle.InvalidArgumentError, match="q has dtype i8, expected e4m3"):
        pestle.quantize_fp8(X, q_dtype=torch.int8)


def test_scalars_and_bytes_are_taken_for_what_they_are():
    q, scale = pestle.quantize_fp8(X)
    one = pestle.dequantize_fp8(q, scale)
    assert torch.equal(pestle.dequantize_fp8(q, scale[0]), one)
    q, scale, whole = pestle.quantize_nvfp4(X)
    one = pestle.dequantize_nvfp4(q, scale, whole)
    assert torch.equal(pestle.dequantize_nvfp4(q, scale.view(torch.uint8), whole), one)
    assert torch.equal(pestle.dequantize_nvfp4(q.view(torch.float4_e2m1fn_x2), scale, whole), one)


def test_in_place_functions_return_their_argument():
    x = X.clone()
    assert pestle.hadamard_(x) is x
    assert torch.equal(x, pestle.hadamard(X, out_dtype=X.dtype))
    rng = torch.randint(0, 256, X.shape, dtype=torch.uint8)
    expected = pestle.stochastic_round_fp8(X, rng)
    q = pestle.stochastic_round_fp8_(X, rng)
    assert q.data_ptr() == rng.data_ptr()
    assert torch.equal(q.view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize(
    ("call", "kind", "sentence"),
    [
        (lambda: pestle.quantize_fp8(X.int()), pestle.InvalidArgumentError,
         "quantize_fp8: x has dtype i32, expected bf16|f16|f32"),
        (lambda: pestle.quantize_fp8(X, granularity="rows"), pestle.InvalidArgumentError,
         "quantize_fp8: granularity is 'rows', expected one of tensor|row|"),
        (lambda: pestle.quantize_fp8(X, X), pestle.InvalidArgumentError,
         "scale is f32[8,256], expected shape [1] (granularity=tensor)"),
        (lambda: pestle.quantize_int4(X[:, :5]), pestle.InvalidArgumentError, "K must be even"),
        (lambda: pestle.quantize_fp8(X.to_sparse()), (pestle.PestleError, NotImplementedError), ""),
        (lambda: pestle.quantize_fp8(X.cfloat()), pestle.InvalidArgumentError,
         "x has a dtype that Pestle does not have"),
        (lambda: pestle.hadamard(X, hadamard=7), ValueError, "hadamard must be 4, 16"),
    ],
)  # fmt: skip
def test_errors_carry_the_librarys_sentence(call, kind, sentence):
    with pytest.raises(kind) as error:
        call()
    assert sentence in str(error.value)
    assert "[pestle" not in str(error.value)


def test_overlapping_outputs_are_refused():
    room = torch.zeros(9, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="out overlaps q in memory"):
        torch.ops.pestle.swap_nibbles.out(room[:8].view(1, 8), out=room[1:].view(1, 8))


def test_gradients_say_why_there_are_none():
    x = X.clone().requires_grad_()
    q, _scale = pestle.quantize_fp8(x)
    with pytest.raises(pestle.NoGradientError, match="codes are piecewise constant"):
        q.float().sum().backward()
    with pytest.raises(pestle.NoGradientError, match="call hadamard"):
        pestle.hadamard_(x)
    with torch.no_grad():
        pestle.hadamard_(x)


def test_in_place_calls_count_as_writes():
    x = X.clone()
    before = x._version
    pestle.hadamard_(x)
    assert x._version == before + 1


def test_one_matrix_for_a_whole_batch():
    """A product's operand may be the same for all of a batch, by a stride of 0."""
    a, b = torch.randn(3, 5, 40), torch.randn(40, 24)
    expanded = b.expand(3, 40, 24)
    out = pestle.matmul(a, expanded, out_dtype=torch.float32)
    assert torch.equal(out, torch.stack([pestle.matmul(m, b, out_dtype=torch.float32) for m in a]))
    columns = b.t().contiguous().t().expand(3, 40, 24)
    turned = pestle.matmul(a.mT.contiguous().mT, columns, out_dtype=torch.float32)
    torch.testing.assert_close(turned, out)


@pytest.mark.parametrize("gated", ["act_first", "act_last"])
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_pairs_are_the_gated_activation_of_the_product(gated, activation):
    a, b = torch.randn(7, 40), torch.randn(64, 40).t()
    out = pestle.matmul(a, b, activation=activation, gated=gated, out_dtype=torch.float32)
    product = pestle.matmul(a, b, out_dtype=torch.float32)
    expected = pestle.gated_activation(product, act=activation, layout=gated)
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-6)


def test_why_gives_every_verdict():
    why = pestle.why("quantize_fp8", X, granularity="row")
    assert why.chosen == "cpu/quantize_fp8_simd"
    verdicts = [v.implementation for v in why.verdicts if not v.refusal]
    assert verdicts == ["cpu/quantize_fp8_simd", "reference", "eager/quantize_fp8"]
    on_gpu = pestle.why(pestle.quantize_fp8, torch.empty(4, 8, device="meta"), backend="cpu")
    assert on_gpu.chosen == "cpu/quantize_fp8_simd"
    with pytest.raises(pestle.InvalidArgumentError, match="K must be even"):
        pestle.why("quantize_int4", X[:, :5])
    with pytest.raises(pestle.InvalidArgumentError, match="no op 'nothing'"):
        pestle.why("nothing", X)


@pytest.mark.parametrize("name", [n for n in pestle.list_ops() if not _contract.op(n).has_lists])
def test_why_takes_every_case(name):
    for op, row in cases.all_cases():
        if op == name:
            case = cases.make(_contract.op(name), row)
            asked = {f"{output}_dtype": dtype for output, dtype in case.asked.items()}
            found = pestle.why(name, **case.call.tensors, **case.call.attributes, **asked)
            assert found.chosen, row["text"]


def test_calls_release_the_interpreter():
    x = torch.randn(4096, 4096)
    done = threading.Event()
    worker = threading.Thread(target=lambda: (pestle.quantize_int4(x, hadamard=256), done.set()))
    worker.start()
    turns = 0
    while not done.is_set():
        turns += 1
        done.wait(1e-4)
    worker.join()
    assert turns > 3


def test_import_is_quick():
    code = (
        "import torch, time; start = time.process_time(); import pestle; "
        "print(time.process_time() - start)"
    )
    best = min(
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
        for _ in range(3)
    )
    assert best < 0.5  # 0.15 on a quiet machine; bench/torch_host_cost.py measures


def test_the_stub_is_that_of_the_table():
    stub = Path(pestle.__file__).with_name("__init__.pyi")
    assert stub.read_text() == _stub.text(), "run make stub"


@pytest.mark.parametrize("pairs", ["interleaved", "split_half"])
@pytest.mark.parametrize("name", ["apply_rope", "rms_rope"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rope_in_place_on_views_of_a_packed_tensor(name, pairs, dtype):
    """q and k lie beside each other in each token's row: only the ranges of their bytes meet."""
    packed = torch.randn(2, 7, 3, 4, 32).to(dtype)
    q, k, v = packed.unbind(2)
    kept = v.clone()
    more = {"weight": torch.rand(32), "weight2": torch.rand(32)} if name == "rms_rope" else {}
    more |= {"freqs": torch.randn(1, 7, 1, 16, 2, 2), "pairs": pairs}
    expected = getattr(pestle, name)(q.clone(), x2=k.clone(), **more)
    one = getattr(pestle, name)(v.clone(), **{n: t for n, t in more.items() if n != "weight2"})
    getattr(pestle, f"{name}_")(q, x2=k, **more)
    assert torch.equal(q, expected[0]) and torch.equal(k, expected[1]) and torch.equal(v, kept)
    getattr(pestle, f"{name}_")(v, **{n: t for n, t in more.items() if n != "weight2"})
    assert torch.equal(v, one)
    assert torch.equal(packed[:, :, 0], expected[0]) and torch.equal(packed[:, :, 2], one)


def test_out_dtype_follows_x():
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        a = torch.randn(3, 16).to(dtype)
        assert pestle.matmul(a[None], a.T[None]).dtype == dtype
        assert pestle.hadamard(a, hadamard=16).dtype == dtype
        assert pestle.copy(a).dtype == dtype
        rotated = a.clone()
        assert torch.equal(pestle.hadamard_(rotated, hadamard=16), rotated)
        assert rotated.dtype == dtype and torch.equal(rotated, pestle.hadamard(a, hadamard=16))
    numbers = torch.arange(16_777_217, 16_777_225, dtype=torch.int32)
    assert torch.equal(pestle.copy(numbers), numbers)
    assert pestle.copy(numbers, out_dtype=torch.bfloat16).dtype == torch.bfloat16


def test_outputs_without_memory_of_their_own_are_refused():
    x, out = torch.randn(4, 8), torch.zeros(1, 8).expand(4, 8)
    with pytest.raises(RuntimeError, match="several elements in the same memory"):
        torch.ops.pestle.softmax.out(x, out=out)
