"""Every quantised format that ComfyUI knows, with comfy-kitchen and with Pestle in its place: steps
of a model, and what ComfyUI's own modules make of a layer, are the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from quantised_files import FILES, FLOAT, write_quantised
from safetensors.torch import load_file
from workflows import error

SCRIPT = Path(__file__).with_name("run_formats.py")
# Products that take x as it is, where comfy-kitchen's quantise it.
OWN_WAY = ("w4a4-convrot", "w4a4-in-int8", "w4a8")
ROUNDED = 5e-3  # one rounding to bf16 more
FLIPPED = 0.035  # some codes at ties, where comfy-kitchen divides in bf16
FLIPPED_4_BITS = 0.06


@pytest.fixture(scope="module")
def found(server, pestle_bin, tmp_path_factory):
    """who -> what FILE/WHAT came to."""
    folder = tmp_path_factory.mktemp("ops")
    files = [write_quantised(server, name, pestle_bin) for name in FILES]
    files.append(server.base / "models/diffusion_models" / FLOAT)
    made = {}
    for who in ("kitchen", "pestle"):
        out = folder / f"{who}.safetensors"
        command = [sys.executable, str(SCRIPT), who, str(out), *map(str, files)]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
        assert done.returncode == 0, done.stderr
        made[who] = load_file(out)
    assert made["kitchen"].keys() == made["pestle"].keys()
    return made


def test_every_format_that_comfyui_knows_is_here():
    from comfy.quant_ops import QUANT_ALGOS

    assert {file.known_as for file in FILES.values()} == set(QUANT_ALGOS)


@pytest.mark.parametrize("kind", ["step", "step with a LoRA"])
@pytest.mark.parametrize("name", FILES)
def test_a_step_is_what_it_is_with_comfy_kitchen(name, kind, found):
    theirs, ours = (found[who][f"every_{name}/{kind}"] for who in ("kitchen", "pestle"))
    floats = [found[who][f"flux/{kind}"] for who in ("kitchen", "pestle")]
    assert error(floats[1], floats[0]) < 1e-5
    assert 1e-4 < error(ours, floats[0]) < 1.1 * error(theirs, floats[0]) + 2e-3
    if kind == "step" and name not in OWN_WAY:  # a LoRA's weights may be rounded by chance
        assert error(ours, theirs) < FLIPPED


def test_a_lora_changes_the_step(found):
    for name in ("flux", *(f"every_{name}" for name in FILES)):
        plain, with_lora = (found["pestle"][f"{name}/step{more}"] for more in ("", " with a LoRA"))
        assert error(with_lora, plain) > 0.03, name


def of(found: dict, name: str) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """WHAT -> comfy-kitchen's and ours, of one file."""
    start = f"every_{name}/"
    return {
        key.removeprefix(start): (value, found["pestle"][key])
        for key, value in found["kitchen"].items()
        if key.startswith(start) and not key.startswith(f"{start}step")
    }


def wrong_products(name: str, made: dict) -> dict[str, tuple]:
    """Ours may be off the exact product as far as comfy-kitchen's quantised x takes its own: a bank
    of experts decodes there on a CPU, here it multiplies as on a GPU."""
    allowed = 1.2 * error(made["native"][0].float(), made["exact"][0]) + 0.01
    off = {
        what: error(ours.float(), made["exact" if what in LINEAR else "exact expert"][0])
        for what, (_, ours) in made.items()
        if what in LINEAR or "expert" in what
    }
    apart = {
        what: error(made[what][1].float(), made[what][0].float())
        for what in LINEAR if name not in OWN_WAY
    }  # fmt: skip
    return {what: (value, allowed) for what, value in off.items() if not value <= allowed} | {
        f"{what}, apart": value for what, value in apart.items() if not value < FLIPPED
    }


LINEAR = ("native", "decoded in the call")


def wrong_values(name: str, made: dict) -> dict[str, float]:
    """Of what is not a product: decoded and patched weights, embeddings, gradients."""
    wrong = {}
    for what, (theirs, ours) in made.items():
        if what in LINEAR or "expert" in what or what.startswith("stored "):
            continue
        if what.endswith(", native") and (name in OWN_WAY or "by chance" in what):
            continue  # the weights are compared, and products above
        nearest = made[what.replace("by chance", "nearest")][0].float()
        apart, allowed = error(ours.float(), nearest), ROUNDED
        if "by chance" in what:  # each value becomes one of its two neighbours
            allowed = 1.5 * error(theirs.float(), nearest) + FLIPPED
        elif what not in ("exact", "decoded", "embedding", "patched in the call"):
            allowed = FLIPPED_4_BITS if name.startswith("w4") else FLIPPED
        if not apart <= allowed:
            wrong[what] = (apart, allowed)
    return wrong


@pytest.mark.parametrize("name", [name for name in FILES if "legacy" not in name])
def test_what_comfyui_makes_of_a_format_is_the_same(name, found):
    made = of(found, name)
    assert {"native", "decoded", "patched, nearest", "stored weight"} <= made.keys()
    for what, (theirs, ours) in made.items():
        assert theirs.dtype == ours.dtype and theirs.shape == ours.shape, what
        assert torch.equal(theirs, ours) or not what.startswith("stored "), what
    assert not wrong_products(name, made) | wrong_values(name, made)
