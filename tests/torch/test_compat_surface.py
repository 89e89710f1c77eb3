"""What comfy-kitchen 0.2.40 has beside quantisers and products: neighbourhood attention,
convolutions, SVDQuant, every form of W4A8, and the words of refusals. The results are its own eager
backend's, or a plain loop's."""

import importlib
import itertools

import pestle
import pestle.compat.comfy_kitchen as ours
import pytest
import torch
from cases import bits
from kitchen_cases import relative_error as relative
from torch.nn import functional

theirs = pytest.importorskip("comfy_kitchen")
pytestmark = pytest.mark.usefixtures("kitchen_eager")
OURS = "pestle.compat.comfy_kitchen"


# ---- which backend


def test_tensors_of_the_host_fall_to_eager_and_run_on_the_cpu_kernels():
    x, scale = torch.randn(8, 32), torch.tensor(0.5)
    values = {"x": x, "scale": scale, "output_type": torch.float8_e4m3fn}
    registry = ours.registry
    assert registry.get_capable_backend("quantize_per_tensor_fp8", values) == "eager"
    assert registry.helper("eager", "quantize_per_tensor_fp8", values) == "cpu"
    with ours.use_backend("eager"):
        assert registry.helper("eager", "quantize_per_tensor_fp8", values) is None
    ours.disable_backend("cpu")
    try:
        assert registry.helper("eager", "quantize_per_tensor_fp8", values) is None
    finally:
        ours.enable_backend("cpu")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        ours.quantize_per_tensor_fp8(x, scale)
    assert "pestle::quantize_fp8" in {event.key for event in profile.key_averages()}


def test_rules_of_gpus_want_rows():
    for backend in ("cuda", "triton"):
        rules = ours._serve.ADAPTERS["int8_linear"].constraints(backend)
        said = rules.params["x"].shape_rules[0].describe()
        assert said == "at least 2D"
    assert not ours._serve.ADAPTERS["int8_linear"].constraints("eager").params["x"].shape_rules


# ---- writing in place

IN_PLACE = ["apply_rope1_", "apply_rope_split_half1_", "rms_rope1_", "rms_rope_split_half1_"]


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_ropes_refuse_gradients(name):
    x = torch.randn(1, 1, 1, 64, requires_grad=True)
    weights = (torch.ones(64),) if "rms" in name else ()
    with pytest.raises(RuntimeError, match="inference-only"):
        getattr(ours, name)(x, torch.randn(1, 1, 1, 32, 2, 2), *weights)


def test_in_place_ropes_of_two_want_memory_of_their_own():
    freqs, weight = torch.randn(1, 8, 1, 32, 2, 2), torch.ones(64)
    packed = torch.randn(8, 192)
    q, k, v = (t.view(1, 8, 1, 64) for t in packed.clone().split(64, 1))
    want = ours.rms_rope(q, k, freqs, weight)
    kept = v.clone()
    got = ours.rms_rope_(q, k, freqs, weight)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True)) and torch.equal(v, kept)
    halves = packed[:, :64].view(1, 8, 1, 64), packed[:, 32:96].view(1, 8, 1, 64)
    with pytest.raises(ValueError, match="non-overlapping input storage"):
        ours.rms_rope_(*halves, freqs, weight)


def test_check_rope_inplace():
    check = importlib.import_module(f"{OURS}._rope_utils").check_rope_inplace
    storage = torch.empty(12)
    check(storage[:4], storage[4:8], readonly=(storage[8:],))
    check(torch.empty(0), torch.empty(0))
    with pytest.raises(ValueError, match="internal overlap"):
        check(torch.empty(1).expand(2))
    with pytest.raises(ValueError, match="must not overlap"):
        check(storage[:8], readonly=(storage[4:],))
    uneven = torch.empty(4096)  # no multiple of 130: not taken apart, though it could be
    a, b = (uneven.as_strided((3, 4, 20), (1000, 130, 1), at) for at in (0, 40))
    with pytest.raises(ValueError, match="non-overlapping"):
        check(a, b)


# ---- neighbourhood attention


def window(at: int, size: int, length: int, causal: bool) -> range:
    if causal:
        return range(max(0, at - size + 1), at + 1)
    size = min(size, length)
    first = min(max(at - size // 2, 0), length - size)
    return range(first, first + size)


def neighbourhood(q, k, v, sizes, causal):
    """One query at a time, in f64."""
    out = torch.empty(q.shape, dtype=torch.float64)
    dims = q.shape[1:4]
    for at in itertools.product(*map(range, dims)):
        seen = [list(window(*w)) for w in zip(at, sizes, dims, causal, strict=True)]
        keys, values = (
            x[:, seen[0]][:, :, seen[1]][:, :, :, seen[2]].flatten(1, 3).double() for x in (k, v)
        )
        scores = torch.einsum("bhd,bkhd->bhk", q[(slice(None), *at)].double(), keys)
        weights = (scores * q.shape[-1] ** -0.5).softmax(-1)
        out[(slice(None), *at)] = torch.einsum("bhk,bkhd->bhd", weights, values)
    return out


@pytest.mark.parametrize("causal", [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 2, 5), (9, 9, 9)], ids=str)
def test_na3d(sizes, causal, monkeypatch):
    q, k, v = torch.randn(3, 2, 3, 4, 7, 2, 8).unbind(0)
    causal = [bool(c) for c in causal]
    want = neighbourhood(q, k, v, sizes, causal)
    assert relative(ours.na3d(q, k, v, list(sizes), causal), want) < 1e-6
    monkeypatch.setattr(ours._attention, "_GATHERED", 1)  # a row at a time
    assert relative(ours.na3d(q, k, v, list(sizes), causal), want) < 1e-6


def test_na3d_takes_one_number_for_all_axes_and_na2d_a_frame():
    q, k, v = torch.randn(3, 1, 4, 5, 6, 2, 16).unbind(0)
    assert torch.equal(ours.na3d(q, k, v, 3, True), ours.na3d(q, k, v, [3] * 3, [True] * 3))
    frame = ours.na2d(q[:, 0], k[:, 0], v[:, 0], 3, scale=1.0)
    want = theirs.na2d(q[:, 0], k[:, 0], v[:, 0], 3, scale=1.0)
    assert relative(frame, want) < 1e-6


def test_na3d_refuses_in_words():
    q = torch.randn(1, 2, 3, 4, 1, 8)
    refused = ours.NoCapableBackendError
    for k, said in ((q[:, :1], "same shape as q"), (q.double().half(), "same dtype as q")):
        with pytest.raises(refused, match=said):
            ours.na3d(q, k, q, 3)
    for kernel, causal in (([3, 3], None), ([3, 3, 3], [False])):
        with pytest.raises(refused, match="must have 3 elements"):
            ours.na3d(q, q, q, kernel, causal)
    with pytest.raises(refused, match="entries must be positive"):
        ours.na3d(q, q, q, [3, 0, 3])
    with pytest.raises(ValueError, match="2 elements"):
        ours.na2d(q[:, 0], q[:, 0], q[:, 0], [3, 3, 3])


# ---- attention over Pestle's op


def test_int8_attention_is_attention():
    q, k, v = torch.randn(2, 4, 9, 32), torch.randn(2, 2, 13, 32), torch.randn(2, 2, 13, 32)
    mask = torch.rand(1, 1, 9, 13) > 0.3
    mask[..., 4, :] = False  # one query that sees nothing
    repeated = [x.repeat_interleave(2, 1) for x in (k, v)]
    want = functional.scaled_dot_product_attention(q, *repeated, attn_mask=mask, scale=0.2)
    got = ours.int8_attention(q, k, v, scale=0.2, attn_mask=mask)
    assert relative(got[:, :, :4], want[:, :, :4]) < 1e-5 and not got[:, :, 4].any()
    added = torch.randn(9, 13)
    want = functional.scaled_dot_product_attention(q, *repeated, attn_mask=added)
    assert relative(ours.int8_attention(q, k, v, attn_mask=added), want) < 1e-5
    with pytest.raises(TypeError):
        ours.int8_attention(q, k, v, is_causal=True)
    assert ours.int8_attention_is_available() == torch.cuda.is_available()
    assert not ours.int8_attention_is_available(torch.device("cpu"))


def test_flash_attention_decode_reads_a_cache():
    q, k, v = torch.randn(3, 1, 8, 64), torch.randn(3, 20, 2, 64), torch.randn(3, 20, 2, 64)
    lengths = torch.tensor([1, 7, 20], dtype=torch.int32)
    got = ours.flash_attention_decode(q, k, v, lengths)
    assert got.shape == q.shape and got.is_contiguous()
    for i, length in enumerate(lengths.tolist()):
        cut = (x[i : i + 1, :length].transpose(1, 2) for x in (k, v))
        keys, values = (x.repeat_interleave(4, 1) for x in cut)
        want = functional.scaled_dot_product_attention(q[i : i + 1].transpose(1, 2), keys, values)
        assert relative(got[i], want.transpose(1, 2)[0]) < 1e-5
    assert ours.flash_attention_decode_is_available() == torch.cuda.is_available()


@pytest.mark.parametrize("causal", [True, False])
def test_flash_attention_decode_gqa(causal):
    q, k, v = torch.randn(3, 8, 4, 64), torch.randn(3, 2, 20, 64), torch.randn(3, 2, 20, 64)
    lengths = torch.tensor([2, 7, 20], dtype=torch.int32)  # of 2 keys the first queries see none
    mine, other = (
        m.flash_attention_decode_gqa(q, k, v, lengths, return_lse=True, causal=causal)
        for m in (ours, theirs)
    )
    assert mine[0].shape == (3, 4, 512) and relative(mine[0], other[0]) < 1e-5
    torch.testing.assert_close(mine[1], other[1])
    alone = ours.flash_attention_decode_gqa(q, k, v, lengths, causal=causal)
    assert torch.equal(alone, mine[0])


# ---- convolutions


@pytest.mark.parametrize("stride", [1, 2, (1, 2, 1)])
def test_fp16_conv3d(stride):
    x, weight, bias = torch.randn(2, 4, 5, 6, 7), torch.randn(3, 4, 2, 3, 3), torch.randn(3)
    want = functional.conv3d(x, weight, bias, stride)
    residual = torch.randn_like(want)
    got = ours.fp16_conv3d(x, weight, bias, residual, stride)
    torch.testing.assert_close(got, theirs.fp16_conv3d(x, weight, bias, residual, stride))
    assert got.is_contiguous(memory_format=torch.channels_last_3d)
    out = torch.empty_like(want)
    assert ours.fp16_conv3d(x, weight, bias, residual, stride, out) is out
    torch.testing.assert_close(out, want + residual)
    with pytest.raises(ValueError, match="out must be"):
        ours.fp16_conv3d(x, weight, bias, residual, stride, out[:1])


# ---- SVDQuant


@pytest.mark.parametrize("unsigned", [False, True])
def test_svdquant(unsigned):
    x = torch.rand(5, 128) if unsigned else torch.randn(5, 128)
    smooth, down, up = torch.rand(128) + 0.5, torch.randn(128, 16), torch.randn(24, 16)
    how = {"pad_size": 8, "act_unsigned": unsigned}
    mine, other = (m.quantize_svdquant_w4a4(x, smooth, down, **how) for m in (ours, theirs))
    assert torch.equal(mine[0], other[0])
    for a, b in zip(mine[1:], other[1:], strict=True):
        torch.testing.assert_close(a, b)
    weight = torch.randint(-128, 128, (24, 64), dtype=torch.int8)
    scales, bias = torch.rand(2, 24), torch.randn(24)
    got, want = (
        m.scaled_mm_svdquant_w4a4(mine[0], weight, mine[1], scales, mine[2], up, bias, unsigned)
        for m in (ours, theirs)
    )
    assert relative(got, want) < 1e-6
    with pytest.raises(ValueError, match="not divisible by group_size"):
        ours.quantize_svdquant_w4a4(x[:, :96], smooth[:96], down[:96])


def test_svdquant_weights_in_tiles_are_the_same_weights():
    rows = torch.randint(-128, 128, (256, 64), dtype=torch.int8)
    tiles = rows.view(2, 32, 4, 2, 32).permute(0, 3, 1, 2, 4).reshape(2, 2, 32, 128)
    assert torch.equal(ours._svdquant.weight_rows(tiles), rows)
    scales = torch.rand(256, 2)
    assert torch.equal(ours._svdquant.of_rows(scales.view(2, 128, 2).mT.contiguous()), scales)


def svdquant(n: int, smooth, down, seed: int, tensor=ours.tensor, unsigned=False):
    make = torch.Generator().manual_seed(seed)
    codes = torch.randint(-128, 128, (n, 64), dtype=torch.int8, generator=make)
    params = tensor.TensorCoreSVDQuantW4A4Layout.Params(
        scale=torch.rand(2, n, generator=make), orig_dtype=torch.float32, orig_shape=(n, 128),
        proj_down=down, proj_up=torch.randn(n, 16, generator=make) * 0.1, smooth_factor=smooth,
        act_unsigned=unsigned,
    )  # fmt: skip
    return tensor.QuantizedTensor(codes, "TensorCoreSVDQuantW4A4Layout", params)


@pytest.mark.parametrize("unsigned", [False, True])
def test_svdquant_linear(unsigned):
    x, smooth, down = torch.rand(2, 3, 128), torch.rand(128) + 0.5, torch.randn(128, 16) * 0.1
    weight = svdquant(32, smooth, down, 1, unsigned=unsigned)
    other = svdquant(32, smooth, down, 1, theirs.tensor, unsigned)
    bias = torch.randn(32)
    got, want = (functional.linear(x, w, bias) for w in (weight, other))
    assert relative(got, want) < 1e-5
    exact = weight.dequantize()
    shift = 0.171875 if unsigned else 0.0
    low_rank = weight._params.proj_up @ down.T
    near = x @ exact.T + shift * (exact - low_rank).sum(1) + bias
    assert relative(got, near) < 0.2  # x has 4 bits


def test_svdquant_projections_that_share_their_input():
    x, smooth, down = torch.randn(2, 3, 128), torch.rand(128) + 0.5, torch.randn(128, 16) * 0.1
    weights = [svdquant(n, smooth.clone(), down.clone(), n) for n in (32, 64)]
    biases = [torch.randn(32), None]
    t = ours.tensor
    assert not t.svdquant_w4a4_can_share_quant(weights)
    assert t.svdquant_w4a4_can_share_quant(weights, validate=True)
    assert t.svdquant_w4a4_can_share_quant(weights, trust=True)
    other = svdquant(32, smooth + 1, down, 1)
    assert not t.svdquant_w4a4_can_share_quant([*weights, other], validate=True)
    assert not t.svdquant_w4a4_can_share_quant([torch.ones(2, 2)], validate=True)
    want = [functional.linear(x, w, b) for w, b in zip(weights, biases, strict=True)]
    grouped = t.svdquant_w4a4_grouped_linear(x, weights, biases, validate_shared_quant=True)
    fused = t.svdquant_w4a4_fuse_linear_weights(weights, biases, assume_shared_quant=True)
    assert fused[0].shape == (96, 128) and fused[2] == (32, 64)
    split = t.svdquant_w4a4_fused_grouped_linear(x, *fused)
    for a, b, c in zip(grouped, split, want, strict=True):
        torch.testing.assert_close(a, c)
        torch.testing.assert_close(b, c)
    with pytest.raises(ValueError, match="do not share"):
        t.svdquant_w4a4_grouped_linear(x, weights)
    with pytest.raises(ValueError, match="2 weights but 1 biases"):
        t.svdquant_w4a4_grouped_linear(x, weights, [None])


# ---- W4A8 in other forms

FORMS = {
    "groups of 32": {"group_size": 32},
    "groups of 8": {"group_size": 8},
    "f32 scales": {"scale_dtype": torch.float32},
    "no codebook": {"codebook": False},
    "asymmetric": {"symmetric": False},
    "6 bits": {"bits": 6},
    "6 bits, groups of 64": {"bits": 6, "group_size": 64},
    "6 bits, f32 scales": {"bits": 6, "scale_dtype": torch.float32},
    "6 bits, scales not searched": {"bits": 6, "scale_search": False},
}


def a_weight(rows=48, columns=512) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(3)) * 0.02


@pytest.mark.parametrize("form", FORMS)
def test_w4a8_in_other_forms(form):
    w = a_weight()
    how = FORMS[form]
    mine, other = (m.quantize_w4a8_int8_weight(w, **how) for m in (ours, theirs))
    for a, b in zip(mine, other, strict=True):
        assert (a is None) == (b is None)
        assert a is None or (a.shape, a.dtype) == (b.shape, b.dtype)
    size = {"group_size": how.get("group_size", 16)}

    def decoded(library, made):
        q, rel, channel, correction, table = made
        rest = {"codebook": table, "correction": correction, "output_dtype": torch.float32}
        return library.dequantize_w4a8_int8_weight(q, rel, channel, **rest, **size)

    # Either reads what the other wrote, and neither's is the worse one.
    assert relative(decoded(ours, other), decoded(theirs, other)) < 1e-5
    assert relative(decoded(ours, mine), decoded(theirs, mine)) < 1e-5
    assert relative(decoded(ours, mine), w) < 1.01 * relative(decoded(theirs, other), w)
    x = torch.randn(3, 512)
    q, rel, channel, correction, table = mine
    out = ours.w4a8_int8_linear(
        x, q, rel, channel, table, correction, out_dtype=torch.float32, **size
    )
    assert relative(out, x @ decoded(ours, mine).T) < 1e-5


def test_w4a8_codes_and_integers():
    module = importlib.import_module("comfy_kitchen.backends.eager.w4a8_int8")
    mine = importlib.import_module(f"{OURS}.backends.eager.w4a8_int8")
    for bits_of, columns in ((4, 64), (6, 64)):
        codes = torch.randint(0, 1 << bits_of, (5, columns))
        packed = mine._pack_codes(codes, bits_of)
        assert torch.equal(packed, module._pack_codes(codes.int(), bits_of))
        assert torch.equal(mine._unpack_codes(packed, columns, bits_of), codes.int())
        rel = (torch.rand(5, columns // 16) * 40).to(torch.float8_e4m3fn)
        got, want = (m._dequant_int4_grouped_to_int8(packed, rel, None, 16) for m in (mine, module))
        assert torch.equal(got, want)


def test_w4a8_rounds_by_a_seed():
    w = a_weight()
    once, again, other = (
        ours.quantize_w4a8_int8_weight(w, stochastic_rounding=seed)[0] for seed in (5, 5, 6)
    )
    assert torch.equal(once, again) and not torch.equal(once, other)
    sums = torch.zeros_like(w)
    for seed in range(1, 65):
        q, rel, channel, _, table = ours.quantize_w4a8_int8_weight(w, stochastic_rounding=seed)
        how = {"codebook": table, "output_dtype": torch.float32}
        sums += ours.dequantize_w4a8_int8_weight(q, rel, channel, **how)
    # What one rounding loses, many don't: the mean comes nearer than the nearest codes.
    q, rel, channel, _, table = ours.quantize_w4a8_int8_weight(w)
    nearest = ours.dequantize_w4a8_int8_weight(q, rel, channel, table, output_dtype=torch.float32)
    assert relative(sums / 64, w) < 0.5 * relative(nearest, w)


@pytest.mark.parametrize("keywords, said", [
    ({"bits": 5}, "bits must be 4 or 6"),
    ({"bits": 6, "symmetric": False}, "symmetric"),
    ({"group_size": 24}, "must be divisible by"),
    ({"scale_dtype": torch.float16}, "scale_dtype must be float32 or float8_e4m3fn"),
    ({"convrot_groupsize": 1024}, "must be divisible by"),
])  # fmt: skip
def test_w4a8_refuses_in_words(keywords, said):
    with pytest.raises(ValueError, match=said):
        ours.quantize_w4a8_int8_weight(a_weight(), **keywords)


def test_w4a8_tensors_that_do_not_fit_are_refused():
    q, rel, channel, _, table = ours.quantize_w4a8_int8_weight(a_weight())
    call = ours.dequantize_w4a8_int8_weight
    for bad in ((q[:, 1:], rel, channel), (q, rel, channel[1:]), (q.view(-1), rel, channel)):
        with pytest.raises((ValueError, ours.NoCapableBackendError)):
            call(*bad, codebook=table, backend="eager")
    with pytest.raises(ValueError, match="codebook must have shape"):
        call(q, rel, channel, table[1:], backend="eager")


@pytest.mark.parametrize("form", FORMS)
def test_w4a8_layout_in_other_forms(form):
    w, how = a_weight(), FORMS[form]
    mine, other = (
        m.tensor.QuantizedTensor.from_float(w, "AsymW4A8Int8Layout", **how) for m in (ours, theirs)
    )
    assert mine.storage_shape == other.storage_shape and mine.shape == other.shape
    assert mine.padded_shape == (48, 512) and not mine.is_padded
    stored, others = mine.state_dict("w"), other.state_dict("w")
    assert {n: (t.shape, t.dtype) for n, t in stored.items()} == {
        n: (t.shape, t.dtype) for n, t in others.items()
    }
    layout = ours.tensor.AsymW4A8Int8Layout
    assert layout.bits(mine) == how.get("bits", 4)
    kept = theirs.tensor.AsymW4A8Int8Layout.requantize_kwargs(other)
    for name, value in layout.requantize_kwargs(mine).items():
        assert isinstance(value, torch.Tensor) or value == kept[name], name
    x = torch.randn(5, 512)
    exact = x @ mine.dequantize().T
    assert relative(functional.linear(x, mine), exact) < 1e-5
    assert relative(torch.mm(x, mine.t()), exact) < 1e-5
    again = mine.requantize_from_float(w, stochastic_rounding=3)
    assert again.storage_shape == mine.storage_shape
    assert relative(again.dequantize(), w) < 1.6 * relative(mine.dequantize(), w)
    row = mine[4:8].dequantize()
    assert torch.equal(bits(row), bits(mine.dequantize()[4:8]))


# ---- words


def test_an_activation_that_is_not_known():
    x, w, scale = torch.randn(4, 64), torch.ones(8, 64, dtype=torch.int8), torch.tensor(0.1)
    for convrot in (False, True):
        with pytest.raises(ValueError, match="unsupported input_act"):
            ours.int8_linear(x, w, scale, convrot=convrot, convrot_groupsize=64, input_act="silu")


def test_prequantised_attention_wants_a_gpu():
    part = torch.empty(1)
    made = ours.PrequantizedInt8Attention(
        *[part] * 6, original_head_dim=64, input_dtype=torch.float16, attention_scale=0.1, cta_k=64,
        attn_mask=None,
    )  # fmt: skip
    with pytest.raises(ValueError, match="CUDA device"):
        ours.int8_attention_from_prequantized(made)


def test_a_cache_for_decoding_is_refused_in_words():
    module = importlib.import_module(f"{OURS}.int8_decode")
    assert module.is_available() is False
    with pytest.raises(ours.NoCapableBackendError, match="in their own precision"):
        module.Int8DecodeCache(1, 1, 512, "cpu")


# ---- W4A8 in records


@pytest.fixture(params=[4, 6])
def records(request):
    """Rows, columns, records of codes and scales, and the codebook."""
    n, k = 48, 512
    size = ours.tensor.w4a8_packed.w4a8_mma_record_bytes(request.param)
    packed = torch.randint(0, 256, (n // 16, k // 32, size), dtype=torch.uint8)
    packed[..., -32:] = torch.randint(1, 100, (n // 16, k // 32, 32))
    table = ours.tensor.w4a8_packed.default_w4a8_codebook() if request.param == 4 else None
    return n, k, packed.flatten().view(torch.int8), table


def test_records_of_w4a8_are_rows_of_another_order(records):
    n, k, packed, _ = records
    mine, other = (importlib.import_module(f"{m}.tensor.w4a8_packed")
                   for m in (OURS, "comfy_kitchen"))  # fmt: skip
    got, want = (m.unpack_w4a8_mma_weight(packed, n, k) for m in (mine, other))
    assert all(torch.equal(bits(a), bits(b)) for a, b in zip(got, want, strict=True))
    for count, rows, wrong in ((16, n, "are no records"), (0, n - 8, "needs N % 16")):
        with pytest.raises(ValueError, match=wrong):
            mine.unpack_w4a8_mma_weight(packed[count:], rows, k)
    with pytest.raises(ValueError, match="1D int8"):
        mine.unpack_w4a8_mma_weight(packed.view(n, -1), n, k)


def test_products_with_records_of_w4a8(records):
    n, k, packed, table = records
    x, channel, none = torch.randn(5, k), torch.rand(n), torch.empty(0, dtype=torch.float8_e4m3fn)
    residual, by = torch.randn(5, n), torch.rand(n)
    how = {"codebook": table, "out_dtype": torch.float32, "residual": residual,
           "residual_scale": by}  # fmt: skip
    rows = ours.tensor.w4a8_packed.unpack_w4a8_mma_weight(packed, n, k)
    got = ours.w4a8_int8_linear(x, packed, none, channel, mma_packed=True, **how)
    want = ours.w4a8_int8_linear(x, *rows, channel, **how)
    assert relative(got, want) < 1e-6
    other = theirs.w4a8_int8_linear(x, packed, none, channel, mma_packed=True, **how)
    assert relative(got, other) < 0.02  # x in INT8 there


def test_a_layout_of_records_of_w4a8(records):
    n, k, packed, table = records
    none = torch.empty(0, dtype=torch.float8_e4m3fn)
    params = {"scale": none, "orig_dtype": torch.float32, "orig_shape": (n, k),
              "s_channel": torch.rand(n), "codebook": table, "mma_packed": True}  # fmt: skip
    mine, other = (
        m.tensor.QuantizedTensor(packed, "AsymW4A8Int8Layout",
                                 m.tensor.AsymW4A8Int8Layout.Params(**params))
        for m in (ours, theirs)
    )  # fmt: skip
    decoded = mine.dequantize()
    assert relative(decoded, other.dequantize()) < 1e-6
    assert torch.equal(mine.t().dequantize(), decoded.t())
    layout = ours.tensor.AsymW4A8Int8Layout
    assert layout.bits(mine) == theirs.tensor.AsymW4A8Int8Layout.bits(other)
    assert mine.shape == mine.padded_shape == (n, k)
    x = torch.randn(5, k)
    assert relative(functional.linear(x, mine), x @ decoded.t()) < 1e-6
    assert relative(layout.linear_input_act(mine, x), x @ decoded.t()) < 1e-6
    assert torch.equal(mine[8:24].dequantize(), decoded[8:24])
    for tensor in (mine, other):
        with pytest.raises(ValueError):
            tensor.state_dict("weight")


# ---- beside the installed one: its weights are multiplied as they are


@pytest.fixture
def beside():
    order = list(theirs.registry._priority)
    pestle.compat.install()
    yield
    pestle.compat.uninstall()
    theirs.set_backend_priority(order)


def ran(call) -> tuple[torch.Tensor, set[str]]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        made = call()
    return made, {event.key for event in profile.key_averages()}


PRODUCTS = {"TensorCoreFP8Layout": "linear_fp8", "TensorCoreNVFP4Layout": "linear_nvfp4",
            "TensorCoreMXFP8Layout": "linear_mxfp8"}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_install_multiplies_their_weights_without_decoding(beside, name, monkeypatch):
    class Mine(getattr(theirs.tensor, name)):
        """A layout that others register, as ComfyUI does."""

        @classmethod
        def dequantize(cls, qdata, params):
            raise AssertionError("the weight was decoded")

    exact = theirs.tensor.QuantizedTensor.from_float(a_weight(40, 80), name)
    values = exact.dequantize().double()
    monkeypatch.setitem(theirs.tensor.base.LAYOUTS, "Mine", Mine)
    weight = theirs.tensor.QuantizedTensor(exact._qdata, "Mine", exact._params)
    x, bias = torch.randn(2, 3, 80), torch.randn(40)
    with torch.inference_mode():
        found, names = ran(lambda: functional.linear(x, weight, bias))
        assert f"pestle::{PRODUCTS[name]}" in names
        assert relative(found, x.double() @ values.T + bias.double()) < 1e-5
    if name == "TensorCoreFP8Layout":  # whose t() keeps the layout; not in inference mode
        with torch.no_grad():
            assert relative(torch.mm(x[0], weight.t()), x[0].double() @ values.T) < 1e-5
            made = torch.addmm(bias, x[0], weight.t())
            assert relative(made, x[0].double() @ values.T + bias.double()) < 1e-5
    pestle.compat.uninstall()
    with torch.inference_mode(), pytest.raises(AssertionError, match="was decoded"):
        functional.linear(x, weight, bias)


@pytest.mark.parametrize("name", PRODUCTS)
def test_what_install_does_not_take_goes_the_old_way(beside, name):
    w = theirs.tensor.QuantizedTensor.from_float(a_weight(48, 64), name)
    x = torch.randn(16, 64)
    both = functional.linear(theirs.tensor.QuantizedTensor.from_float(x, name), w)
    values = w.dequantize()
    assert relative(both, x @ values.T) < 0.2
    assert (
        relative(torch.mm(torch.randn(3, 48).sign(), w), torch.ones(3, 64)) > 0
    )  # [N, K] as it is


def test_install_tells_comfyui_what_the_gpu_can_do(beside, monkeypatch):
    import sys
    import types

    from pestle.compat import _stop_decoding

    management, quants = types.ModuleType("m"), types.ModuleType("q")
    management.supports_nvfp4_compute = lambda device=None: False
    management.supports_mxfp8_compute = lambda device=None: device is None  # a GPU that has units
    management.get_disabled_quant_formats = lambda device=None: {"nvfp4", "float8_e4m3fn"}
    quants.QUANT_ALGOS = {"nvfp4": {"group_size": 16}, "mxfp8": {"group_size": 32}}
    before = dict(vars(management))
    monkeypatch.setitem(sys.modules, "comfy.model_management", management)
    monkeypatch.setitem(sys.modules, "comfy.quant_ops", quants)
    monkeypatch.setattr(_stop_decoding, "_multiplies", lambda device: str(device) != "cpu")
    pestle.compat.uninstall()
    pestle.compat.install()
    try:
        assert management.supports_nvfp4_compute() and management.supports_nvfp4_compute("cuda")
        assert not management.supports_nvfp4_compute("cpu")
        assert management.get_disabled_quant_formats("cuda") == {"float8_e4m3fn"}
        assert management.get_disabled_quant_formats("cpu") == {"nvfp4", "float8_e4m3fn"}
        assert quants.QUANT_ALGOS["nvfp4"]["quantize_input"] is False
        assert "quantize_input" not in quants.QUANT_ALGOS["mxfp8"]
    finally:
        pestle.compat.uninstall()
    assert dict(vars(management)) == before
    assert quants.QUANT_ALGOS == {"nvfp4": {"group_size": 16}, "mxfp8": {"group_size": 32}}
