"""pestle.compat.forge_cute: the four ops, their gradients, switchable softmax backends, and the
names under torch.ops.forge_cute_py."""

import pytest
import torch

forge = pytest.importorskip("pestle.compat.forge_cute")
pytestmark = pytest.mark.filterwarnings("ignore:Input #0 requires gradient and is not a double")

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


@pytest.fixture(autouse=True)
def backends():
    before, known = forge.get_softmax_online_backend(), dict(forge._backends)
    yield
    forge.set_softmax_online_backend(before)
    forge._backends.clear()
    forge._backends.update(known)


def values(*shape, dtype=torch.float32, device="cpu", seed=0):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return x.to(device, dtype)


def close(got, want):
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    torch.testing.assert_close(got, want, atol=TOLERANCE[want.dtype], rtol=TOLERANCE[want.dtype])


REFERENCES = {"sum": torch.sum, "max": torch.amax, "amax": torch.amax, "min": torch.amin,
              "amin": torch.amin, "prod": torch.prod}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(32, 64), (15, 37), (1, 1), (0, 8)], ids=str)
def test_the_four_ops(device, dtype, shape):
    x = values(*shape, dtype=dtype, device=device)
    for tile in (16, 32):
        transposed = forge.copy_transpose(x, tile)
        assert torch.equal(transposed, x.T) and transposed.is_contiguous()
    for dim in (-1, 0, 1):
        close(forge.softmax_online(x, dim), torch.softmax(x.float(), dim).to(dtype))
        close(forge.reduce_sum(x, dim), x.float().sum(dim).to(dtype))
        for op, reference in REFERENCES.items():
            if x.shape[dim] or op in ("sum", "prod"):
                close(forge.reduce(x, dim, op), reference(x.float(), dim).to(dtype))


@pytest.mark.parametrize("call", [
    lambda: forge.copy_transpose(torch.ones(3)),
    lambda: forge.softmax_online(torch.ones(3, 4), 2),
    lambda: forge.reduce(torch.ones(3, 4), 0, "median"),
    lambda: forge.reduce_sum(torch.ones(3, 4, dtype=torch.float64)),
    lambda: forge.copy_transpose(torch.ones(3, 4), 8),
])  # fmt: skip
def test_mistakes_are_value_errors(call):
    with pytest.raises(ValueError):
        call()


# f32, not f64: steps and tolerances to match.
GRADCHECK = {"eps": 1e-2, "atol": 2e-3, "rtol": 2e-2, "nondet_tol": 0.0}


@pytest.mark.parametrize("backend", ["kernel", "ref", "formula"])
def test_gradients_of_softmax(device, backend):
    forge.register_softmax_online_backend("formula", lambda x, dim: torch.softmax(x, dim))
    forge.set_softmax_online_backend(backend)
    x = values(4, 9, device=device).requires_grad_()
    for dim in (-1, 0):
        assert torch.autograd.gradcheck(lambda x, d=dim: forge.softmax_online(x, d), x, **GRADCHECK)


@pytest.mark.parametrize("call", [
    lambda x: forge.copy_transpose(x),
    lambda x: forge.reduce_sum(x),
    lambda x: forge.reduce(x, 0, "sum"),
], ids=["copy_transpose", "reduce_sum", "reduce"])  # fmt: skip
def test_gradients_of_the_others(device, call):
    x = values(5, 7, device=device).requires_grad_()
    assert torch.autograd.gradcheck(call, x, **GRADCHECK)


# ---- backends


def test_registry():
    assert forge.list_softmax_online_backends()[:2] == ("ref", "kernel")
    assert forge.get_softmax_online_backend() == "kernel"
    with pytest.raises(ValueError, match="ref, kernel"):
        forge.set_softmax_online_backend("mine")
    for name, error in (("", ValueError), ("ref", ValueError)):
        with pytest.raises(error):
            forge.register_softmax_online_backend(name, torch.softmax)
    with pytest.raises(TypeError):
        forge.register_softmax_online_backend("mine", None)
    forge.register_softmax_online_backend("ref", torch.softmax, overwrite=True)
    assert forge.list_softmax_online_backends()[0] == "ref"


def test_a_backend_s_result_is_given_on_without_a_copy():
    made = []

    def forward(x, dim):
        made.append(torch.softmax(x, dim))
        return made[-1]

    forge.register_softmax_online_backend("mine", forward)
    forge.set_softmax_online_backend("mine")
    y = forge.softmax_online(values(3, 5))
    assert y.data_ptr() == made[0].data_ptr()


@pytest.mark.parametrize(("wrong", "word"), [
    (lambda x, dim: x[:1].clone(), "shape"),
    (lambda x, dim: x.double(), "dtype"),
    (lambda x, dim: x, "memory"),
])  # fmt: skip
def test_what_a_backend_returns_is_checked(wrong, word):
    forge.register_softmax_online_backend("wrong", wrong)
    forge.set_softmax_online_backend("wrong")
    with pytest.raises(ValueError, match=word):
        forge.softmax_online(values(3, 5))
    forge.register_softmax_online_backend("none", lambda x, dim: None)
    forge.set_softmax_online_backend("none")
    with pytest.raises(TypeError):
        forge.softmax_online(values(3, 5))


# ---- torch.ops.forge_cute_py


@pytest.mark.parametrize("backend", ["kernel", "ref"])
def test_ops_that_fill_out(device, backend):
    forge.set_softmax_online_backend(backend)
    ops = torch.ops.forge_cute_py
    x, dy = values(6, 20, device=device), values(6, 20, device=device, seed=1)
    out = torch.full((20, 6), torch.nan, device=device)
    assert ops._copy_transpose(x, out, 32) is None
    assert torch.equal(out, x.T)
    row = torch.full((6,), torch.nan, device=device)
    ops._reduce(x, row, -1, "max")
    assert torch.equal(row, x.amax(1))
    ops._reduce_sum(x, row, 1)
    close(row, x.sum(1))
    y, dx = torch.full_like(x, torch.nan), torch.full_like(x, torch.nan)
    ops._softmax_fwd(x, y)
    close(y, torch.softmax(x, -1))
    ops._softmax_backward(dy, y, dx, -1)
    close(dx, y * (dy - (dy * y).sum(-1, keepdim=True)))


def test_compiled_in_one_graph(device):
    def both(x):
        out = torch.empty_like(x)
        torch.ops.forge_cute_py._softmax_fwd(x, out, -1)
        return forge.softmax_online(x) + out + forge.reduce_sum(x)[:, None]

    x = values(4, 12, device=device)
    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), both(x), atol=0, rtol=0)


@pytest.fixture
def backend_of_its_own():
    """One that notes the dimensions that it gets."""
    dims = []

    def forward(x, dim):
        dims.append(dim)
        return torch.softmax(x, dim)

    forge.register_softmax_online_backend("noting", forward, overwrite=True)
    forge.set_softmax_online_backend("noting")
    yield dims
    forge.set_softmax_online_backend("kernel")
    del forge._backends["noting"]


def test_a_registered_backend_gets_the_dim_that_was_passed(device, backend_of_its_own):
    x = values(4, 12, device=device)
    for dim in (-2, -1, 0, 1):
        forge.softmax_online(x, dim)
        torch.ops.forge_cute_py._softmax_fwd(x, torch.empty_like(x), dim)
    assert backend_of_its_own == [-2, -2, -1, -1, 0, 0, 1, 1]


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("name", ["ref", "noting"])
def test_other_backends_are_one_graph(device, backend_of_its_own, name, needs_grad):
    forge.set_softmax_online_backend(name)
    x = values(4, 12, device=device).requires_grad_(needs_grad)
    compiled = torch.compile(lambda x: forge.softmax_online(x), fullgraph=True, backend="aot_eager")
    y = compiled(x)
    torch.testing.assert_close(y, forge.softmax_online(x), atol=0, rtol=0)
    if needs_grad:
        (got,) = torch.autograd.grad(y.square().sum(), x)
        (wanted,) = torch.autograd.grad(forge.softmax_online(x).square().sum(), x)
        torch.testing.assert_close(got, wanted)
