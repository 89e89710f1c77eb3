"""Checkpoints of others and our own, straight to QuantizedTensors."""

import io
import json
import pickle

import pestle
import pytest
import torch
from pestle import quantized as q
from pestle.quantized import loading
from quantized_cases import NAMES, nothing_decoded, quantized, relative, weight
from torch import nn

COMFY = [n for n in NAMES if n in ("fp8", "fp8-e5m2", "nvfp4", "mxfp8", "int8", "int8-row",
                                   "int8-convrot", "w4a8", "w4a4-convrot")]  # fmt: skip


def file_of(tmp_path, tensors: dict, name: str = "model.safetensors", **options):
    path = tmp_path / name
    pestle.save_file(tensors, path, **options)
    return path


def config(**values) -> torch.Tensor:
    return torch.tensor(list(json.dumps(values).encode()), dtype=torch.uint8)


class Pair(nn.Module):
    def __init__(self, columns=512):
        super().__init__()
        self.a, self.b = nn.Linear(columns, 300), nn.Linear(300, 40, bias=False)

    def forward(self, x):
        return self.b(nn.functional.silu(self.a(x)))


EVERY = [(n, "comfy") for n in COMFY] + [(n, "plain") for n in NAMES]


@pytest.mark.parametrize(("name", "layout"), EVERY)
def test_a_quantised_file_becomes_the_quantised_model(tmp_path, name, layout):
    torch.manual_seed(0)
    made = Pair().bfloat16()
    pestle.quantize_(made, name, layout=layout, default_keep=False)
    path = tmp_path / "model.safetensors"
    pestle.save_model(made, path, layout)
    other = Pair().bfloat16()
    with nothing_decoded():
        assert pestle.load_model_(other, path, strict=True) == []
    for key, value in made.state_dict().items():
        assert torch.equal(other.state_dict()[key], value), key
    x = weight(5)
    assert torch.equal(made(x), other(x))
    found = q.load_quantized(path)
    assert found.keys() == made.state_dict().keys()
    assert all(torch.equal(found[key], value) for key, value in made.state_dict().items())


def test_padding_that_a_file_does_not_tell_comes_from_the_model(tmp_path):
    made = quantized("nvfp4", weight(40, 72))
    stored = {f"net.a.weight{k}": t for k, t in made.state_dict().items()}
    path = file_of(tmp_path, {**stored, "net.a.comfy_quant": config(format="nvfp4")})
    model = nn.ModuleDict({"a": nn.Linear(72, 40, bias=False)})
    pestle.load_model_(model, path, prefix="net.")
    assert model["a"].weight.dtype == torch.float32 and model["a"].weight.shape == (40, 72)
    found = q.load_quantized(path)["net.a.weight"]
    assert found.shape == (48, 80) and found.dtype == torch.bfloat16
    with pytest.raises(pestle.InvalidArgumentError, match="has shape"):
        pestle.load_model_(nn.ModuleDict({"a": nn.Linear(64, 40, bias=False)}), path, prefix="net.")


@pytest.mark.parametrize("name", ["fp8", "nvfp4"])
@pytest.mark.parametrize("full", [False, True])
def test_input_scale_and_pre_quant_scale_prepare_x(tmp_path, name, full):
    made = quantized(name, weight(32, 64))
    pre, scale = torch.linspace(0.5, 1.5, 64), torch.tensor(0.02)
    told = config(format={"fp8": "float8_e4m3fn"}.get(name, name), full_precision_matrix_mult=full)
    stored = {f"a.weight{k}": t for k, t in made.state_dict().items()}
    extra = {"a.comfy_quant": told, "a.input_scale": scale, "a.pre_quant_scale": pre}
    path = file_of(tmp_path, stored | extra)
    model = nn.ModuleDict({"a": nn.Linear(64, 32, bias=False, dtype=torch.bfloat16)})
    pestle.load_model_(model, path)
    x = weight(6, 64, seed=1).view(2, 3, 64)
    with nothing_decoded(), torch.no_grad():
        found = model["a"](x)
    prepared = x * pre.bfloat16()
    if not full:
        layout = made.layout_cls.__name__
        flat = prepared.view(6, 64)
        coded = pestle.QuantizedTensor.from_float(flat, layout, scale=scale)
        prepared = coded.dequantize().view(2, 3, 64)
    expected = prepared.double() @ made.dequantize().double().t()
    assert found.shape == (2, 3, 32) and relative(found, expected) < 5e-3


@pytest.mark.parametrize("marker", [1, 2])
def test_older_fp8_files(tmp_path, marker):
    made = quantized("fp8", weight(32, 64))
    path = file_of(tmp_path, {
        "scaled_fp8": torch.zeros(marker, dtype=torch.float8_e4m3fn), "a.weight": made._qdata,
        "a.scale_weight": made.params.scale, "a.scale_input": torch.tensor(0.03),
        "b.weight": made._qdata, "b.scale_weight": made.params.scale.reshape(1),
        "b.scale_input": torch.tensor(1.0),
    })  # fmt: skip
    model = nn.ModuleDict({n: nn.Linear(64, 32, bias=False) for n in "ab"}).bfloat16()
    pestle.load_model_(model, path)
    assert torch.equal(model["a"].weight, made) and torch.equal(model["b"].weight, made)
    assert type(model["b"]) is nn.Linear
    assert model["a"].quantises_input == (marker == 1)


def test_w4a8_without_its_codebook_is_refused(tmp_path):
    """There it means codes of even steps; the fixed codebook would give other values."""
    stored = quantized("w4a8", weight(32, 256)).state_dict("a.weight")
    del stored["a.weight_codebook"]
    path = file_of(tmp_path, stored | {"a.comfy_quant": config(format="asym_w4a8_int8")})
    with pytest.raises(pestle.UnsupportedError, match="without weight_codebook has codes of even"):
        q.load_quantized(path)


def test_a_bank_of_experts(tmp_path):
    experts = [quantized("nvfp4", weight(32, 64, seed=i)) for i in range(3)]
    parts = [e.state_dict("a.weight") for e in experts]
    stored = {k: torch.stack([p[k].view(torch.uint8) if p[k].ndim else p[k] for p in parts])
              for k in parts[0]}  # fmt: skip
    stored["a.weight_scale"] = stored["a.weight_scale"].view(torch.float8_e4m3fn)
    path = file_of(tmp_path, stored | {"a.comfy_quant": config(format="nvfp4", num_experts=3)})
    bank = q.load_quantized(path)["a.weight"]
    assert bank.shape == (3, 32, 64)
    x = weight(6, 64, seed=9)
    with nothing_decoded():
        found = torch.stack([torch.nn.functional.linear(x, bank[i]) for i in range(3)])
        batch = torch.bmm(torch.stack([x] * 3), bank.mT)
    expected = torch.stack([x.double() @ e.dequantize().double().t() for e in experts])
    assert relative(found, expected) < 5e-3 and relative(batch, expected) < 5e-3


@pytest.mark.parametrize("method", ["gptq", "gptq_v2", "awq"])
def test_gptq_and_awq_folders_keep_every_code(tmp_path, method):
    generator = torch.Generator().manual_seed(5)
    codes = torch.randint(0, 16, (64, 128), generator=generator)
    zeros = torch.randint(1, 16, (64, 4), generator=generator)
    scales = (torch.rand(4, 64, generator=generator) + 0.5).half()
    plain = (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8)
    base = "awq" if method == "awq" else "gptq"
    stored = {
        "a.qweight": pestle.repack_int4(plain, from_packing="plain_unsigned", to_packing=base),
        "a.qzeros": pestle.repack_zeros(zeros.to(torch.uint8), to_packing=method),
        "a.scales": scales,
    }
    if base == "gptq":
        stored["a.g_idx"] = (torch.arange(128) // 32).int()
    told = {"quant_method": base, "bits": 4, "group_size": 32, "checkpoint_format": method}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": told}))
    file_of(tmp_path, stored)
    made = q.load_quantized(tmp_path)["a.weight"]
    wide = scales.float().t().repeat_interleave(32, 1)
    expected = (codes - zeros.repeat_interleave(32, 1)) * wide
    assert made.shape == (64, 128) and made.dtype == torch.float16
    assert torch.equal(made.dequantize(), expected.half())
    x = weight(3, 128, dtype=torch.float16)
    with nothing_decoded():
        assert (
            relative(torch.nn.functional.linear(x, made), x.double() @ expected.double().t()) < 1e-3
        )
    stored["a.g_idx"] = torch.arange(128).flip(0).int() // 32
    file_of(tmp_path, stored)
    with pytest.raises(pestle.UnsupportedError, match="desc_act"):
        q.load_quantized(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(pestle.UnsupportedError, match="packings differ"):
        q.load_quantized(tmp_path)


def broken(tensors: dict, change) -> dict:
    tensors = dict(tensors)
    change(tensors)
    return tensors


NVFP4 = {f"a.weight{k}": t for k, t in quantized("nvfp4", weight(32, 64)).state_dict().items()}
NVFP4["a.comfy_quant"] = config(format="nvfp4")
BAD = {
    "a.weight_scale_2, which is missing": lambda t: t.pop("a.weight_scale_2"),
    "block_scale has shape": lambda t: t.update({"a.weight_scale": t["a.weight_scale"][:, :2]}),
    "NaN or infinite": lambda t: t.update({"a.weight_scale_2": torch.tensor(float("nan"))}),
    "scale has dtype": lambda t: t.update({"a.weight_scale_2": torch.tensor(3)}),
    "format 'nvfp5' is not one of": lambda t: t.update({"a.comfy_quant": config(format="nvfp5")}),
    "names no format": lambda t: t.update({"a.comfy_quant": config(formt="nvfp4")}),
    "a.comfy_quant": lambda t: t.update({"a.comfy_quant": torch.tensor([7], dtype=torch.uint8)}),
    "it has no weight": lambda t: t.pop("a.weight"),
    "has dtype torch.float32": lambda t: t.update({"a.weight": torch.ones(32, 32)}),
}


@pytest.mark.parametrize("message", BAD)
def test_what_does_not_fit_is_a_sentence(tmp_path, message):
    path = file_of(tmp_path, broken(NVFP4, BAD[message]))
    with pytest.raises(pestle.PestleError, match=message):
        q.load_quantized(path)


def test_a_truncated_file_is_refused(tmp_path):
    path = file_of(tmp_path, NVFP4)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(pestle.CorruptFileError):
        q.load_quantized(path)


def test_names_that_do_not_match_are_said_before_anything_is_done(tmp_path):
    path = file_of(tmp_path, {**NVFP4, "extra": torch.ones(2)})
    model = nn.ModuleDict({"a": nn.Linear(64, 32), "c": nn.Linear(8, 8, bias=False)})
    before = model["a"].weight
    with pytest.raises(pestle.InvalidArgumentError, match=r"a\.bias, c\.weight, extra"):
        pestle.load_model_(model, path)
    assert model["a"].weight is before
    assert pestle.load_model_(model, path, strict=False) == ["a.bias", "c.weight", "extra"]
    assert isinstance(model["a"].weight, pestle.QuantizedTensor)


def test_progress_goes_layer_by_layer(tmp_path):
    seen = []
    q.load_quantized(file_of(tmp_path, {**NVFP4, "b": torch.ones(2)}),
                     progress=lambda *what: seen.append(what))  # fmt: skip
    assert [done for _, done, _ in seen] == [1, 2] and {total for *_, total in seen} == {2}


@pytest.mark.parametrize("name", NAMES)
def test_torch_save_pickle_and_copies(name):
    made = quantized(name, weight())
    held = {"w": made, "p": nn.Parameter(made, requires_grad=False)}
    buffer = io.BytesIO()
    torch.save(held, buffer)
    buffer.seek(0)
    found = torch.load(buffer, weights_only=True)
    assert torch.equal(found["w"], made) and isinstance(found["p"], nn.Parameter)
    assert torch.equal(pickle.loads(pickle.dumps(made)), made)
    assert loading.load_quantized.__doc__


def test_safetensors_takes_the_stored_tensors(tmp_path):
    from safetensors.torch import load_file, save_file

    torch.manual_seed(0)
    model = Pair().bfloat16()
    pestle.quantize_(model, "nvfp4", default_keep=False)
    save_file(q.state_dict(model), tmp_path / "theirs.safetensors")
    found = load_file(tmp_path / "theirs.safetensors")
    assert torch.equal(found["a.weight"], model.a.weight._qdata)
    other = Pair().bfloat16()
    pestle.load_model_(other, tmp_path / "theirs.safetensors")
    assert torch.equal(other.b.weight, model.b.weight)
