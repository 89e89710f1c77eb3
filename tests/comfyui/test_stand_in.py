"""A ComfyUI that starts and runs with Pestle in the place of comfy-kitchen, which is not there."""

import os
from pathlib import Path

import pytest
from models import write
from server import Server
from workflows import compiled, error, latent, link, loaded, node, sampled, succeed


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    base = tmp_path_factory.mktemp("stand_in")
    started = Server(Path(os.environ["PESTLE_COMFYUI"]), base, ("stand_in",))
    try:
        write("flux", base / "models/diffusion_models/flux.safetensors")
        started.wait()
        yield started
    finally:
        started.stop()


def test_it_starts_without_a_warning(stand_in):
    lines = stand_in.log.read_text().splitlines()
    assert not [line for line in lines if "Failed to import comfy_kitchen" in line]
    # What ComfyUI says of each backend that it finds: they are Pestle's.
    assert [line for line in lines if "Found comfy_kitchen backend cpu" in line]
    assert not [line for line in lines if "FAILED" in line and "custom_nodes" in line]
    assert "ApplyTorchCompile" in stand_in.get("/object_info")


def test_a_quantised_model_runs_and_compiles(stand_in):
    quantised = loaded() | {
        "quantise": node("PestleQuantiseModel", model=link("model"), format="int8-row"),
    }
    succeed(stand_in, loaded() | sampled(link("model"), "float"))
    succeed(stand_in, quantised | sampled(link("quantise"), "eager"))
    fast = quantised | compiled()
    fast["apply"]["inputs"]["model"] = link("quantise")
    text = succeed(stand_in, fast | sampled(link("apply"), "fast")).shown["report"]["text"][0]
    assert "runs eagerly" not in text and "error against eager" in text, text
    want, eager, quick = (latent(stand_in, name) for name in ("float", "eager", "fast"))
    assert 1e-4 < error(eager, want) < 0.05 and error(quick, eager) < 0.02


def test_there_is_nobody_to_choose_from(stand_in):
    flow = loaded() | {"kernels": node("PestleKernels", model=link("model"), mode="on")}
    run = stand_in.run(flow | sampled(link("kernels"), "chosen"))
    assert run.status == "execution_error"
    assert "comfy_kitchen is Pestle itself" in run.error["exception_message"]
