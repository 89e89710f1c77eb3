"""quantize_ and report: the same bytes as `pestle quantize`, and what became of each layer."""

import copy
import json

import pestle
import pytest
import torch
from pestle import quantized as q
from quantized_cases import NAMES, nothing_decoded, relative
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(256, 300), nn.Linear(300, 256)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 256)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.norm = nn.LayerNorm(256)
        self.out = nn.Linear(256, 10)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x))


def model(dtype=torch.bfloat16) -> Model:
    torch.manual_seed(0)
    return Model().to(dtype)


def both(tmp_path, made, recipe=None, **options):
    """Report of a file and of a model that were quantised alike, with the two files' bytes."""
    source, by_file, by_model = (tmp_path / f"{n}.safetensors" for n in ("source", "file", "model"))
    pestle.save_file(made.state_dict(), source)
    given = {"recipe": recipe} if recipe and recipe not in NAMES else {"format": recipe}
    of_file = pestle.quantize_file(source, by_file, **given, **options)
    of_model = pestle.quantize_(made, recipe, **options)
    pestle.save_model(made, by_model, of_model.layout)
    return of_file, of_model, by_file.read_bytes(), by_model.read_bytes()


@pytest.mark.parametrize("search", [None, "mse"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", NAMES)
def test_a_model_has_the_bytes_of_the_file(tmp_path, name, dtype, search):
    of_file, of_model, file, saved = both(tmp_path, model(dtype), name, scale_search=search)
    assert file == saved
    lines = {line["name"]: line for line in of_file["layers"]}
    assert len(of_model.quantised) in (3, 6)
    for layer in of_model.layers:
        line = lines[layer.name]
        assert layer.format == line["format"]
        assert layer.kept_because == line.get("kept_because", "")
        if layer.format:
            assert layer.relative_error == pytest.approx(line["relative_error"], rel=1e-6)


RECIPE = """
target_error = 0.05
keep = ["blocks.1.*"]
default_keep = false

[[layer]]
pattern = "blocks.2.*"
format = "int8-row"
"""


def test_a_recipe_file_does_what_it_does_on_the_command_line(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    of_file, of_model, file, saved = both(tmp_path, model(), path)
    assert file == saved
    formats = {layer.name: layer.format for layer in of_model.quantised}
    assert formats["blocks.2.up"] == "int8-row" and "blocks.1.up" not in formats
    assert {line["name"]: line["format"] for line in of_file["layers"] if line["format"]} == formats
    assert all(layer.relative_error < 0.05 for layer in of_model.quantised)


def test_a_recipe_may_be_a_dict():
    made = model()
    rules = [{"pattern": "blocks.0.*", "format": "mxfp8"}]
    found = pestle.quantize_(made, {"format": "nvfp4", "layer": rules, "keep": ["*.down"]})
    assert {layer.name: layer.format for layer in found.quantised} == {
        "blocks.0.up": "mxfp8", "blocks.1.up": "nvfp4", "blocks.2.up": "nvfp4",
    }  # fmt: skip
    with pytest.raises(pestle.InvalidArgumentError, match="no key 'formatt'"):
        pestle.quantize_(model(), {"formatt": "nvfp4"})


def test_a_plan_that_fails_leaves_the_model_whole():
    for recipe, options, message in (
        ("nvfp5", {}, "neither a file nor a format"),
        ("nvfp4", {"keep": ["nothing.*"]}, "matches no tensor"),
        (None, {}, "nothing says which format"),
        ("mxfp4", {"layout": "comfy"}, "has no mxfp4"),
        ("fp8", {"activations": "column"}, 'activations is "column"'),
    ):
        made = model()
        with pytest.raises(pestle.PestleError, match=message):
            pestle.quantize_(made, recipe, **options)
        assert not any(isinstance(p, pestle.QuantizedTensor) for p in made.parameters())


def test_a_weight_that_is_not_finite_is_named_before_anything_is_done():
    made = model()
    made.blocks[2].up.weight.data[4, 7] = float("nan")
    with pytest.raises(pestle.InvalidArgumentError, match=r"blocks\.2\.up\.weight\[4, 7\] is nan"):
        pestle.quantize_(made, "fp8")
    assert not any(isinstance(p, pestle.QuantizedTensor) for p in made.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_a_quantised_model_runs_without_decoding(name):
    plain = model(torch.float32)
    made = copy.deepcopy(plain)
    pestle.quantize_(made, name, default_keep=False)
    tokens = torch.arange(24).view(2, 12)
    with nothing_decoded(elements=24 * 256):  # the rows that the embedding gathers
        found = made(tokens)
    bound = 0.25 if "4" in name else 0.12
    assert relative(found, plain(tokens)) < bound
    found.sum().backward()
    assert made.norm.weight.grad is not None and made.blocks[0].up.bias.grad is not None


def test_activations_by_rows_are_an_option():
    plain = model(torch.float32)
    for name in ("fp8", "fp8-row", "int8-row", "int8-convrot"):
        made = copy.deepcopy(plain)
        pestle.quantize_(made, name, activations="row")
        weight = made.blocks[0].up.weight
        assert weight.params.activations == "row"
        with torch.no_grad(), nothing_decoded():
            assert relative(made(torch.arange(12)), plain(torch.arange(12))) < 0.08


def test_tied_weights_stay_tied():
    made = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64))
    made[2].weight = made[1].weight
    pestle.quantize_(made, "mxfp8", default_keep=False)
    assert made[1].weight is made[2].weight


def test_quantising_twice_changes_nothing_more():
    made = model()
    pestle.quantize_(made, "nvfp4")
    before = q.state_dict(made)
    again = pestle.quantize_(made, "fp8", default_keep=False)
    assert {layer.name for layer in again.quantised} == {"embed", "out"}
    assert torch.equal(q.state_dict(made)["blocks.0.up.weight"], before["blocks.0.up.weight"])


def test_the_report_says_which_kernel_runs_and_why():
    made = model()
    pestle.quantize_(made, "nvfp4")
    found = pestle.report(made, rows=4)
    layers = {layer.name: layer for layer in found.layers}
    up = layers["blocks.0.up"]
    weight = made.blocks[0].up.weight
    x = torch.empty(4, 256, dtype=torch.bfloat16)
    arguments = (x, weight._qdata[:300], weight.params.block_scale, weight.params.scale)
    assert up.op == "linear_nvfp4"
    assert up.kernel == pestle.why("linear_nvfp4", *arguments).chosen
    assert "linear_nvfp4" in up.why and up.kernel in up.why
    assert up.bytes_after == weight.stored_bytes and up.bytes_before == 300 * 256 * 2
    assert 0.05 < up.relative_error < 0.12
    assert layers["out"].format is None and "not quantised" in layers["out"].why
    text = str(found)
    assert "blocks.0.up" in text and up.kernel in text
    assert json.loads(json.dumps(found.to_dict()))["layers"][0]["name"] == found.layers[0].name


def test_progress_is_told():
    seen = []
    pestle.quantize_(model(), "fp8", progress=lambda *what: seen.append(what))
    assert len(seen) == 6 and seen[-1][1] == seen[-1][2] > 0


def test_models_move_and_change_dtype_as_they_are():
    made = model()
    pestle.quantize_(made, "nvfp4")
    codes = made.blocks[0].up.weight._qdata.clone()
    with nothing_decoded():
        made.to(torch.float16)
    weight = made.blocks[0].up.weight
    assert isinstance(weight, pestle.QuantizedTensor) and isinstance(weight, nn.Parameter)
    assert weight.dtype == torch.float16 and torch.equal(weight._qdata, codes)
    other = model(torch.float16)
    pestle.quantize_(other, "nvfp4")
    other.load_state_dict(made.state_dict())
    assert torch.equal(other.blocks[0].up.weight._qdata, codes)
