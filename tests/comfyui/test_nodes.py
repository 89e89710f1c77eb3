"""The node pack in a ComfyUI that runs: loaded, listed, and a workflow of each node."""

import importlib
import json
import os
import re
import subprocess
import sys

import pytest
import torch
from pestle.comfy import INPUTS
from safetensors.torch import load_file, save_file
from server import ROOT
from workflows import compiled, error, latent, link, loaded, node, sampled, succeed

NODES = {
    "TorchCompileSpeedSettings": "Torch Compile Speed Settings",
    "ApplyTorchCompile": "Apply Torch Compile",
    "PestleCompileReport": "Compile report (Pestle)",
    "PestleKernels": "Pestle kernels",
    "PestleModelReport": "Model report (Pestle)",
    "PestleQuantiseModel": "Quantise model (Pestle)",
    "PestleLoadDiffusionModel": "Load diffusion model (Pestle)",
}


def test_the_pack_loads_without_a_warning(server):
    """Some of ComfyUI's own nodes lack packages here and warn; ours don't."""
    lines = server.log.read_text().splitlines()
    (loaded_in,) = [line for line in lines if line.endswith("custom_nodes/pestle")]
    assert "FAILED" not in loaded_in
    warnings = [line for line in lines if "WARNING" in line or "ERROR" in line]
    assert not [line for line in warnings if "pestle" in line or "pyproject.toml" in line]


def test_every_node_is_listed(server):
    listed = server.get("/object_info")
    found = {
        name: info["display_name"]
        for name, info in listed.items()
        if info["python_module"] == "custom_nodes.pestle"
    }
    assert found == NODES
    assert listed["TorchCompileSpeedSettings"]["output"] == ["WANCOMPILEARGS"]
    apply = listed["ApplyTorchCompile"]
    assert apply["input"]["required"]["model"][0] == "MODEL,WANVIDEOMODEL"
    assert all(listed[name]["description"] for name in NODES)


def test_the_settings_have_every_input_default_range_and_tooltip(server):
    listed = server.get("/object_info")["TorchCompileSpeedSettings"]["input"]
    found = {**listed["required"], **listed["optional"]}
    assert list(found) == [one.name for one in INPUTS]
    kinds = {"bool": "BOOLEAN", "int": "INT", "string": "STRING", "combo": "COMBO"}
    for one in INPUTS:
        kind, told = found[one.name]
        assert kind == kinds[one.kind] or kind == list(one.options)
        assert (one.name in listed["optional"]) == one.optional
        assert told["default"] == one.default and told["tooltip"] == one.tooltip
        if one.kind == "int":
            assert (told["min"], told["max"]) == (one.low, one.high)


def test_the_example_workflows_are_offered(server):
    offered = server.get("/workflow_templates")["pestle"]
    folder = ROOT / "comfyui/example_workflows"
    assert sorted(offered) == sorted(path.stem for path in folder.glob("*.json")) and offered
    known = server.get("/object_info")
    for path in folder.glob("*.json"):
        for one in json.loads(path.read_text())["nodes"]:
            assert one["type"] in known or one["type"] == "Note", (path, one["type"])


def test_a_compiled_flux_is_the_eager_one_and_the_rest_is_as_before(server):
    succeed(server, loaded() | sampled(link("model"), "eager"))
    eager = latent(server, "eager")
    flow = loaded() | compiled() | sampled(link("apply"), "compiled")
    shown = succeed(server, flow).shown["report"]
    text = shown["text"][0]
    assert len(shown["images"]) == 1
    fast = latent(server, "compiled")
    assert error(fast, eager) < 1e-3
    assert "Flux: 2 x DoubleStreamBlock, 2 x SingleStreamBlock" in text
    assert "compiled 2 graphs (0 again)" in text and "graph breaks: 0" in text
    assert "error against eager" in text and "runs eagerly" not in text

    # Another resolution compiles nothing.
    wide = loaded() | compiled() | sampled(link("apply"), "wide", width=128)
    text = succeed(server, wide).shown["report"]["text"][0]
    assert "compiled 2 graphs (0 again)" in text

    # The same model without the node, and another one of the same shapes.
    succeed(server, loaded() | sampled(link("model"), "again", salt=1))
    assert torch.equal(latent(server, "again"), eager)
    succeed(server, loaded("second.safetensors") | sampled(link("model"), "second"))
    assert torch.equal(latent(server, "second"), eager)

    # Interrupted in the middle: nothing is left behind.
    long = loaded() | compiled() | sampled(link("apply"), "long", steps=400)
    assert server.run(long, interrupt_at="sampler").status == "execution_interrupted"
    succeed(server, loaded() | sampled(link("model"), "after", salt=2))
    assert torch.equal(latent(server, "after"), eager)


def wan(model: list, prefix: str, frames: int = 5) -> dict:
    """Two tokens' worth of video, conditional and unconditional."""
    made = sampled(model, prefix)
    video = node("EmptyHunyuanLatentVideo", width=64, height=64, length=frames, batch_size=1)
    made["text"]["inputs"]["width"] = 4096
    made["sampler"]["inputs"] |= {"cfg": 3.0, "negative": link("other")}
    other = node("ConditioningZeroOut", conditioning=link("text"))
    return made | {"empty": video, "other": other}


def test_a_compiled_wan_is_the_eager_one_for_any_length(server):
    name = "wan.safetensors"
    for frames in (5, 9):
        succeed(server, loaded(name) | wan(link("model"), f"wan{frames}", frames))
        flow = loaded(name) | compiled() | wan(link("apply"), f"wan_fast{frames}", frames)
        text = succeed(server, flow).shown["report"]["text"][0]
        eager, fast = latent(server, f"wan{frames}"), latent(server, f"wan_fast{frames}")
        assert error(fast, eager) < 1e-3
        assert "2 x WanAttentionBlock" in text
        # 0 the second time if ComfyUI ran the node again, which took the graph that was there.
        graphs = "1" if frames == 5 else "[01]"
        assert re.search(rf"compiled {graphs} graphs \(0 again\)", text), text


def test_a_quantised_flux_compiles_with_pestles_kernels(server):
    quantised = loaded() | {
        "quantise": node("PestleQuantiseModel", model=link("model"), format="int8-row"),
        "kernels": node("PestleKernels", model=link("quantise"), mode="on"),
    }
    succeed(server, quantised | sampled(link("kernels"), "quantised"))
    eager = latent(server, "quantised")
    fast = quantised | compiled()
    fast["apply"]["inputs"]["model"] = link("kernels")
    text = succeed(server, fast | sampled(link("apply"), "both")).shown["report"]["text"][0]
    both = latent(server, "both")
    assert "runs eagerly" not in text and "error against eager" in text, text
    assert error(both, eager) < 0.02


def test_an_error_above_the_bound_runs_eagerly_and_says_so(server):
    """Kernels differ in the last bits: under a bound of nothing that is too much."""
    succeed(server, loaded() | sampled(link("model"), "exact"))
    strict = loaded() | compiled()
    strict["apply"]["inputs"]["error_bound"] = 1e-12
    text = succeed(server, strict | sampled(link("apply"), "strict")).shown["report"]["text"][0]
    assert "runs eagerly: the error against eager is" in text
    assert "above the bound of 1e-12" in text
    assert torch.equal(latent(server, "strict"), latent(server, "exact"))


def test_the_settings_as_they_are_put_down_compile(server):
    """Every input at its default: the mode `speed`."""
    succeed(server, loaded() | sampled(link("model"), "eager_speed"))
    fast = loaded() | compiled()
    fast["settings"]["inputs"] = {
        one.name: one.default for one in INPUTS if not one.optional
    }  # fmt: skip
    text = succeed(server, fast | sampled(link("apply"), "speed")).shown["report"]["text"][0]
    assert "runs eagerly" not in text and "graph breaks: 0" in text, text
    assert error(latent(server, "speed"), latent(server, "eager_speed")) < 1e-3


def test_a_report_of_a_model_that_is_not_compiled_says_so(server):
    flow = loaded() | {"report": node("PestleCompileReport", model=link("model"))}
    run = server.run(flow)
    assert run.status == "execution_error"
    assert "Apply Torch Compile comes before" in run.error["exception_message"]
    assert run.error["node_type"] == "PestleCompileReport"


FORMAT_BOUNDS = {"fp8": 0.10, "nvfp4": 0.35, "int8-row": 0.05}


@pytest.mark.parametrize("format", FORMAT_BOUNDS)
def test_a_quantised_flux_is_near_the_float_one(server, format):
    succeed(server, loaded() | sampled(link("model"), "float"))
    want = latent(server, "float")
    flow = loaded() | {
        "quantise": node("PestleQuantiseModel", model=link("model"), format=format,
                         target_error=0.0, patterns="", keep="", recipe=""),
        "kernels": node("PestleKernels", model=link("quantise"), mode="on"),
        "report": node("PestleModelReport", model=link("kernels"), after=link("sampler")),
    }  # fmt: skip
    run = succeed(server, flow | sampled(link("kernels"), format))
    got = latent(server, format)
    assert 1e-4 < error(got, want) < FORMAT_BOUNDS[format]
    assert "quantise" in run.progress
    shown = run.shown["quantise"]
    assert " weights: " in shown["text"][0] and len(shown["images"]) == 1
    told = run.shown["report"]["text"][0]
    assert "x pestle" in told and "x eager" not in told
    assert re.search(r"  double_blocks\.0\.img_attn\.qkv: .* by pestle \(cpu/", told), told

    # The loader's model is as it was.
    succeed(server, loaded() | sampled(link("model"), "still", salt=3 + len(format)))
    assert torch.equal(latent(server, "still"), want)


@pytest.fixture(scope="module")
def lora_file(server) -> str:
    weight = "double_blocks.0.img_attn.proj"
    made = torch.Generator().manual_seed(3)
    save_file(
        {
            f"diffusion_model.{weight}.lora_up.weight": torch.randn(256, 4, generator=made),
            f"diffusion_model.{weight}.lora_down.weight": torch.randn(4, 256, generator=made),
        },
        server.base / "models/loras/one.safetensors",
    )
    return "one.safetensors"


def lora_on(model: list, file: str, strength: float = 0.05) -> dict:
    return {"lora": node("LoraLoaderModelOnly", model=model, lora_name=file,
                         strength_model=strength)}  # fmt: skip


def test_a_compiled_model_takes_a_lora(server, lora_file):
    """Before Apply Torch Compile and behind it, where another strength compiles nothing."""
    eager = {}
    for strength in (0.05, 0.1):
        flow = loaded() | lora_on(link("model"), lora_file, strength)
        succeed(server, flow | sampled(link("lora"), f"eager_lora_{strength}"))
        eager[strength] = latent(server, f"eager_lora_{strength}")
    succeed(server, loaded() | sampled(link("model"), "no_lora"))
    none = latent(server, "no_lora")
    assert error(eager[0.05], none) > 0.01

    before = loaded() | lora_on(link("model"), lora_file) | compiled()
    before["apply"]["inputs"]["model"] = link("lora")
    text = succeed(server, before | sampled(link("apply"), "lora_before")).shown["report"]["text"][
        0
    ]
    assert "1 weights have patches (LoRA)" in text and "runs eagerly" not in text
    assert error(latent(server, "lora_before"), eager[0.05]) < 1e-3

    for strength in (0.05, 0.1):
        behind = loaded() | compiled() | lora_on(link("apply"), lora_file, strength)
        prefix = f"lora_behind_{strength}"
        text = succeed(server, behind | sampled(link("lora"), prefix)).shown["report"]["text"][0]
        assert "(0 again)" in text and "1 weights have patches (LoRA)" in text, text
        assert error(latent(server, prefix), eager[strength]) < 1e-3
    succeed(server, loaded() | compiled() | sampled(link("apply"), "lora_gone"))
    assert error(latent(server, "lora_gone"), none) < 1e-3


def test_a_quantised_model_takes_a_lora(server, lora_file):
    quantised = (
        loaded()
        | {
            "quantise": node("PestleQuantiseModel", model=link("model"), format="int8-row"),
        }
        | lora_on(link("quantise"), lora_file)
    )
    succeed(server, quantised | sampled(link("quantise"), "plain"))
    succeed(server, quantised | sampled(link("lora"), "lora"))
    with_float = loaded() | lora_on(link("model"), lora_file)
    succeed(server, with_float | sampled(link("lora"), "lora_float"))
    plain, lora, want = (latent(server, name) for name in ("plain", "lora", "lora_float"))
    change = error(plain, want)
    assert error(lora, want) < 0.5 * change


def test_files_that_comfyui_cannot_read_load(server):
    models = server.base / "models/diffusion_models"
    source = models / "flux.safetensors"
    pestle_bin = os.environ["PESTLE_BIN"]
    for layout in ("plain", "comfy"):
        subprocess.run(
            [pestle_bin, "quantize", source, models / f"{layout}.safetensors", "--layout", layout,
             "--format", "fp8"], check=True, capture_output=True,
        )  # fmt: skip
    latents = []
    for layout in ("comfy", "plain"):
        flow = {"model": node("PestleLoadDiffusionModel", name=f"{layout}.safetensors")}
        succeed(server, flow | sampled(link("model"), f"from_{layout}"))
        latents.append(latent(server, f"from_{layout}"))
    assert torch.equal(*latents)


def test_gguf_loads_and_says_that_it_is_decoded(server):
    import gguf

    models = server.base / "models/diffusion_models"
    kind = gguf.GGMLQuantizationType.Q8_0
    writer = gguf.GGUFWriter(models / "flux.gguf", "flux")
    for name, value in load_file(models / "flux.safetensors").items():
        given = value.float().numpy()
        if value.ndim == 2 and value.shape[1] % 32 == 0:
            writer.add_tensor(name, gguf.quants.quantize(given, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, given)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    succeed(server, loaded() | sampled(link("model"), "not_gguf"))
    flow = {
        "model": node("PestleLoadDiffusionModel", name="flux.gguf"),
        "notes": node("PreviewAny", source=link("model", 1)),
    }
    run = succeed(server, flow | sampled(link("model"), "gguf"))
    assert run.shown["notes"]["text"] == ["flux.gguf is GGUF: its weights are decoded to bf16"]
    assert 1e-4 < error(latent(server, "gguf"), latent(server, "not_gguf")) < 0.05


def test_a_recipe_chooses_and_one_that_is_not_there_is_a_sentence(server):
    recipe = server.base / "recipe.toml"
    asked = {"format": "from recipe", "model": link("model"), "recipe": str(recipe)}
    flow = loaded() | {"quantise": node("PestleQuantiseModel", **asked)}
    run = server.run(flow | sampled(link("quantise"), "by_recipe"))
    assert run.status == "execution_error" and run.error["node_id"] == "quantise"
    assert "recipe.toml" in run.error["exception_message"]
    recipe.write_text('format = "int8-row"\n')
    text = succeed(server, flow | sampled(link("quantise"), "by_recipe")).shown["quantise"]["text"]
    assert " weights: " in text[0]


def test_a_wrong_file_is_a_sentence_on_the_node(server):
    path = server.base / "models/diffusion_models/wrong.safetensors"
    path.write_bytes(b"no model at all")
    flow = {"model": node("PestleLoadDiffusionModel", name="wrong.safetensors")}
    run = server.run(flow | sampled(link("model"), "wrong"))
    assert run.status == "execution_error" and run.error["node_id"] == "model"
    assert "wrong.safetensors" in run.error["exception_message"]


def test_wanvideo_is_told_on_a_clone():
    """WanVideoWrapper reads its model object's pipeline and compiles by itself."""
    import comfy.model_patcher
    from torch import nn

    class WanVideo(nn.Module):
        def __init__(self):
            super().__init__()
            self.diffusion_model = nn.Linear(2, 2)
            self.pipeline = {"compile_args": None, "base_dtype": torch.bfloat16}

    cpu = torch.device("cpu")
    model = comfy.model_patcher.ModelPatcher(WanVideo(), cpu, cpu)
    pack = imported_pack()
    settings = pack.TorchCompileSpeedSettings.execute(mode="speed").args[0]
    told = pack.ApplyTorchCompile.execute(model, settings).args[0]
    assert told.model.pipeline == {"compile_args": settings, "base_dtype": torch.bfloat16}
    assert settings["mode"] == "max-autotune-no-cudagraphs" and settings["dynamic"] is True
    assert told.model.diffusion_model is model.model.diffusion_model
    assert model.model.pipeline["compile_args"] is None


def test_elsewhere_than_on_linux_the_pack_says_that_it_is_untested(monkeypatch, caplog):
    monkeypatch.syspath_prepend(str(ROOT))
    caplog.set_level("INFO")
    pack = importlib.import_module("comfyui")
    importlib.reload(pack)
    assert "proven on Linux only" not in caplog.text
    monkeypatch.setattr(sys, "platform", "win32")
    importlib.reload(pack)
    assert "Pestle is proven on Linux only; on win32 its nodes are untested" in caplog.text


def test_without_the_python_package_the_pack_says_what_is_missing(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    pack = importlib.import_module("comfyui")
    monkeypatch.setitem(sys.modules, "pestle.comfy", None)
    with pytest.raises(
        ImportError, match="need the Python package pestle in ComfyUI's environment"
    ):
        importlib.reload(pack)


def test_bars_are_as_long_as_their_values():
    picture = imported_pack("picture")
    rows = [("a", 4.0, False), ("b", 1.0, True), ("c", 0.0, False)]
    image = (picture.bars("three", rows)[0] * 255).round().int()
    lengths = {}
    for color in (picture.PLAIN, picture.STRIKING):
        same = (image == torch.tensor(color, dtype=torch.int32)).all(-1)
        lengths[color] = sorted(same.sum(1).unique().tolist())[1:]
    full = picture.WIDTH - picture.LABEL - 8
    assert lengths == {picture.PLAIN: [2, full + 1], picture.STRIKING: [full // 4 + 1]}
    many = picture.bars("many", [("row", 1.0, False)] * 100)
    assert many.shape[1] == picture.ROW * (picture.MOST + 2) + 8


def imported_pack(name: str = "compile_nodes"):
    sys.path.insert(0, str(ROOT))
    try:
        return importlib.import_module(f"comfyui.{name}")
    finally:
        sys.path.remove(str(ROOT))
