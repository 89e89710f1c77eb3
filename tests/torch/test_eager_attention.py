"""Attention in plain PyTorch beyond the contract's cases (test_backends.py): tiles of every size,
values that are not finite, gradients through both ops."""

import cases
import pestle
import pytest
import torch
from pestle import _backends, _contract
from test_backends import run

_backends.load("eager")
from pestle.backends.eager import _attention  # noqa: E402

OPS = ("attention", "attention_backward")
SMOKE = [
    (op, case) for op, case in cases.all_cases() if op in OPS and "smoke" in case["tags"]
]  # fmt: skip


@pytest.mark.parametrize(("op", "case"), SMOKE, ids=cases.case_id)
def test_any_number_of_logits_at_a_time(op, case, monkeypatch):
    """Tiles of one query, of some queries, of some heads and batches, none larger than said, give
    what one tile gives, which test_backends.py holds to the library."""
    case = cases.make(_contract.op(op), case)
    q, k = (case.call.tensors[name] for name in "qk")
    of_a_query = q.shape[1] // k.shape[1] * k.shape[2]
    made = _attention.Logits.made
    sizes = []

    def watched(*args, **options):
        t, slope = made(*args, **options)
        sizes.append(t.numel())
        return t, slope

    monkeypatch.setattr(_attention.Logits, "made", watched)
    whole = run("eager", "cpu", case)
    for limit in (of_a_query, 7 * of_a_query, q.shape[2] * of_a_query * 2):
        monkeypatch.setattr(_attention, "LOGITS", limit)
        sizes.clear()
        for name, got in run("eager", "cpu", case).items():
            near = 1e-5 * whole[name].float().nan_to_num(0.0, 0.0, 0.0).abs().max().item()
            rounding = 2 * torch.finfo(got.dtype).eps
            torch.testing.assert_close(got, whole[name], rtol=rounding, atol=near)
        assert sizes and max(sizes) <= limit


@pytest.mark.parametrize("counts", [torch.float32, torch.float16])
def test_products_that_skip_zeros(counts):
    """NaN and infinities meet positive numbers, negative ones and zeros; counts overflow in f16."""
    inf, nan = torch.inf, torch.nan
    a = torch.tensor([[0.0, 0, 0], [1, 0, 0], [-1, 0, 0], [2, 3, 0], [2, -3, 0], [1, 1, 1]])
    b = torch.tensor([[inf, 1.0], [inf, 2.0], [nan, 4.0]])
    want = torch.tensor([[0, 0], [inf, 1], [-inf, -1], [inf, 8], [nan, -4], [nan, 7]])
    got = _attention.skipping_zeros(a, b, counts)
    assert torch.equal(got.nan_to_num(7e7), want.nan_to_num(7e7))
    many = torch.ones(1, 70000)
    got = _attention.skipping_zeros(many, torch.full((70000, 1), -inf), counts)
    assert got.item() == -inf


def test_gradients_are_the_librarys():
    """One call of each op: the backward goes where the forward went."""
    torch.manual_seed(4)
    leaves = [torch.randn(2, h, s, 16) for h, s in ((4, 9), (2, 20), (2, 20))]
    leaves += [torch.randn(2, 1, 9, 20), torch.randn(4)]
    weights = torch.randn(2, 4, 9, 16)

    def gradients(backend):
        own = [t.clone().requires_grad_() for t in leaves]
        q, k, v, mask, sinks = own
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as ran:
            out, _ = pestle.attention(
                q, k, v, mask=mask, sinks=sinks, causal=True, softcap=2.0, backend=backend
            )
            made = torch.autograd.grad(out, own, weights)
        return made, {event.key for event in ran.key_averages()}

    want, _ = gradients(None)
    got, ran = gradients("eager")
    assert "pestle_eager::attention" in ran and "pestle_eager::attention_backward" in ran
    for mine, right in zip(got, want, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-5)
