"""The modules of comfy-kitchen 0.2.40, those of its backends among them: the names that callers
take from there, and that these do the same."""

import importlib
import inspect
import itertools

import pestle
import pestle.compat.comfy_kitchen as ours
import pytest
import torch
from kitchen_cases import relative_error as relative
from torch.nn import functional

theirs = pytest.importorskip("comfy_kitchen")
pytestmark = pytest.mark.usefixtures("kitchen_eager")
OURS = "pestle.compat.comfy_kitchen"


# ---- modules

SHARED = ["allocation", "constraints",
          "exceptions", "flash_attention", "float_utils", "gated_delta", "int8_decode", "registry",
          "sage_attention", "scaled_mm_v2", "tensor.awq_w4a16", "tensor.base",
          "tensor.convrot_w4a4", "tensor.fp8", "tensor.int8", "tensor.int8_utils", "tensor.mxfp8",
          "tensor.nvfp4", "tensor.svdquant_w4a4", "tensor.w4a8_int8", "tensor.w4a8_packed",
          "_rope_utils", "backends._activations"]  # fmt: skip
OF_EAGER = ["adaln", "awq", "conv3d", "convrot_w4a4", "group_norm_pad3d", "na", "quantization",
            "residual", "rope", "sol_attn", "svdquant", "w4a8_int8"]  # fmt: skip
# What their own kernels and dispatch alone need, and block-sparse attention's parts.
INNER = {"add_coarse_", "coarse_output", "fp16_conv3d_out", "group_norm_silu_pad3d_out",
         "input_act_code", "input_act_width", "sol_attn_common_call_rule",
         "w4a8_packed_linear"}  # fmt: skip


@pytest.mark.parametrize("name", SHARED + [f"backends.eager.{name}" for name in OF_EAGER])
def test_modules_have_their_public_functions(name):
    mine, other = (importlib.import_module(f"{m}.{name}") for m in (OURS, "comfy_kitchen"))
    made = [n for n, f in vars(other).items()
            if inspect.isfunction(f) and f.__module__ == other.__name__]  # fmt: skip
    public = {n for n in [*getattr(other, "__all__", ()), *made] if not n.startswith("_")}
    assert not [n for n in public - INNER if not hasattr(mine, n)]


def test_modules_are_attributes():
    for mine, other in ((ours, theirs), (ours.tensor, theirs.tensor)):
        there = {name for name, value in vars(other).items() if inspect.ismodule(value)
                 and value.__name__ == f"{other.__name__}.{name}"}  # fmt: skip
        there -= {"int8_decode"}  # imported by some other test
        assert there and not [name for name in there if not inspect.ismodule(vars(mine).get(name))]


def test_what_modules_of_a_backend_pass_on():
    mine, other = (importlib.import_module(f"{m}.backends.eager.quantization")
                   for m in (OURS, "comfy_kitchen"))  # fmt: skip
    assert mine.DTYPE_TO_CODE == other.DTYPE_TO_CODE and mine.registry is ours.registry
    assert mine.DTYPE_CODE_TO_DTYPE == other.DTYPE_CODE_TO_DTYPE
    assert mine.F8_E4M3_MAX == 448 and mine.to_blocked is ours.to_blocked
    with pytest.raises(AttributeError):
        mine._n_ones  # noqa: B018


def test_backends_of_other_devices_are_listed_with_a_reason():
    listed = ours.list_backends()
    assert {"cuda", "triton", "eager", "hip", "ascend"} <= set(listed)
    for name in ("hip", "ascend"):
        assert not listed[name]["available"] and listed[name]["unavailable_reason"]
        module = importlib.import_module(f"{OURS}.backends.{name}")
        with pytest.raises(ours.BackendNotFoundError, match="Pestle has no kernels for"):
            module.quantize_mxfp8(torch.ones(32, 32))


def test_layouts_are_registered_in_a_dictionary():
    mine = importlib.import_module(f"{OURS}.tensor.base")
    assert mine.LAYOUTS["TensorCoreFP8Layout"] is ours.tensor.TensorCoreFP8Layout


# ---- functions of backends that the package does not list


def test_rotated_rows_of_int8_after_an_activation():
    mine = ours.backends.cpu
    x, weight = torch.randn(5, 512), torch.rand(512)
    want = pestle.quantize_int8(x, granularity="row", hadamard=256)
    for name in ("quantize_int8_rowwise_convrot64", "quantize_int8_convrot_staged"):
        got = getattr(mine, name)(x, 256)
        assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])
    got = mine.quantize_int8_rowwise_convrot64(
        x, 64, input_act="rms_norm", input_act_weight=weight, input_act_eps=1e-5
    )
    normed = functional.rms_norm(x, (512,), weight, 1e-5)
    want = pestle.quantize_int8(normed, granularity="row", hadamard=64)
    assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])
    assert mine.quantize_int8_rowwise_convrot64(x, 64, input_act="swiglu")[0].shape == (5, 256)
    with pytest.raises(ValueError, match="not divisible by group_size"):
        mine.quantize_int8_rowwise_convrot64(x[:, :300], 256)


def test_rows_of_int4_and_their_product():
    mine, other = (importlib.import_module(f"{m}.backends.eager.convrot_w4a4")
                   for m in (OURS, "comfy_kitchen"))  # fmt: skip
    x, w, bias = torch.randn(5, 128), torch.randn(24, 128), torch.randn(24)
    (q, s), (p, r) = (mine.quantize_signed_int4_rowwise(t) for t in (x, w))
    wanted = other.quantize_signed_int4_rowwise(x)
    assert torch.equal(q, wanted[0]) and torch.allclose(s, wanted[1])
    assert torch.equal(mine.prepare_int4_weight_for_int8_linear(q), other._unpack_int4_row_major(q))
    got = mine.int4_linear(q, p, s, r, bias, torch.float32)
    assert relative(got, other.int4_linear(q, p, s, r, bias, torch.float32)) < 1e-6
    with pytest.raises(ValueError, match="K dimensions do not match"):
        mine.int4_linear(q, p[:, :32], s, r)
    with pytest.raises(ValueError, match="x_scale has 24 elements"):
        mine.int4_linear(q, p, r, r)
    cpu = ours.backends.cpu
    rows = cpu.quantize_int4_rowwise(x.view(5, 1, 128))
    assert torch.equal(rows[0].view(5, 64), q) and rows[1].shape == (5, 1, 1)
    turned, scale = cpu.quantize_int4_rowwise_convrot64(x, 64)
    wide, same = cpu.quantize_int4_rowwise_convrot64_to_int8(x, 64)
    assert torch.equal(mine._pack_int4_row_major(wide), turned) and torch.equal(scale, same)
    for size in (mine, other):
        size.validate_w4a4_shape(x, 64, 64)
        with pytest.raises(ValueError, match="not divisible by quant_group_size"):
            size.validate_w4a4_shape(x, 64, 96)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_calc_mantissa(dtype):
    mine, other = (importlib.import_module(f"{m}.backends.eager.quantization")
                   for m in (OURS, "comfy_kitchen"))  # fmt: skip
    bits, bias = (3, 7) if dtype == torch.float8_e4m3fn else (2, 15)
    x = torch.cat((torch.zeros(3), torch.rand(500) * torch.rand(500).mul(-16).exp2())).half()
    exponent = (torch.floor(torch.log2(x)) + bias).clamp(0, 2 * bias + 1)
    random = torch.randint(0, 256, x.shape, dtype=torch.uint8)
    got, want = (m.calc_mantissa(x, exponent, exponent != 0, bits, bias, random)
                 for m in (mine, other))  # fmt: skip
    assert torch.equal(got, want)


def test_which_dimension_of_x_has_the_positions():
    mine, other = (importlib.import_module(f"{m}._rope_utils") for m in (OURS, "comfy_kitchen"))
    for sizes in itertools.product(
        (1, 2), (1, 3), (1, 4), (8, 7), (1, 2), (1, 3), (1, 4, 9), (4, 2)
    ):
        x, f = torch.empty(sizes[:4]), torch.empty(*sizes[4:], 2, 2)
        for turned in (0, 4, 8):
            wanted = other.detect_rms_rope_bnhd(x, f, turned)
            assert mine.detect_rms_rope_bnhd(x, f, turned) is wanted, (sizes, turned)
        assert mine.trim_rope_freqs(x, f).shape == other.trim_rope_freqs(x, f).shape


@pytest.mark.parametrize("name", ["cuda", "eager", "triton"])
def test_backend_modules_have_each_public_function(name):
    mine = importlib.import_module(f"{OURS}.backends.{name}")
    functions = [n for n in theirs.__all__ if hasattr(getattr(ours, n), "__wrapped__")]
    assert functions and not [n for n in functions if not callable(getattr(mine, n))]
    assert set(ours._functions.__all__) <= set(dir(mine))
    with pytest.raises(AttributeError, match="no attribute 'nothing_such'"):
        mine.nothing_such  # noqa: B018


def test_a_backend_module_runs_that_backend():
    x = torch.randn(4, 256)
    q, scale = ours.backends.eager.quantization.quantize_int8_convrot_weight(x, 64)
    want = pestle.quantize_int8(x, granularity="row", hadamard=64, backend="eager")
    assert torch.equal(q, want[0]) and torch.equal(scale, want[1])
    with pytest.raises(TypeError):
        ours.backends.eager.quantize_int8_convrot_weight(x, no_such_argument=1)


def test_the_rotation_as_a_matrix():
    mine, other = (importlib.import_module(f"{m}.tensor.int8_utils")
                   for m in (OURS, "comfy_kitchen"))  # fmt: skip
    x = torch.randn(3, 512)
    for size in (4, 16, 64, 256):
        h = mine._build_hadamard(size)
        assert torch.equal(h, other._build_hadamard(size))
        for rotate in ("_rotate_weight", "_rotate_activation"):
            got, want = (getattr(m, rotate)(x, h, size) for m in (mine, other))
            torch.testing.assert_close(got, want)
    for size in (2, 8, 500):
        with pytest.raises(ValueError, match="Regular Hadamard size must be a power of 4"):
            mine._build_hadamard(size)
    with pytest.raises(ValueError, match="not divisible by group_size"):
        mine._rotate_weight(x, mine._build_hadamard(1024), 1024)


def test_codes_of_four_bits():
    mine, other = (importlib.import_module(f"{m}.backends.eager.svdquant")
                   for m in (OURS, "comfy_kitchen"))  # fmt: skip
    packed = torch.arange(-128, 128, dtype=torch.int8).view(16, 16)
    for name in ("_unpack_int4_row_major", "_unpack_uint4_row_major"):
        codes = getattr(mine, name)(packed)
        assert torch.equal(codes, getattr(other, name)(packed)), name
        assert torch.equal(mine._pack_int4_row_major(codes), packed)


# ---- torch.ops.comfy_kitchen


def signature(schema) -> list:
    """Names, types without aliases, defaults, and what is written into; the results' types."""
    arguments = [
        (a.name, str(a.type), a.default_value, a.alias_info is not None and a.alias_info.is_write)
        for a in schema.arguments
    ]
    return [arguments, [str(result.type) for result in schema.returns]]


def test_operators_have_their_schemas():
    module = importlib.import_module(f"{OURS}._torch_ops")
    mine = {line.partition("(")[0]: torch._C.parse_schema(f"x::{line}") for line in module.SCHEMAS}
    names = (str(name) for name in torch._C._dispatch_get_all_op_names())
    there = {name.partition("::")[2] for name in names if name.startswith("comfy_kitchen::")}
    assert there - set(mine) == {"sol_attn"} and set(mine) <= there
    for name, schema in mine.items():
        other = getattr(torch.ops.comfy_kitchen, name).default._schema
        assert signature(schema) == signature(other), name


def test_ropes_in_place_look_at_no_memory_that_is_not_there():
    q, k = (torch.empty(1, 2, 8, 32, device="meta") for _ in range(2))
    check = importlib.import_module(f"{OURS}._rope_utils").check_rope_inplace
    check(q, k, readonly=(torch.empty(1, 1, 8, 16, 2, 2, device="meta"),))
    with pytest.raises(ValueError, match="non-overlapping"):
        check(q, q[:, :1])
