"""QuantizedTensor: layouts, sizes, errors, what is stored."""

import warnings
from dataclasses import dataclass

import pestle
import pytest
import torch
from pestle import quantized as q
from pestle.quantized import layouts
from quantized_cases import NAMES, nothing_decoded, quantized, relative, weight

# Relative error of a normal weight, and stored bits of a value at 96 x 512.
EXPECTED = {
    "fp8": (0.03, 8.1), "fp8-e5m2": (0.06, 8.1), "fp8-row": (0.03, 8.1), "fp8-block": (0.03, 8.1),
    "nvfp4": (0.1, 4.7), "mxfp8": (0.03, 8.4), "mxfp4": (0.12, 4.4), "int8": (0.015, 8.1),
    "int8-row": (0.01, 8.1), "int8-convrot": (0.01, 8.1), "int4-g32": (0.11, 5.1),
    "int4-g64": (0.12, 4.6), "int4-g128": (0.13, 4.3), "w4a8": (0.08, 4.6),
    "w4a4-convrot": (0.15, 4.1),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_format_comes_back_within_its_error(name):
    w = weight()
    made = quantized(name, w)
    error, bits = EXPECTED[name]
    assert relative(made.dequantize(), w) < error
    assert made.stored_bytes * 8 / w.numel() < bits
    assert made.shape == w.shape and made.dtype == w.dtype and made.device == w.device
    assert made.dequantize().dtype == w.dtype
    assert made.layout_cls in layouts.LAYOUTS


def test_a_layout_is_named_by_class_by_name_or_by_format():
    w = weight()
    made = [
        pestle.QuantizedTensor.from_float(w, how)
        for how in (q.TensorCoreNVFP4Layout, "TensorCoreNVFP4Layout", "nvfp4")
    ]
    assert torch.equal(made[0], made[1]) and torch.equal(made[1], made[2])
    with pytest.raises(pestle.InvalidArgumentError, match=r"unknown layout 'nvfp5'.*nvfp4"):
        pestle.QuantizedTensor.from_float(w, "nvfp5")


SUFFIXES = {
    "fp8": {"", "_scale"}, "nvfp4": {"", "_scale", "_scale_2"}, "mxfp8": {"", "_scale"},
    "int8-convrot": {"", "_scale"}, "w4a4-convrot": {"", "_scale"},
    "w4a8": {"", "_s_rel", "_s_channel", "_codebook"},
}  # fmt: skip


@pytest.mark.parametrize("name", SUFFIXES)
def test_state_dict_has_the_suffixes_of_files(name):
    made = quantized(name, weight())
    stored = made.state_dict("layer.weight")
    assert {key.removeprefix("layer.weight") for key in stored} == SUFFIXES[name]
    assert stored["layer.weight"] is made._qdata


@pytest.mark.parametrize(
    ("name", "padded", "stored"),
    [("nvfp4", (48, 80), (48, 40)), ("mxfp8", (64, 96), (64, 96)), ("mxfp4", (64, 96), (64, 48))],
)
def test_sizes_that_are_no_multiples_are_padded(name, padded, stored):
    w = weight(40, 72)
    made = quantized(name, w)
    assert made.padded_shape == padded and made.storage_shape == stored and made.is_padded
    assert made.layout_cls.get_padded_shape((40, 72)) == padded
    assert made.layout_cls.get_storage_shape((40, 72)) == stored
    assert made.nbytes == made._qdata.nbytes
    assert made.dequantize().shape == (40, 72)
    x = weight(3, 72, seed=1)
    with nothing_decoded():
        found = torch.nn.functional.linear(x, made, torch.ones(40))
    assert relative(found, x.double() @ made.dequantize().double().t() + 1) < 0.01


def test_requirements_say_what_a_layout_needs():
    found = q.TensorCoreNVFP4Layout.get_requirements()
    assert found["layout"] == "TensorCoreNVFP4Layout" and found["min_sm_version"] == (10, 0)
    assert set(found) == {
        "layout", "min_sm_version", "current_sm_version", "fast_matmul_supported",
    }  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_requantizing_keeps_layout_and_options(name):
    made = quantized(name, weight())
    again = made.requantize_from_float(weight())
    assert torch.equal(made, again)


@pytest.mark.parametrize("name", ["fp8", "nvfp4", "mxfp8", "int8-row", "int4-g32", "w4a4-convrot"])
def test_stochastic_rounding_goes_by_seed(name):
    made = quantized(name, weight())
    one, same, other = (
        made.requantize_from_float(weight(), stochastic_rounding=seed) for seed in (7, 7, 8)
    )
    assert torch.equal(one, same) and not torch.equal(one, other)


def test_a_scale_may_be_given_or_computed():
    w = weight()
    given = pestle.QuantizedTensor.from_float(w, "fp8", scale=0.5)
    assert given.params.scale == 0.5
    computed = pestle.QuantizedTensor.from_float(w, "fp8", scale="recalculate")
    assert torch.equal(computed, quantized("fp8", w))
    with pytest.raises(ValueError, match='scale is "all"'):
        pestle.QuantizedTensor.from_float(w, "fp8", scale="all")


def test_what_does_not_fit_a_layout_is_a_sentence():
    with pytest.raises(ValueError, match="requires 2D tensor, got 3D"):
        quantized("nvfp4", torch.randn(2, 16, 16))
    with pytest.raises(ValueError, match="not divisible by group_size"):
        quantized("int8-convrot", torch.randn(16, 100))
    params = q.TensorCoreFP8Layout.Params
    with pytest.raises(pestle.InvalidArgumentError, match=r"scale has dtype torch\.int32"):
        params(torch.ones((), dtype=torch.int32), torch.float32, (1, 1))
    with pytest.raises(NotImplementedError, match="offline"):
        pestle.QuantizedTensor.from_float(torch.randn(8, 64), "TensorCoreAWQW4A16Layout")
    wrong = quantized("fp8-row", weight())._rebuilt({"scale": torch.ones(95, 1)})
    with pytest.raises(pestle.InvalidArgumentError, match="scale"):
        torch.nn.functional.linear(weight(3), wrong)


def test_scales_are_f32_whatever_they_come_as():
    params = q.TensorCoreFP8Layout.Params(torch.ones((), dtype=torch.float16), torch.half, (1, 1))
    assert params.scale.dtype == torch.float32
    made = quantized("nvfp4", weight())
    as_bytes = made.params.block_scale.view(torch.uint8)
    again = type(made.params)(made.params.scale, torch.bfloat16, (96, 512), as_bytes)
    assert again.block_scale.dtype == torch.float8_e4m3fn


class Halved(q.QuantizedLayout):
    """A layout that knows no more than the two conversions."""

    @dataclass(frozen=True)
    class Params(q.BaseLayoutParams):
        pass

    @classmethod
    def quantize(cls, tensor):
        params = cls.Params(torch.tensor(2.0), tensor.dtype, tuple(tensor.shape))
        return (tensor / 2).half(), params

    @classmethod
    def dequantize(cls, qdata, params):
        return (qdata.float() * params.scale).to(params.orig_dtype)


def test_a_layout_of_others_decodes_until_it_has_handlers():
    pestle.register_layout_class("Halved", Halved)
    made = pestle.QuantizedTensor.from_float(torch.ones(4, 4), "Halved")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            found = torch.nn.functional.linear(torch.ones(1, 4), made)
    assert found.tolist() == [[4.0] * 4]
    (only,) = [w for w in caught if w.category is pestle.DecodeWarning]
    assert "aten.linear.default" in str(only.message) and "register_layout_op" in str(only.message)

    @pestle.register_layout_op(torch.ops.aten.linear.default, Halved)
    def linear(qt, args, kwargs):
        x, made, bias = (*args, None)[:3]
        return 2 * torch.nn.functional.linear(x, made._qdata.float(), bias)

    with nothing_decoded():
        assert torch.nn.functional.linear(torch.ones(1, 4), made).tolist() == [[4.0] * 4]


def test_subclasses_inherit_handlers_and_may_have_their_own():
    class Mine(q.TensorCoreNVFP4Layout):
        pass

    class Louder(Mine):
        pass

    for cls in (Mine, Louder):
        pestle.register_layout_class(cls.__name__, cls)
    x, w = weight(3), weight()
    made = pestle.QuantizedTensor.from_float(w, "Mine")
    expected = torch.nn.functional.linear(x, quantized("nvfp4", w))
    with nothing_decoded():
        assert torch.equal(torch.nn.functional.linear(x, made), expected)

    @pestle.register_layout_op(torch.ops.aten.linear.default, Louder)
    def linear(qt, args, kwargs):
        x, w = args[:2]
        return NotImplemented if x.shape[0] > 1 else torch.full((1, w.shape[0]), 7.0)

    loud = pestle.QuantizedTensor.from_float(w, "Louder")
    with nothing_decoded():
        assert torch.equal(torch.nn.functional.linear(x, loud), expected)
        assert torch.nn.functional.linear(x[:1], loud).unique().tolist() == [7.0]


def test_an_operator_without_a_handler_warns_once_and_raises_under_strict():
    made = quantized("mxfp4", weight())
    q._strict._WARNED.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert torch.equal(made.cos(), made.dequantize().cos())
        made.cos()
    assert len(caught) == 1 and "aten.cos.default" in str(caught[0].message)
    with pestle.strict(), pytest.raises(pestle.DecodedError, match=r"aten\.cos\.default.*MXFP4"):
        made.cos()
    assert issubclass(pestle.DecodedError, pestle.UnsupportedError)


def test_writing_into_a_quantised_tensor_is_refused_and_leaves_it_whole():
    made = quantized("fp8", weight())
    before = made.clone()
    with pytest.raises(pestle.UnsupportedError, match="requantize_from_float"):
        made.add_(1)
    with pytest.raises(TypeError, match="Cannot copy Tensor"):
        made.copy_(weight())
    with pytest.raises(TypeError, match="Layout mismatch"):
        made.copy_(quantized("nvfp4", weight()))
    assert torch.equal(made, before)


def test_svdquant_is_refused_in_words(monkeypatch):
    # In comfy-kitchen's place another layout has the name (pestle.compat).
    known, name = q.layout._LAYOUTS, "TensorCoreSVDQuantW4A4Layout"
    monkeypatch.setitem(known, name, q.TensorCoreSVDQuantW4A4Layout)
    params = q.TensorCoreSVDQuantW4A4Layout.Params(
        torch.ones(8, 64), torch.bfloat16, (64, 64), torch.ones(64, 4), torch.ones(64, 4),
        torch.ones(64),
    )  # fmt: skip
    made = pestle.QuantizedTensor(
        torch.zeros(64, 32, dtype=torch.int8), "TensorCoreSVDQuantW4A4Layout", params
    )
    with pytest.raises(pestle.UnsupportedError, match="low-rank"):
        torch.nn.functional.linear(torch.ones(1, 64), made)


def test_awq_multiplies_as_its_formula_says():
    generator = torch.Generator().manual_seed(3)
    codes = torch.randint(0, 16, (32, 128), generator=generator)
    packed = (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8).view(torch.int8)
    scale = torch.rand(2, 32, generator=generator) + 0.5
    zeros = torch.randn(2, 32, generator=generator)
    params = q.TensorCoreAWQW4A16Layout.Params(scale, torch.float32, (32, 128), zeros, 64)
    made = pestle.QuantizedTensor(packed, "TensorCoreAWQW4A16Layout", params)
    by_group = [t.t().repeat_interleave(64, 1) for t in (scale, zeros)]
    expected = (codes - 8) * by_group[0] + by_group[1]
    assert torch.allclose(made.dequantize(), expected)
    x = torch.randn(5, 128, generator=generator)
    with nothing_decoded():
        assert torch.allclose(torch.nn.functional.linear(x, made), x @ expected.t(), atol=1e-3)
        part = made[8:24, 64:]
    assert torch.allclose(part.dequantize(), expected[8:24, 64:])
