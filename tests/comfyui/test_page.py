"""The nodes on ComfyUI's page, in Chromium: found by search, wired, run, and what they say is seen.

What the documentation shows is photographed here, into build/comfyui/pictures; --write-pictures
writes into docs/site/pictures instead."""

import json

import pytest
from browser_page import opened
from graph_page import SETTINGS, GraphPage
from server import ROOT

NODES = {
    "Torch Compile Speed Settings": "TorchCompileSpeedSettings",
    "Apply Torch Compile": "ApplyTorchCompile",
    "Compile report (Pestle)": "PestleCompileReport",
    "Quantise model (Pestle)": "PestleQuantiseModel",
    "Pestle kernels": "PestleKernels",
    "Model report (Pestle)": "PestleModelReport",
    "Load diffusion model (Pestle)": "PestleLoadDiffusionModel",
}
MOST_BYTES = 150_000
SHOWN = ("search", "compile", "quantise", "error")


@pytest.fixture(scope="module")
def graph(server):
    users = server.base / "user/default"
    users.mkdir(parents=True, exist_ok=True)
    (users / "comfy.settings.json").write_text(json.dumps(SETTINGS))
    (server.base / "models/diffusion_models/broken.safetensors").write_bytes(b"no model at all")
    with opened() as seen:
        yield GraphPage(seen, server.port)
        assert seen.exceptions == []


@pytest.fixture
def photograph(request, graph):
    """photograph(name): the page as it is now."""
    committed = request.config.getoption("--write-pictures")
    folder = ROOT / ("docs/site/pictures" if committed else "build/comfyui/pictures")
    folder.mkdir(parents=True, exist_ok=True)

    def take(name: str) -> None:
        path = folder / f"comfyui_{name}.png"
        graph.photograph(path)
        assert 10_000 < path.stat().st_size < MOST_BYTES

    return take


def add(graph: GraphPage, name: str, at: tuple) -> str:
    node, kind = graph.add(name, at)
    assert kind == NODES[name]
    return node


def sampler(graph: GraphPage, model: str, seed: int) -> str:
    """The sampler of a model's first output, and what it needs; all but the model is ComfyUI's."""
    text = graph.put("TestRandomConditioning", (500, 170))
    empty = graph.put("EmptySD3LatentImage", (500, 340), width=96, height=64)
    node = graph.put(
        "KSampler", (880, 0), seed=seed, steps=2, cfg=1, sampler_name="euler", scheduler="simple"
    )
    saved = graph.put("SaveLatent", (880, 330))
    graph.wire(model, 0, node, "model")
    for name in ("positive", "negative"):
        graph.wire(text, 0, node, name)
    graph.wire(empty, 0, node, "latent_image")
    graph.wire(node, 0, saved, "samples")
    return node


def test_the_palette_shows_the_pack(graph, photograph):
    graph.clear()
    found = graph.search("Pestle").all_inner_texts()
    for name in NODES:
        if "Pestle" in name:
            assert [text for text in found if name in text], name
    photograph("search")
    graph.close_search()


def test_compile_and_its_report(graph, photograph):
    graph.clear()
    model = graph.put("UNETLoader", (0, 0), unet_name="flux.safetensors")
    apply = add(graph, "Apply Torch Compile", (500, 0))
    settings = add(graph, "Torch Compile Speed Settings", (0, 170))
    report = add(graph, "Compile report (Pestle)", (1240, 60))
    for widget, value in (("mode", "default"), ("dynamic", True)):
        graph.set(settings, widget, value)
    graph.wire(model, 0, apply, "model")
    graph.wire(settings, 0, apply, "compile_args")
    latent = sampler(graph, apply, seed=21)
    graph.wire(apply, 0, report, "model")
    graph.wire(latent, 0, report, "after")
    status, told = graph.run()
    assert status == "execution_success", told
    text = graph.told(report, "error against eager")
    assert "Flux: 2 x DoubleStreamBlock, 2 x SingleStreamBlock" in text
    assert "graph breaks: 0" in text
    graph.has_picture(report)
    photograph("compile")


def test_quantise_kernels_and_the_model_report(graph, photograph):
    graph.clear()
    model = graph.put("UNETLoader", (0, 0), unet_name="flux.safetensors")
    quantise = add(graph, "Quantise model (Pestle)", (0, 150))
    kernels = add(graph, "Pestle kernels", (500, 0))
    report = add(graph, "Model report (Pestle)", (1240, 60))
    graph.set(quantise, "format", "int8-row")
    graph.wire(model, 0, quantise, "model")
    graph.wire(quantise, 0, kernels, "model")
    latent = sampler(graph, kernels, seed=22)
    graph.wire(kernels, 0, report, "model")
    graph.wire(latent, 0, report, "after")
    status, told = graph.run()
    assert status == "execution_success", told
    assert " weights: " in graph.told(quantise, "MiB")
    graph.has_picture(quantise)
    assert "x pestle" in graph.told(report, "int8")
    photograph("quantise")


def test_an_error_and_then_a_file_that_loads(graph, photograph):
    graph.clear()
    load = add(graph, "Load diffusion model (Pestle)", (0, 150))
    report = add(graph, "Model report (Pestle)", (420, 150))
    graph.wire(load, 0, report, "model")
    graph.set(load, "name", "broken.safetensors")
    status, told = graph.run()
    assert status == "execution_error" and told["node_id"] == str(load)
    graph.open_error()
    sentence = graph.page.get_by_text("broken.safetensors").filter(visible=True)
    sentence.first.wait_for()
    photograph("error")
    graph.page.keyboard.press("Escape")

    graph.set(load, "name", "flux.safetensors")
    status, told = graph.run()
    assert status == "execution_success", told
    assert "32: 36 weights" in graph.told(report, "MiB")
    graph.nodes_as_elements(True)
    try:
        assert "32: 36 weights" in graph.told(report, "MiB")
    finally:
        graph.nodes_as_elements(False)


EXAMPLES = sorted((ROOT / "comfyui/example_workflows").glob("*.json"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_loads_from_the_template_browser(graph, path):
    graph.clear()
    graph.open_template(path.stem)
    saved = json.loads(path.read_text())
    kinds, unknown = graph.kinds()
    assert sorted(kinds) == sorted(one["type"] for one in saved["nodes"]) and not unknown
    assert graph.links() == len(saved["links"])
    for one in saved["nodes"]:
        if one["type"] in NODES.values():
            assert list(graph.values(one["type"]).values()) == one["widgets_values"], one["type"]


# Values in the order in which the seed's nodes have their widgets, each another than the default.
SEEDS_VALUES = {
    "backend": "cudagraphs", "fullgraph": True, "mode": "reduce-overhead", "dynamic": True,
    "dynamo_cache_size_limit": 32, "compile_transformer_blocks_only": False,
    "reuse_if_similar": False, "experimental_ptx": True, "ptx_fast_math": False, "warmup_runs": 3,
    "ptx_cache_dir": "somewhere", "dynamo_recompile_limit": 256,
    "force_parameter_static_shapes": True,
}  # fmt: skip


@pytest.mark.parametrize("values", [12, 13], ids=["v1.1.0", "its fork"])
def test_a_workflow_of_the_seed_loads(graph, values):
    """Its nodes by its ids, with its slots; a saved workflow has values by their order alone."""
    settings = {"id": 1, "type": "TorchCompileSpeedSettings", "pos": [0, 170], "size": [300, 300],
                "flags": {}, "order": 0, "mode": 0, "inputs": [], "properties": {},
                "outputs": [{"name": "torch_compile_args", "type": "WANCOMPILEARGS", "links": [1]}],
                "widgets_values": list(SEEDS_VALUES.values())[:values]}  # fmt: skip
    apply = {"id": 2, "type": "ApplyTorchCompile", "pos": [500, 0], "size": [300, 60], "flags": {},
             "order": 1, "mode": 0, "properties": {}, "widgets_values": [],
             "inputs": [{"name": "model", "type": "MODEL", "link": None},
                        {"name": "compile_args", "type": "WANCOMPILEARGS", "link": 1}],
             "outputs": [{"name": "MODEL", "type": "MODEL", "links": []}]}  # fmt: skip
    graph.load({
        "last_node_id": 2, "last_link_id": 1, "nodes": [settings, apply], "groups": [],
        "links": [[1, 1, 0, 2, 1, "WANCOMPILEARGS"]], "config": {}, "extra": {}, "version": 0.4,
    })  # fmt: skip
    assert graph.kinds() == (["TorchCompileSpeedSettings", "ApplyTorchCompile"], [])
    assert graph.links() == 1
    found = graph.values("TorchCompileSpeedSettings")
    fork = {} if values == 13 else {"force_parameter_static_shapes": False}
    assert found == SEEDS_VALUES | fork and list(found) == list(SEEDS_VALUES)
    assert graph.values("ApplyTorchCompile") == {"error_bound": 0.05, "stance": "default"}


def test_the_documentation_shows_the_pictures():
    page = (ROOT / "docs/site/comfyui.md").read_text()
    folder = ROOT / "docs/site/pictures"
    for name in SHOWN:
        picture = folder / f"comfyui_{name}.png"
        assert f"](pictures/{picture.name})" in page
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert picture.stat().st_size < MOST_BYTES
