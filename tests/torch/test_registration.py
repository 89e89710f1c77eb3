"""What torch asks of an op: opcheck for every registered form; and the ABI's declarations."""

import re
import subprocess
import sysconfig
from pathlib import Path

import cases
import pytest
import torch
from pestle import _contract, list_ops, overloads
from pestle._backward import backward_of
from pestle._library import contracts

ROOT = Path(__file__).parents[2]


def arguments(form, device="cpu"):
    """A small call without NaNs, which torch takes for unequal."""
    case = cases.first_case(form, device)
    for name, tensor in case.call.tensors.items():
        if tensor.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
            case.call.tensors[name] = (tensor.view(torch.uint8) & 0x77).view(tensor.dtype)
        elif tensor.dtype in (torch.float32, torch.float16, torch.bfloat16):
            case.call.tensors[name] = tensor.nan_to_num(1, 2, -2).clamp(-8, 8)
    given = case.empty_outputs() if form.kind == "out" else {}
    written = {name: case.call.tensors[name].clone() for name in form.aliases}
    given = case.call.tensors | given | written
    return case.arguments(form, **{name: tensor.to(device) for name, tensor in given.items()})


# torch's comparison of schema and behaviour can't multiply these dtypes; test_cases.py looks itself
# whether inputs stay as they are.
_NO_SCHEMA_CHECK = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu)


@pytest.mark.parametrize(
    ("form", "device"),
    [(f, d) for f in cases.forms_with_a_case() for d in cases.DEVICES if cases.runs_on(f, d)],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_opcheck(form, device):
    args, kwargs = arguments(form, device)
    torch.library.opcheck(form.overload, args, kwargs, test_utils=utils_for(args, kwargs))


def utils_for(args: tuple, kwargs: dict) -> list[str]:
    utils = ["test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
    tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]
    checks_schema = not any(tensor.dtype in _NO_SCHEMA_CHECK for tensor in tensors)
    return [*utils, "test_schema"] if checks_schema else utils


def has_gradients(form) -> bool:
    """Codes among the outputs can't be summed, which opcheck does with every output."""
    codes = {arg["name"] for arg in contracts()[form.op]["args"] if "codes_by" in arg}
    return backward_of(form.contract) is not None and not codes & set(form.outputs)


@pytest.mark.parametrize(
    "form",
    [f for f in cases.forms_with_a_case() if f.kind == "functional" and has_gradients(f)],
    ids=lambda form: form.name,
)
def test_opcheck_with_gradients(form):
    args, kwargs = arguments(form)
    gives = backward_of(form.contract).gives
    names = [name for kind, name, _ in form.arguments if kind in ("tensor", "optional_tensor")]
    args = tuple(
        arg.clone().requires_grad_() if arg is not None and name in gives else arg
        for name, arg in zip(names, args, strict=True)
    )
    assert any(arg is not None and arg.requires_grad for arg in args)
    # Of a sum, d_out has strides of 0 without torch.compile, and gradients may be added in another
    # order (group_norm's are: 4e-6 apart in f32). That they are the same where d_out is, is
    # test_gradients.py's matter; this bound is torch's for bf16.
    utils = utils_for(args, kwargs)
    torch.library.opcheck(form.overload, args, kwargs, test_utils=utils, rtol=1.6e-2, atol=1e-4)


def test_every_op_has_forms_with_a_case():
    with_lists = {op for op in list_ops() if _contract.op(op).has_lists}  # test_lists.py has these
    assert {form.op for form in cases.forms_with_a_case()} == set(list_ops()) - with_lists


def test_every_op_of_the_table_is_bound():
    assert len(list_ops()) == len((ROOT / "ops/ops.def").read_text().split("\nPESTLE_OP(")) - 1
    for op in list_ops():
        kinds = {form.kind for form in overloads(op)}
        assert {"functional", "out"} <= kinds


def test_the_declared_abi_is_torchs(tmp_path):
    """The functions that torch_abi.h declares by itself have the types of torch's headers."""
    header = (ROOT / "python/csrc/torch_abi.h").read_text()
    declared = re.findall(r"X\((\w+), (\w+),\s*\((.*?)\)\)(?:\s*\\?\n)", header)
    assert len(declared) > 35
    lines = []
    for result, name, types in declared:
        if name == "torch_delete_stable_ivalue":  # newer than 2.11
            continue
        for ours, theirs in (("TensorHandle", "AtenTensorHandle"), ("LibraryHandle",
                "TorchLibraryHandle"), ("GuardHandle", "DeviceGuardHandle"),
                ("Error", "AOTITorchError"), ("BoxedKernel",
                "void (*)(StableIValue*, uint64_t, uint64_t)")):  # fmt: skip
            result = re.sub(rf"\b{ours}\b", theirs, result)
            types = re.sub(rf"\b{ours}\b", theirs, types)
        lines.append(f"static_assert(std::is_same_v<decltype(&{name}), {result} (*)({types})>);")
    source = tmp_path / "abi.cpp"
    source.write_text(
        "#define USE_CUDA\n#include <type_traits>\n#include <torch/csrc/stable/c/shim.h>\n"
        + "\n".join(lines)
    )
    include = Path(torch.__file__).parent / "include"
    subprocess.run(
        ["c++", "-std=c++20", "-fsyntax-only", "-DTORCH_TARGET_VERSION=0x020b000000000000",
         f"-I{include}", f"-I{sysconfig.get_path('include')}", str(source)],
        check=True,
    )  # fmt: skip
