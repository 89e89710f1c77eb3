"""Inputs of the settings node, the dict for its readers, and what torch is told."""

import os

import pytest
import torch
from pestle.comfy import INPUTS, CompileSettings, scoped
from pestle.errors import InvalidArgumentError

# name: default, lowest and highest, of the nodes whose workflows shall load.
SEED = {
    "backend": ("inductor", ("inductor", "cudagraphs")),
    "fullgraph": (False, None),
    "mode": ("speed", ("default", "max-autotune", "max-autotune-no-cudagraphs",
                       "reduce-overhead", "speed")),
    "dynamic": (False, None),
    "dynamo_cache_size_limit": (64, (0, 1024)),
    "compile_transformer_blocks_only": (True, None),
    "reuse_if_similar": (True, None),
    "experimental_ptx": (False, None),
    "ptx_fast_math": (True, None),
    "warmup_runs": (1, (0, 5)),
    "ptx_cache_dir": ("", None),
    "dynamo_recompile_limit": (128, (0, 1024)),
    "force_parameter_static_shapes": (False, None),
}  # fmt: skip
# What WanVideoWrapper's compile_model takes by [].
CONSUMED = (
    "dynamo_cache_size_limit", "force_parameter_static_shapes", "compile_transformer_blocks_only",
    "fullgraph", "dynamic", "backend", "mode", "dynamo_recompile_limit",
    "allow_unmerged_lora_compile", "compile_transformer_blocks",
)  # fmt: skip


def test_the_inputs_are_the_seeds():
    found = {
        one.name: (one.default, one.options or ((one.low, one.high) if one.kind == "int" else None))
        for one in INPUTS
    }
    assert found == SEED and list(found) == list(SEED)  # workflows hold values by their order
    assert all(one.tooltip for one in INPUTS)
    optional = {one.name for one in INPUTS if one.optional}
    assert optional == {"ptx_cache_dir", "dynamo_recompile_limit", "force_parameter_static_shapes"}


def test_the_dict_has_every_key_that_is_read():
    made = CompileSettings.of({one.name: one.default for one in INPUTS}).to_dict()
    assert set(SEED) | set(CONSUMED) | {"speed_preset"} == set(made)


def test_speed_stands_for_its_settings():
    made = CompileSettings.of(
        {"mode": "speed", "backend": "cudagraphs", "fullgraph": True, "dynamic": False}
    ).to_dict()
    assert made["speed_preset"] is True
    assert (made["backend"], made["fullgraph"], made["dynamic"], made["mode"]) == (
        "inductor", False, True, "max-autotune-no-cudagraphs",
    )  # fmt: skip


def test_a_dict_of_another_node_is_taken():
    theirs = {
        "backend": "inductor", "fullgraph": True, "mode": "reduce-overhead", "dynamic": None,
        "dynamo_cache_size_limit": 32, "dynamo_recompile_limit": 16, "something_else": 1,
        "compile_transformer_blocks_only": False, "force_parameter_static_shapes": True,
        "allow_unmerged_lora_compile": True,
    }  # fmt: skip
    made = CompileSettings.of(theirs).to_dict()
    assert theirs.items() - made.items() == {("something_else", 1)}
    assert made["speed_preset"] is False


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"mode": "fast"}, 'mode is "fast"; the modes are default, '),
        ({"mode": "default", "warmup_runs": 6}, "warmup_runs is 6; it lies between 0 and 5"),
        ({"mode": "default", "dynamo_recompile_limit": -1}, "it lies between 0 and 1024"),
    ],
)
def test_a_wrong_value_is_named(values, sentence):
    with pytest.raises(InvalidArgumentError, match=sentence):
        CompileSettings.of(values)


def test_options_hold_the_modes_and_are_known_to_torch():
    speed = CompileSettings.of({"mode": "speed"})
    options, ignored = speed.options()
    assert options["max_autotune"] is True and not ignored
    assert "triton.cudagraphs" not in options
    ptx = CompileSettings.of({"mode": "default", "experimental_ptx": True})
    options, _ = ptx.options()
    assert options["coordinate_descent_tuning"] is True and options["use_fast_math"] is True
    assert "use_fast_math" not in ptx.changed(ptx_fast_math=False).options()[0]


def test_what_is_ignored_is_said(monkeypatch):
    from pestle.comfy import settings as module

    known = module.known_options() - {"use_fast_math"}
    monkeypatch.setattr(module, "known_options", lambda: known)
    options, ignored = CompileSettings.of({"mode": "default", "experimental_ptx": True}).options()
    assert "use_fast_math" not in options
    assert ignored == (
        f"PyTorch {torch.__version__} has no inductor option use_fast_math: it is left out",
    )
    _, ignored = CompileSettings.of({"backend": "cudagraphs", "mode": "max-autotune"}).options()
    assert ignored == ("backend cudagraphs has no options: mode and experimental_ptx do nothing",)


def test_settings_hold_within_the_block_only(tmp_path, monkeypatch):
    config = torch._dynamo.config
    monkeypatch.setenv("TRITON_CACHE_DIR", "before")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    before = (config.recompile_limit, config.force_parameter_static_shapes)
    settings = CompileSettings.of(
        {"mode": "default", "dynamo_recompile_limit": 77, "ptx_cache_dir": str(tmp_path)}
    )
    with pytest.raises(KeyboardInterrupt), scoped(settings):
        assert config.recompile_limit == config.cache_size_limit == 77
        assert config.force_parameter_static_shapes is False
        assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "triton")
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "inductor")
        raise KeyboardInterrupt
    assert (config.recompile_limit, config.force_parameter_static_shapes) == before
    assert os.environ["TRITON_CACHE_DIR"] == "before"
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
