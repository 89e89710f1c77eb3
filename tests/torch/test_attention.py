"""scaled_dot_product_attention beside torch's own, and attention on data that makes the online
softmax rescale, against float64."""

import math

import pestle
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

SDPA = pestle.scaled_dot_product_attention


def random(*shape: int, dtype=torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def qkv(q: tuple, v: tuple, dtype=torch.float32) -> list[Tensor]:
    k = (*v[:-1], q[-1])
    return [
        random(*q, dtype=dtype),
        random(*k, dtype=dtype, seed=1),
        random(*v, dtype=dtype, seed=2),
    ]


CALLS = {
    "plain": (((2, 3, 17, 32), (2, 3, 40, 32)), {}),
    "causal": (((2, 3, 17, 32), (2, 3, 40, 32)), {"is_causal": True}),
    "causal_tall": (((1, 2, 70, 16), (1, 2, 33, 16)), {"is_causal": True}),
    "scale": (((1, 2, 9, 16), (1, 2, 12, 16)), {"scale": 0.7}),
    "scale_0": (((1, 2, 9, 16), (1, 2, 12, 16)), {"scale": 0.0}),
    "gqa": (((2, 8, 9, 16), (2, 2, 12, 16)), {"enable_gqa": True}),
    "three_dims": (((5, 9, 16), (5, 12, 16)), {"is_causal": True}),
    "two_dims": (((9, 16), (12, 16)), {}),
    "five_dims": (((2, 3, 2, 9, 16), (2, 3, 2, 12, 16)), {}),
    "batches_broadcast": (((4, 2, 9, 16), (1, 2, 12, 16)), {}),
    "float_mask": (((2, 3, 9, 16), (2, 3, 12, 16)), {"attn_mask": random(2, 1, 9, 12)}),
    "bool_mask": (((2, 3, 9, 16), (2, 3, 12, 16)), {"attn_mask": random(9, 12) > -0.5}),
    "hidden_queries": (
        ((2, 3, 9, 16), (2, 3, 12, 16)),
        {"attn_mask": torch.arange(9)[:, None] > 4},
    ),
    "minus_infinity": (
        ((1, 2, 9, 16), (1, 2, 12, 16)),
        {"attn_mask": torch.where(random(9, 12) > 0, 0.5, -torch.inf)},
    ),
    "mask_of_keys": (((2, 3, 9, 16), (2, 3, 12, 16)), {"attn_mask": random(2, 1, 1, 12)}),
    "mask_of_queries": (
        ((2, 4, 9, 16), (2, 2, 12, 16)),
        {"attn_mask": random(4, 9, 1), "enable_gqa": True},
    ),
    "other_value_size": (((2, 3, 9, 16), (2, 3, 12, 24)), {}),
    "mask_of_five": (((2, 3, 2, 9, 16), (2, 3, 2, 12, 16)), {"attn_mask": random(3, 1, 1, 12)}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CALLS)
def test_as_torch(name, dtype):
    shapes, options = CALLS[name]
    tensors = qkv(*shapes, dtype)
    got = SDPA(*tensors, **options)
    wide = {k: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v
            for k, v in options.items()}  # fmt: skip
    want = F.scaled_dot_product_attention(*(t.double() for t in tensors), **wide)
    assert (got.shape, got.dtype) == (want.shape, dtype)
    limit = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype]
    assert (got.double() - want).abs().max() < limit


@pytest.mark.parametrize("name", [n for n in CALLS if n != "batches_broadcast"])
def test_gradients_as_torch(name):
    shapes, options = CALLS[name]
    options = dict(options)
    ours = [t.requires_grad_() for t in qkv(*shapes)]
    theirs = [t.detach().double().requires_grad_() for t in ours]
    wide = dict(options)
    mask = options.get("attn_mask")
    if mask is not None and mask.is_floating_point():
        options["attn_mask"] = mask.clone().requires_grad_()
        wide["attn_mask"] = mask.double().requires_grad_()
        ours.append(options["attn_mask"])
        theirs.append(wide["attn_mask"])
    got = SDPA(*ours[:3], **options)
    want = F.scaled_dot_product_attention(*theirs[:3], **wide)
    weights = random(*got.shape, seed=5)
    made = torch.autograd.grad(got, ours, weights)
    for mine, right in zip(made, torch.autograd.grad(want, theirs, weights.double()), strict=True):
        assert mine.shape == right.shape
        assert (mine.double() - right).abs().max() <= 1e-5 * max(1, right.abs().max())


def test_one_forward_in_a_training_step(monkeypatch):
    """The backward op is all that a backward calls, and d_mask is made only where it is wanted."""
    called = []
    function = pestle._functions.function

    def watched(name):
        made = function(name)

        def call(*args, **kwargs):
            called.append((name, kwargs.get("mask_gradient")))
            return made(*args, **kwargs)

        return call

    monkeypatch.setattr(pestle._functions, "function", watched)
    monkeypatch.setattr(pestle, "attention", watched("attention"))
    q, k, v = (t.requires_grad_() for t in qkv((1, 2, 9, 16), (1, 2, 12, 16)))
    mask = random(1, 1, 9, 12)
    SDPA(q, k, v, attn_mask=mask).sum().backward()
    SDPA(q, k, v, attn_mask=mask.requires_grad_()).sum().backward()
    assert called == [
        ("attention", None), ("attention_backward", False),
        ("attention", None), ("attention_backward", True),
    ]  # fmt: skip


def test_backward_is_told_precision_and_order(monkeypatch):
    told = []
    function = pestle._functions.function

    def watched(name):
        made = function(name)

        def call(*args, **kwargs):
            told.append({key: kwargs.get(key) for key in ("precision", "deterministic")})
            return made(*args, **kwargs)

        return call

    monkeypatch.setattr(pestle._functions, "function", watched)
    q, k, v = (t.requires_grad_() for t in qkv((1, 2, 9, 16), (1, 2, 12, 16)))
    exact = torch.autograd.grad(pestle.attention(q, k, v)[0].sum(), (q, k, v))
    out, _ = pestle.attention(q, k, v, precision="tf32", deterministic=False)
    rounded = torch.autograd.grad(out.sum(), (q, k, v))
    assert told == [
        {"precision": "highest", "deterministic": True},
        {"precision": "tf32", "deterministic": False},
    ]
    for mine, right in zip(rounded, exact, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-2, atol=1e-2)


def test_gradients_by_differences_of_everything_at_once():
    """Window, soft cap, sinks, lengths, a mask and shared heads, in one call."""
    torch.manual_seed(3)
    q, k, v = qkv((2, 4, 6, 8), (2, 2, 11, 8))
    mask, sinks = random(2, 1, 6, 11), random(4)
    options = {"key_lengths": torch.tensor([11, 7]), "softcap": 3.0, "causal": True,
               "window_left": 5, "align": "bottom_right"}  # fmt: skip
    leaves = [t.requires_grad_() for t in (q, k, v, mask, sinks)]
    out, _ = pestle.attention(*leaves[:3], mask=mask, sinks=sinks, **options)
    weights = random(*out.shape, seed=9)
    gradients = torch.autograd.grad(out, leaves, weights)

    def loss(values):
        made, _ = pestle.attention(*values[:3], mask=values[3], sinks=values[4], **options)
        return (made.double() * weights.double()).sum()

    for place, gradient in enumerate(gradients):
        direction = torch.randn_like(leaves[place])
        ends = []
        for step in (-1e-2, 1e-2):
            values = [t.detach() for t in leaves]
            values[place] = values[place] + step * direction
            ends.append(loss(values))
        slope = (gradient.double() * direction.double()).sum()
        assert ((ends[1] - ends[0]) / 2e-2 - slope).abs() < 2e-3 * (1 + slope.abs())


def _rising(keys: int) -> Tensor:
    return torch.linspace(-40, 40, keys)


LOGITS = {
    "rising": _rising,
    "falling": lambda keys: _rising(keys).flip(0),
    "plus_minus_40": lambda keys: torch.where(torch.arange(keys) % 2 == 0, 40.0, -40.0),
    "ten_thousand": lambda keys: 1e4 + random(keys),
    "one_dominates": lambda keys: torch.where(torch.arange(keys) == keys - 3, 200.0, random(keys)),
    "equal": lambda keys: torch.zeros(keys),
}


@pytest.mark.parametrize("keys", [1, 2, 63, 64, 65, 127, 200])
@pytest.mark.parametrize("name", LOGITS)
def test_rescaling(name, keys):
    logits = LOGITS[name](keys)
    q = torch.ones(1, 1, 5, 1)
    v = random(1, 1, keys, 8, seed=keys)
    out, lse = pestle.attention(q, logits.view(1, 1, -1, 1), v, scale=1.0)
    right = torch.softmax(logits.double(), 0) @ v[0, 0].double()
    log_sum = torch.logsumexp(logits.double(), 0)
    spread = 1e-7 * (10 + logits.abs().max())
    assert (out.double() - right).abs().max() < 4 * spread
    assert (lse.double() - log_sum).abs().max() < spread * 4


def test_hidden_keys_do_not_matter():
    q, k, v = qkv((1, 1, 8, 16), (1, 1, 70, 16))
    lengths = torch.tensor([30])
    want = pestle.attention(q, k[:, :, :30], v[:, :, :30])
    k[:, :, 30:], v[:, :, 30:] = math.nan, math.inf
    for got, right in zip(pestle.attention(q, k, v, key_lengths=lengths), want, strict=True):
        assert torch.equal(got, right)
    seen = (torch.arange(70) < 30).view(1, 1, 1, 70)
    for got, right in zip(pestle.attention(q, k, v, mask=seen), want, strict=True):
        assert torch.equal(got, right)


def test_queries_without_a_key():
    q, k, v = qkv((1, 1, 4, 8), (1, 1, 6, 8))
    seen = torch.tensor([True, False, True, False]).view(1, 1, 4, 1)
    out, lse = pestle.attention(q, k, v, mask=seen)
    assert (out[0, 0, 1::2] == 0).all() and (lse[0, 0, 1::2] == -math.inf).all()
    assert torch.isfinite(out).all() and torch.isfinite(lse[0, 0, ::2]).all()


def jagged(lengths: list[int], heads: int, seed: int, offsets: Tensor | None = None) -> Tensor:
    """[B, L*, H, E], as projections give it."""
    if offsets is None:
        offsets = torch.tensor([0, *lengths]).cumsum(0)
    rows = random(sum(lengths), heads, 16, seed=seed)
    return torch.nested.nested_tensor_from_jagged(rows, offsets).requires_grad_()


def attend_packed(q: Tensor, k: Tensor, v: Tensor, **options) -> Tensor:
    return SDPA(*(t.transpose(1, 2) for t in (q, k, v)), **options).transpose(1, 2)


def one_by_one(q: Tensor, k: Tensor, v: Tensor, **options) -> Tensor:
    """torch's own attention, sequence by sequence: rows of all of them."""
    parts = [
        F.scaled_dot_product_attention(*(t.transpose(0, 1) for t in parts), **options)
        for parts in zip(*(t.unbind() for t in (q, k, v)), strict=True)
    ]
    return torch.cat(parts, 1).transpose(0, 1)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_nested_tensors(shared, compiled):
    """Self-attention, and queries of other lengths than the keys that heads share."""
    lengths, options = [5, 0, 70, 1], {"is_causal": True} if shared else {"enable_gqa": True}
    q = k = v = jagged(lengths, 4, 0)
    if not shared:
        k = jagged([6, 2, 80, 9], 2, 1)
        v = jagged([6, 2, 80, 9], 2, 2, k.offsets())
    torch._dynamo.reset()
    run = attend_packed
    if compiled:
        run = torch.compile(attend_packed, fullgraph=True, backend="aot_eager")
    got, want = run(q, k, v, **options), one_by_one(q, k, v, **options)
    torch.testing.assert_close(got.values(), want, rtol=1e-5, atol=1e-5)
    leaves = [q] if shared else [q, k, v]
    weights = random(*want.shape, seed=5)
    made = torch.autograd.grad(got.values(), leaves, weights)
    for mine, right in zip(made, torch.autograd.grad(want, leaves, weights), strict=True):
        torch.testing.assert_close(mine.values(), right.values(), rtol=1e-4, atol=1e-5)
    assert (got + q).shape == q.shape  # the same sequences, for a residual


def test_nested_tensors_are_not_copied(monkeypatch):
    given, attention = [], pestle.attention

    def watched(*tensors, **options):
        given.extend(t.data_ptr() for t in tensors)
        return attention(*tensors, **options)

    monkeypatch.setattr(pestle, "attention", watched)
    q = jagged([5, 9], 4, 0)
    v = jagged([5, 9], 4, 1, q.offsets())
    attend_packed(q, q, v)
    assert given == [t.values().data_ptr() for t in (q, q, v)]


def test_nested_tensors_that_are_refused():
    q, k = jagged([5, 9], 4, 0), jagged([7, 7], 4, 1)
    with pytest.raises(pestle.InvalidArgumentError, match="other offsets each"):
        attend_packed(q, q, k)
    with pytest.raises(pestle.UnsupportedError, match="must be jagged ones"):
        SDPA(q, q, q)  # [B, L*, H, E]
    with pytest.raises(pestle.UnsupportedError, match="must be jagged ones"):
        attend_packed(q, q, torch.randn(2, 7, 4, 16))
    holes = torch.nested.nested_tensor_from_jagged(
        torch.randn(14, 4, 16), torch.tensor([0, 7, 14]), lengths=torch.tensor([5, 7])
    )
    with pytest.raises(pestle.UnsupportedError, match="without gaps"):
        attend_packed(holes, holes, holes)
    with pytest.raises(pestle.UnsupportedError, match="attn_mask does not go"):
        attend_packed(q, q, q, attn_mask=torch.zeros(9, 9))


def test_autocast():
    tensors = qkv((1, 2, 9, 16), (1, 2, 12, 16))
    tensors[1] = tensors[1].bfloat16()  # mixed, as after a rotation in f32
    with torch.autocast("cpu", torch.bfloat16):
        got = SDPA(*tensors, attn_mask=random(9, 12))
        want = F.scaled_dot_product_attention(*tensors, attn_mask=random(9, 12))
    assert got.dtype == want.dtype == torch.bfloat16
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


def everything(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    return pestle.attention(
        q, k, v, mask=mask, causal=True, align="bottom_right", softcap=2.0, window_left=5
    )


COMPILED = {
    "sdpa": lambda q, k, v, mask: SDPA(q, k, v, attn_mask=mask, enable_gqa=True),
    "attention": lambda *tensors: everything(*tensors)[0],
}


def batch(size: int, queries: int) -> tuple[Tensor, ...]:
    q, k, v = qkv((size, 4, queries, 16), (size, 2, queries + 3, 16))
    return q, k, v, random(size, 1, queries, queries + 3)


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("name", COMPILED)
def test_one_graph_for_all_shapes(name, needs_grad):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(COMPILED[name], fullgraph=True, dynamic=True, backend=counter)
    counts = set()  # torch compiles the first shapes twice, others not at all
    for sizes in ((3, 9), (5, 41)):
        tensors = [t.requires_grad_(needs_grad) for t in batch(*sizes)]
        got, want = compiled(*tensors), COMPILED[name](*tensors)
        assert torch.equal(got, want)
        if needs_grad:
            made = torch.autograd.grad(got.sum(), tensors)
            for mine, right in zip(made, torch.autograd.grad(want.sum(), tensors), strict=True):
                assert torch.equal(mine, right)
        counts.add(counter.frame_count)
    assert len(counts) == 1


class Both(torch.nn.Module):
    def forward(self, *tensors):
        return COMPILED["sdpa"](*tensors), *everything(*tensors)


def test_export():
    b, s, t = (torch.export.Dim(name, min=2, max=4096) for name in "bst")
    program = torch.export.export(
        Both(), batch(3, 9),
        dynamic_shapes={"tensors": ({0: b, 2: s}, {0: b, 2: t}, {0: b, 2: t},
                                    {0: b, 2: s, 3: t})},
    )  # fmt: skip
    assert any(str(node.target) == "pestle.attention.default" for node in program.graph.nodes)
    tensors = batch(5, 20)
    for mine, right in zip(program.module()(*tensors), Both()(*tensors), strict=True):
        assert torch.equal(mine, right)


def test_views_of_other_layouts():
    """[B, S, H, D] is a view, and no copy is made of it."""
    q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in
               qkv((2, 3, 17, 16), (2, 3, 40, 16)))  # fmt: skip
    want = SDPA(*(t.contiguous() for t in (q, k, v)))
    assert torch.equal(SDPA(q, k, v), want)


def test_output_dtype():
    q, k, v = qkv((1, 1, 4, 8), (1, 1, 6, 8), torch.float16)
    assert pestle.attention(q, k, v)[0].dtype == torch.float16
    out, lse = pestle.attention(q, k, v, out_dtype=torch.float32)
    assert out.dtype == lse.dtype == torch.float32


def test_refusals_are_sentences():
    q, k, v = qkv((1, 4, 4, 8), (1, 2, 6, 8))
    with pytest.raises(pestle.UnsupportedError, match="no dropout"):
        SDPA(q, k, v, dropout_p=0.1)
    with pytest.raises(pestle.InvalidArgumentError, match="although is_causal"):
        SDPA(q, k, v, attn_mask=torch.zeros(4, 6), is_causal=True)
    with pytest.raises(pestle.InvalidArgumentError, match="enable_gqa=True"):
        SDPA(q, k, v)
    with pytest.raises(pestle.InvalidArgumentError, match="multiple"):
        pestle.attention(q[:, :3], k, v)
    with pytest.raises(pestle.InvalidArgumentError, match="mask"):
        pestle.attention(q, k, v, mask=torch.zeros(1, 1, 4, 5))
