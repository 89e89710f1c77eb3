"""pestle.compat.comfy_kitchen where comfy-kitchen can't be imported: in a process of its own, and
with a witness of which implementation ran, torch's dispatcher."""

import json
import subprocess
import sys

import pestle
import pytest

# Nothing by this name can be found, neither installed nor in the current folder.
BLOCKER = """
import importlib.abc, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "comfy_kitchen":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
try:
    import comfy_kitchen
    raise SystemExit("the blocker does not block")
except ModuleNotFoundError:
    pass
import json, torch, pestle.compat
from torch.utils._python_dispatch import TorchDispatchMode

class Ops(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function).partition(".")[0] + "." + str(function).split(".")[1])
        return function(*args, **(kwargs or {}))
"""


def alone(code: str) -> dict:
    """What the code prints as JSON, run where comfy_kitchen is no module."""
    done = subprocess.run(
        [sys.executable, "-c", BLOCKER + code], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


CALLS = """
import pestle.compat.comfy_kitchen as ck
torch.manual_seed(0)
x = torch.randn(16, 512) * 0.02
one = torch.tensor(0.01)
g = torch.tensor(0.0005)
freqs = torch.randn(1, 1, 4, 16, 2, 2)
heads = torch.randn(1, 2, 4, 32)
q, s = ck.quantize_nvfp4(x, g)
m, e = ck.quantize_mxfp8(x)
i, r = ck.quantize_int8_rowwise(x)
f = ck.quantize_per_tensor_fp8(x, one)
w4, ws = ck.quantize_convrot_w4a4_weight(x)
w8 = ck.quantize_w4a8_int8_weight(x)
calls = {
    "quantize_fp8": lambda: ck.quantize_per_tensor_fp8(x, one),
    "dequantize_fp8": lambda: ck.dequantize_per_tensor_fp8(f, one),
    "stochastic_round_fp8": lambda: ck.stochastic_rounding_fp8(x, torch.zeros_like(x).byte()),
    "quantize_nvfp4": lambda: ck.quantize_nvfp4(x, g),
    "dequantize_nvfp4": lambda: ck.dequantize_nvfp4(q, g, s),
    "scaled_mm_nvfp4": lambda: ck.scaled_mm_nvfp4(q, q, g, g, s, s),
    "quantize_mxfp8": lambda: ck.quantize_mxfp8(x),
    "dequantize_mxfp8": lambda: ck.dequantize_mxfp8(m, e),
    "scaled_mm_mxfp8": lambda: ck.scaled_mm_mxfp8(m, m, e, e),
    "quantize_int8": lambda: ck.quantize_int8_tensorwise(x),
    "dequantize_int8": lambda: ck.dequantize_int8_simple(i, r),
    "scaled_mm_int8": lambda: ck.int8_linear(x, i, r),
    "quantize_int4": lambda: ck.quantize_convrot_w4a4_weight(x),
    "dequantize_int4": lambda: ck.dequantize_convrot_w4a4_weight(w4, ws),
    "linear_int4": lambda: ck.convrot_w4a4_linear(x, w4, ws),
    "quantize_w4a8": lambda: ck.quantize_w4a8_int8_weight(x),
    "dequantize_w4a8": lambda: ck.dequantize_w4a8_int8_weight(*w8[:3], w8[4]),
    "linear_w4a8": lambda: ck.w4a8_int8_linear(x, *w8[:3], w8[4]),
    "apply_rope": lambda: ck.apply_rope(heads, heads, freqs),
    "apply_rope_": lambda: ck.apply_rope1_(heads.clone(), freqs),
}
def ran(call, **keywords):
    with Ops() as ops:
        call()
    return sorted({n for n in ops.names if n.startswith("pestle")})
"""


def test_which_implementation_runs():
    answer = alone(CALLS + "print(json.dumps({name: ran(c) for name, c in calls.items()}))")
    assert len(answer) == 20
    for op, names in answer.items():
        assert f"pestle.{op}" in names, op


@pytest.mark.parametrize("backend", ["eager", "cpu"])
def test_the_backend_that_is_asked_for_runs(backend):
    space = {"eager": "pestle_eager", "cpu": "pestle"}[backend]
    answer = alone(
        CALLS
        + f"""
served = ck.list_backends()[{backend!r}]["capabilities"]
told = ran(lambda: ck.quantize_per_tensor_fp8(x, one, backend={backend!r}))
with ck.use_backend({backend!r}):
    used = ran(lambda: ck.apply_rope1(heads, freqs))
print(json.dumps([served, told, used]))
"""
    )
    assert "quantize_per_tensor_fp8" in answer[0]
    assert answer[1:] == [[f"{space}.quantize_fp8"], [f"{space}.apply_rope"]]


def test_alias_and_submodules():
    answer = alone("""
pestle.compat.install(as_comfy_kitchen=True)
pestle.compat.install(as_comfy_kitchen=True)
import comfy_kitchen as ck
import comfy_kitchen.tensor, comfy_kitchen.constraints
from comfy_kitchen.tensor import QuantizedTensor, TensorCoreFP8Layout, register_layout_class
from comfy_kitchen.registry import registry
from comfy_kitchen.exceptions import NoCapableBackendError
from comfy_kitchen.float_utils import to_blocked, F8_E4M3_MAX
import pestle.compat.comfy_kitchen as ours
class Mine(TensorCoreFP8Layout): pass
register_layout_class("Mine", Mine)
assert ck is ours and registry is ck.registry and ck.tensor.get_layout_class("Mine") is Mine
errors = []
assert QuantizedTensor is pestle.QuantizedTensor
assert QuantizedTensor.from_float(torch.ones(2), "Mine").dequantize().tolist() == [1, 1]
for call in (lambda: ck.delaunay3d(None), lambda: ck.min_cut(*[None] * 4)):
    try:
        call()
    except NoCapableBackendError as error:
        errors.append(str(error))
with Ops() as ops:
    ck.quantize_mxfp8(torch.ones(32, 32))
pestle.compat.uninstall()
try:
    import comfy_kitchen
    gone = False
except ModuleNotFoundError:
    gone = True
print(json.dumps([errors, ops.names, gone]))
""")
    errors, names, gone = answer
    assert len(errors) == 2 and all("Pestle has no geometry" in error for error in errors)
    assert "pestle.quantize_mxfp8" in names and gone


def test_modules_below_the_alias_are_the_same_ones():
    answer = alone("""
pestle.compat.install(as_comfy_kitchen=True)
import comfy_kitchen as ck
from comfy_kitchen._rope_utils import check_rope_inplace
from comfy_kitchen.backends import cuda, eager, triton
from comfy_kitchen.backends.eager import quantization, svdquant
from comfy_kitchen.backends.eager.w4a8_int8 import _dequant_int4_grouped_to_int8
from comfy_kitchen.tensor.int8_utils import _build_hadamard
from comfy_kitchen.tensor.svdquant_w4a4 import TensorCoreSVDQuantW4A4Layout
import pestle.compat.comfy_kitchen.backends.eager as ours
same = [eager is ours, eager.svdquant is svdquant, eager.quantization is quantization]
same.append(TensorCoreSVDQuantW4A4Layout is ck.tensor.TensorCoreSVDQuantW4A4Layout)
w = torch.randn(4, 256)
q, scale = torch.ops.comfy_kitchen.quantize_int8_convrot_weight(w, 64)
back = torch.ops.comfy_kitchen.dequantize_int8_convrot_weight(q, scale, 64)
half = torch.ops.comfy_kitchen.dequantize_int8_convrot_weight_dtype(q, scale, 64, 2)
same.append(torch.equal(half, back.bfloat16()))
same.append(bool((back - w).norm() < 0.02 * w.norm()))
simple = torch.ops.comfy_kitchen.dequantize_int8_simple(q, scale)
same.append(torch.equal(simple, q.float() * scale))
pestle.compat.uninstall()
same.append(not [name for name in sys.modules if name.partition(".")[0] == "comfy_kitchen"])
same.append(not hasattr(torch.ops.comfy_kitchen, "dequantize_int8_simple"))
print(json.dumps(same))
""")
    assert answer == [True] * 9


OPERATORS = """
pestle.compat.install(as_comfy_kitchen=True)
import comfy_kitchen as ck
ops = torch.ops.comfy_kitchen
x, one = torch.randn(16, 512), torch.tensor(0.01)
heads, freqs, weight = torch.randn(1, 2, 8, 32), torch.randn(1, 1, 8, 16, 2, 2), torch.rand(32)
def same(a, b):
    both = zip(a, b, strict=True) if isinstance(a, tuple) else [(a, b)]
    return all(t.dtype == u.dtype and torch.equal(t.float(), u.float()) for t, u in both)
"""


def test_operators_are_the_functions():
    answer = alone(OPERATORS + """
q, scale = ops.quantize_int8_rowwise(x)
answers = [
    same((q, scale), ck.quantize_int8_rowwise(x)),
    same(ops.int8_linear(x, q, scale, None, 1, True, input_act="gelu_tanh"),
         ck.int8_linear(x, q, scale, None, torch.float16, True, input_act="gelu_tanh")),
    same(ops.quantize_fp8(x, one, 6), ck.quantize_per_tensor_fp8(x, one, torch.float8_e5m2)),
    same(ops.quantize_mxfp8(x, False), ck.quantize_mxfp8(x)),
    same(ops.adaln(heads, weight, weight, 1e-5), ck.adaln(heads, weight, weight, 1e-5)),
    same(ops.int8_attention(heads, heads, heads, 0.2),
         ck.int8_attention(heads, heads, heads, scale=0.2)),
]
a, b = heads.clone(), heads.clone()
answers.append(ops.rms_rope_split_half_(a, b, freqs, weight) is None)
answers.append(same((a, b), ck.rms_rope_split_half(heads, heads, freqs, weight)))
frames, kernel = torch.randn(1, 4, 3, 6, 6), torch.randn(8, 4, 2, 3, 3)
out = torch.empty(1, 8, 2, 4, 4)
answers.append(ops.fp16_conv3d_out(frames, kernel, None, None, [1, 1, 1], out) is None)
answers.append(same(out, ck.fp16_conv3d(frames, kernel)))
print(json.dumps(answers))
""")  # fmt: skip
    assert answer == [True] * 10


def test_operators_are_compiled_in_one_graph():
    answer = alone(OPERATORS + """
@torch.compile(fullgraph=True, backend="aot_eager")
def turned(heads):
    ops.apply_rope1_(heads, freqs)
    return ops.rms_rope1(heads, freqs, weight) + 1
a, b = heads.clone(), ck.apply_rope1(heads, freqs)
got = turned(a)
print(json.dumps([same(a, b), same(got, ck.rms_rope1(b, freqs, weight) + 1)]))
""")  # fmt: skip
    assert answer == [True] * 2


def test_install_without_comfy_kitchen_says_so():
    answer = alone("""
try:
    pestle.compat.install()
except RuntimeError as error:
    print(json.dumps({"error": str(error)}))
""")
    assert "comfy_kitchen is not installed" in answer["error"]


def test_compiled_in_one_graph_and_again_when_the_backend_changes():
    answer = alone(
        CALLS
        + """
graphs = []
def keep(graph, inputs):
    graphs.append(sorted({str(n.target) for n in graph.graph.nodes if "pestle" in str(n.target)}))
    return graph.forward
@torch.compile(fullgraph=True, backend=keep)
def both(x):
    return ck.dequantize_per_tensor_fp8(ck.quantize_per_tensor_fp8(x, one), one) + 1
plain = ck.dequantize_per_tensor_fp8(ck.quantize_per_tensor_fp8(x, one), one) + 1
same = torch.equal(both(x), plain)
with ck.use_backend("eager"):
    same = same and torch.equal(both(x), plain)
print(json.dumps([graphs, same]))
"""
    )
    graphs, same = answer
    assert same and len(graphs) == 2
    assert all("pestle_eager" in name for name in graphs[1])
    assert all("pestle_eager" not in name for name in graphs[0]) and len(graphs[0]) == 2


def test_import_pestle_does_not_import_compat():
    answer = alone(
        "import pestle, sys; print(json.dumps('pestle.compat.comfy_kitchen' in sys.modules))"
    )
    assert answer is False
    assert pestle.__version__
