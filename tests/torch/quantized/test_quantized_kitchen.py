"""comfy_kitchen.tensor, in the place of comfy-kitchen 0.2.40: names, layouts, codes and values."""

import dataclasses
import inspect

import comfy_kitchen.tensor as theirs
import pestle
import pestle.compat.comfy_kitchen.tensor as ours
import pytest
import torch
from pestle.compat import comfy_kitchen as ck
from quantized_cases import nothing_decoded, relative, weight

LAYOUTS = ["TensorCoreFP8Layout", "TensorCoreNVFP4Layout", "TensorCoreMXFP8Layout",
           "TensorWiseINT8Layout", "TensorCoreConvRotW4A4Layout", "AsymW4A8Int8Layout",
           "TensorCoreSVDQuantW4A4Layout", "TensorCoreAWQW4A16Layout"]  # fmt: skip


def names(function) -> list[str]:
    return [p for p in inspect.signature(function).parameters if p not in ("self", "kwargs")]


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_have_their_names_and_fields(name):
    mine, other = getattr(ours, name), getattr(theirs, name)
    assert ours.get_layout_class(name) is mine and issubclass(mine, ours.QuantizedLayout)
    fields = [[f.name for f in dataclasses.fields(cls.Params)] for cls in (mine, other)]
    assert fields[0][: len(fields[1])] == fields[1]
    public = [n for n in vars(other) if not n.startswith("_") and n != "Params"]
    assert not [n for n in public if not hasattr(mine, n)]
    assert mine.MIN_SM_VERSION == other.MIN_SM_VERSION
    assert getattr(mine, "QUANTIZES_INPUT", True) == getattr(other, "QUANTIZES_INPUT", True)
    assert set(mine.get_requirements()) == set(other.get_requirements())
    assert not set(names(other.quantize)) - set(names(mine.quantize)) - {"tensor"} or name.endswith(
        ("SVDQuantW4A4Layout", "AWQW4A16Layout")
    )


def test_the_tensor_has_their_methods():
    public = [n for n in vars(theirs.QuantizedTensor) if not n.startswith("_")]
    assert not [n for n in public if n not in vars(ours.QuantizedTensor)]
    for name in ("requantize_from_float", "state_dict", "dequantize", "linear_input_act"):
        mine, other = (getattr(m.QuantizedTensor, name) for m in (ours, theirs))
        assert [n for n in names(mine) if n != "options"] == names(other), name


MADE = {
    "fp8": ("TensorCoreFP8Layout", {}),
    "nvfp4": ("TensorCoreNVFP4Layout", {}),
    "mxfp8": ("TensorCoreMXFP8Layout", {}),
    "int8": ("TensorWiseINT8Layout", {}),
    "int8-row": ("TensorWiseINT8Layout", {"per_channel": True}),
    "int8-convrot": ("TensorWiseINT8Layout", {"per_channel": True, "convrot": True}),
    "int8 activations": ("TensorWiseINT8Layout", {"is_weight": False}),
    "w4a4": ("TensorCoreConvRotW4A4Layout", {}),
}


@pytest.mark.parametrize("case", MADE)
def test_tensors_are_stored_alike_and_decode_to_the_same(case):
    name, options = MADE[case]
    w = weight(64, dtype=torch.float32)
    mine, other = (m.QuantizedTensor.from_float(w, name, **options) for m in (ours, theirs))
    assert mine.shape == other.shape and mine.storage_shape == other.storage_shape
    assert mine.storage_dtype == other.storage_dtype and mine.nbytes == other.nbytes
    if case != "w4a4":  # two codes lie in a byte, which theirs does not count
        assert mine.padded_shape == other.padded_shape and mine.is_padded == other.is_padded
    plain = [[t.dtype for t in m.layout_cls.get_plain_tensors(m)] for m in (mine, other)]
    assert plain[0] == plain[1]
    stored, others = mine.state_dict("w"), other.state_dict("w")
    assert stored.keys() == others.keys()
    for key, tensor in stored.items():
        assert tensor.dtype == others[key].dtype, key
        assert tensor.numel() == others[key].numel(), key
    assert relative(mine.dequantize(), other.dequantize()) < 2e-3
    assert mine.requantize_from_float(w, scale="recalculate", inplace_ops=True).equal(mine)


def test_a_subclass_that_quantises_by_fewer_options_requantises():
    """ComfyUI's FP8 takes no dtype; it requantises a weight behind each LoRA."""

    class Fewer(ours.TensorCoreFP8Layout):
        @classmethod
        def quantize(cls, tensor, scale=None, stochastic_rounding=0, inplace_ops=False):
            return super().quantize(tensor, scale=scale, stochastic_rounding=stochastic_rounding)

    ours.register_layout_class("TestFewerOptions", Fewer)
    w = weight(64, dtype=torch.float32)
    made = ours.QuantizedTensor.from_float(w, "TestFewerOptions")
    again = made.requantize_from_float(w, scale="recalculate", inplace_ops=True)
    assert again._layout_cls == "TestFewerOptions" and again.equal(made)


@pytest.mark.parametrize("case", [c for c in MADE if c != "int8 activations"])
def test_linears_agree(case):
    name, options = MADE[case]
    w, x = weight(64, dtype=torch.float32), weight(8, seed=1, dtype=torch.float32)
    bias = torch.linspace(-2, 2, 64)
    mine, other = (m.QuantizedTensor.from_float(w, name, **options) for m in (ours, theirs))
    with torch.inference_mode(), nothing_decoded():
        found = torch.nn.functional.linear(x, mine, bias)
    with torch.inference_mode():
        expected = torch.nn.functional.linear(x, other, bias)
    assert relative(found, expected) < (0.2 if case == "w4a4" else 0.01)


def test_int8_linears_quantise_x_as_theirs_do():
    w, x = weight(64, dtype=torch.float32), weight(8, seed=1, dtype=torch.float32)
    made = ours.QuantizedTensor.from_float(w, "TensorWiseINT8Layout", per_channel=True)
    expected = ck.int8_linear(x, made._qdata, made._params.scale, None, x.dtype)
    assert relative(torch.nn.functional.linear(x, made), expected) < 1e-6
    gelu = made.linear_input_act(x, input_act="gelu_tanh")
    expected = ck.int8_linear(
        x, made._qdata, made._params.scale, None, x.dtype, input_act="gelu_tanh"
    )
    assert torch.equal(gelu, expected)
    assert pestle.QuantizedTensor.from_float(w, "int8-row").params.activations == "float"


def test_what_callers_do_with_layouts_of_their_own():
    """As ComfyUI does: subclasses under the same names, Params by hand, copies in one buffer."""
    before = {name: ours.get_layout_class(name) for name in LAYOUTS}

    class TensorCoreNVFP4Layout(ours.TensorCoreNVFP4Layout):
        @classmethod
        def quantize(cls, tensor, scale=None, stochastic_rounding=0, inplace_ops=False):
            shape = tuple(tensor.shape)
            scale = tensor.abs().amax().float() / 2688 if scale is None else scale
            pad = cls.get_padded_shape(shape) != shape
            codes, blocks = ck.quantize_nvfp4(tensor, scale, pad_16x=pad)
            values = {"orig_dtype": tensor.dtype, "orig_shape": shape, "block_scale": blocks}
            return codes, cls.Params(scale=scale, **values)

    ours.register_layout_class("TensorCoreNVFP4Layout", TensorCoreNVFP4Layout)
    try:
        w, x = weight(40, 80), weight(6, 80, seed=1)
        made = ours.QuantizedTensor.from_float(w, "TensorCoreNVFP4Layout")
        held = torch.nn.Parameter(made, requires_grad=False)
        quantised = ours.QuantizedTensor.from_float(x, "TensorCoreNVFP4Layout")
        with torch.inference_mode(), nothing_decoded():
            both = torch.nn.functional.linear(quantised, held, torch.ones(40))
            other = torch.nn.functional.linear(x, held.to(dtype=torch.bfloat16), torch.ones(40))
        exact = quantised.dequantize().double() @ made.dequantize().double().t() + 1
        assert relative(both, exact) < 5e-3 and relative(other, exact) < 0.2

        inner, context = made.__tensor_flatten__()
        sizes = {name: getattr(made, name).nbytes for name in inner}
        buffer, offset, views = torch.empty(sum(sizes.values()), dtype=torch.uint8), 0, {}
        for name in inner:
            part = getattr(made, name)
            views[name] = buffer[offset : offset + part.nbytes].view(part.dtype).view(part.shape)
            offset += part.nbytes
        copied = ours.QuantizedTensor.__tensor_unflatten__(views, context, 0, 0)
        copied._qdata.copy_(made._qdata)
        copied._params.copy_from(made._params)
        assert torch.equal(copied, made) and copied.layout_cls is TensorCoreNVFP4Layout
    finally:
        for name, layout in before.items():
            ours.register_layout_class(name, layout)


def test_a_batch_of_experts_is_indexed_by_hand():
    experts = [ours.QuantizedTensor.from_float(weight(32, 64, seed=i), "TensorCoreNVFP4Layout")
               for i in range(3)]  # fmt: skip
    params = ours.TensorCoreNVFP4Layout.Params(
        scale=torch.stack([e._params.scale for e in experts]), orig_dtype=torch.bfloat16,
        orig_shape=(3, 32, 64), block_scale=torch.stack([e._params.block_scale for e in experts]),
    )  # fmt: skip
    codes = torch.stack([e._qdata for e in experts])
    bank = ours.QuantizedTensor(codes, "TensorCoreNVFP4Layout", params)
    with nothing_decoded():
        one = bank[1]
    assert torch.equal(one, experts[1])
    assert torch.equal(bank.dequantize(), torch.stack([e.dequantize() for e in experts]))


def test_svdquant_helpers_say_what_is_wrong():
    with pytest.raises(ValueError, match="at least one weight"):
        ours.svdquant_w4a4_fuse_linear_weights([])
    with pytest.raises(ValueError, match="got 1 weights but 2 biases"):
        ours.svdquant_w4a4_grouped_linear(torch.ones(1, 64), [torch.ones(8, 64)], [None, None])
    with pytest.raises(TypeError, match="fused_weight"):
        ours.svdquant_w4a4_fused_grouped_linear(torch.ones(1, 64), torch.ones(8, 64), None, [8])
    with pytest.raises(ValueError, match="do not share"):
        ours.svdquant_w4a4_fuse_linear_weights([torch.ones(8, 64)])


def test_modules_are_there_by_their_names():
    from pestle.compat.comfy_kitchen import (
        backends,
        flash_attention,
        gated_delta,
        sage_attention,
        scaled_mm_v2,
    )

    assert flash_attention.is_available() == torch.cuda.is_available()
    assert sage_attention.is_available() == torch.cuda.is_available()
    assert not gated_delta.is_available() and gated_delta.SLOT_MAX == 8
    x = weight(32, 64)
    found, expected = backends.eager.quantize_mxfp8(x), ck.quantize_mxfp8(x, backend="eager")
    assert torch.equal(found[0].view(torch.uint8), expected[0].view(torch.uint8))
    a, b = (pestle.QuantizedTensor.from_float(weight(32, 64, seed=i), "fp8") for i in range(2))
    scales = (a.params.scale, b.params.scale)
    product = scaled_mm_v2.scaled_mm_v2(a._qdata, b._qdata.t(), *scales)
    assert relative(product, a.dequantize().double() @ b.dequantize().double().t()) < 5e-3
