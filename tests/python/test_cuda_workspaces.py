"""What a CUDA implementation hands on of its workspace holds what the product within it asks for.

By a build with CUDA, without a GPU: `pestle why --cc` evaluates the contracts' expressions.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
BUILDS = (os.environ.get("PESTLE_CUDA_BIN", ""), "build-cuda/bin/pestle", "build/cuda/bin/pestle")
PESTLE = next((ROOT / p for p in BUILDS if p and (ROOT / p).exists()), None)
OPS = (
    "matmul",
    "scaled_mm_fp8",
    "scaled_mm_int8",
    "scaled_mm_nvfp4",
    "linear_fp8",
    "linear_int8",
    "linear_w4a8",
)
OF_CODES = (
    "out_format",
    "keep_out",
    "out_hadamard",
    "nibbles",
    "scale_layout",
    "q_scale",
    "global_scale",
)
OF_EPILOGUE = ("gated", "gate", "G", "beta", "alpha", "bias", "residual", "activation")

pytestmark = pytest.mark.skipif(PESTLE is None, reason="needs a build with CUDA (make cuda)")


def output_of(*arguments):
    done = subprocess.run([str(PESTLE), *arguments], capture_output=True, text=True, check=True)
    return done.stdout


def cases():
    listed = map(
        json.loads, output_of("bench", "--list-cases", "--tags", "smoke,edge", *OPS).splitlines()
    )
    return [(row["op"], row["case"]) for row in listed]


def takers(op, words, cc):
    """Implementations that take the call, the chosen one first, with their workspaces."""
    said = json.loads(output_of("why", op, *words, "--cc", cc, "--json"))
    return [(c["id"], c["workspace_bytes"]) for c in said["candidates"] if c["takes_it"]]


def without(words, names):
    return [word for word in words if word.split("=")[0] not in names]


def value_of(words, name, default):
    return next((word.split("=", 1)[1] for word in words if word.startswith(f"{name}=")), default)


def elements(words):
    """Of the product, which has the contract's symbols M, N and batches B."""
    count = 1
    for name in ("B", "M", "N"):
        for size in value_of(words, name, "").replace("x", " ").split():
            count *= int(size)
    return count


def shortage(op, plain, room, cc):
    inner, wanted = takers(op, plain, cc)[0]
    return (
        [f"{op} '{' '.join(plain)}': {inner} asks for {wanted} bytes of {room}"]
        if wanted > room
        else []
    )


# Of 80, also what goes another way on Hopper where its copy engine refuses strides.
@pytest.mark.parametrize("cc", ["80", "90"])
def test_codes_have_room_for_their_product(cc):
    tried, faults = 0, []
    for op, case in cases():
        words = case.split()
        if value_of(words, "out_format", "none") == "none":
            continue
        codes, room = takers(op, words, cc)[0]
        assert codes.endswith("_codes"), f"{op} '{case}': {codes}"
        plain = without(words, OF_CODES)
        if "keep_out=true" not in words:
            plain = [*without(plain, ["out"]), "out=bf16"]
            room -= 2 * elements(words)
        faults += shortage(op, plain, room, cc)
        tried += 1
    assert tried > 20 and not faults, "\n".join(faults)


@pytest.mark.parametrize("cc", ["80", "90"])
def test_a_second_pass_has_room_for_its_product(cc):
    tried, faults = 0, []
    for op, case in cases():
        words = case.split()
        if (
            not {"gate", "gated", "beta"} & {word.split("=")[0] for word in words}
            or "out_format=" in case
        ):
            continue
        late = [room for name, room in takers(op, words, cc) if name.endswith("_late")]
        if not late or elements(words) == 0:
            continue
        plain = [*without(words, (*OF_EPILOGUE, "out")), "out=f32"]
        faults += shortage(op, plain, late[0] - 4 * elements(words), cc)
        tried += 1
    assert tried > 10 and not faults, "\n".join(faults)
