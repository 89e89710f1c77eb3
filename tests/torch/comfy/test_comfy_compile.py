"""Models that run compiled: which blocks, how often, what is left behind, when they run eagerly."""

import gc
import os
import subprocess
import sys
import weakref

import pytest
import torch
from pestle.comfy import (
    CompiledModel,
    CompileReport,
    CompileSettings,
    relative_error,
    repeated_blocks,
)
from pestle.comfy.compiling import compiled_function
from pestle.comfy.report import Peak
from pestle.errors import InvalidArgumentError
from torch import nn

DYNAMIC = {"backend": "eager", "mode": "default", "dynamic": True}


def run(compiled, model, tokens=6, batch=1, **options):
    x = torch.randn(batch, tokens, 4, generator=torch.Generator().manual_seed(tokens))
    with torch.inference_mode():
        out = compiled.run(model, lambda: model(x, **options), x.shape)
        return out, model(x, **options)


def settings(**values):
    return CompileSettings.of({**DYNAMIC, **values})


# ---- which blocks


def test_repeated_blocks_are_found(model):
    assert repeated_blocks(model) == {type(model.blocks[0]): list(model.blocks)}


def test_blocks_within_a_holder_of_blocks_are_found(make_model):
    class Holder(nn.Module):  # as the spatial transformers of a U-Net
        def __init__(self):
            super().__init__()
            self.norm = nn.Linear(16, 16)
            self.transformer_blocks = nn.ModuleList(make_model().blocks)

    root = nn.Module()
    root.stages = nn.ModuleList(nn.Sequential(Holder(), nn.Linear(2, 2)) for _ in range(2))
    (found,) = repeated_blocks(root).values()
    assert len(found) == 6


def test_what_is_alone_or_outside_lists_is_none():
    root = nn.Module()
    root.first = nn.Sequential(nn.Linear(2, 2))
    root.time_in, root.text_in = nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4))
    assert repeated_blocks(root) == {}


# ---- how often


def test_blocks_share_one_graph_and_new_lengths_cost_none(model):
    compiled = CompiledModel(model, settings())
    for tokens in (6, 6, 9, 14):
        out, eager = run(compiled, model, tokens)
        torch.testing.assert_close(out, eager)
    report = compiled.report
    assert [graph.function for graph in report.graphs] == ["Block_forward"]
    assert not report.breaks and not report.recompiles
    assert report.regions == {"Block": 3}
    assert len(report.cold_ms) == 1 and len(report.warm_ms) == 3
    assert report.error < 1e-6


def test_tokens_from_a_convolution_share_the_graph(model):
    compiled = CompiledModel(model, settings())
    # What the first block gets lies channel by channel, what the others get row by row.
    model.embed.register_forward_hook(lambda module, x, out: out.mT.contiguous().mT)
    model.blocks[0].register_forward_hook(lambda module, x, out: out.contiguous())
    out, eager = run(compiled, model)
    torch.testing.assert_close(out, eager)
    assert len(compiled.report.graphs) == 1


def test_without_dynamic_each_length_compiles(model):
    compiled = CompiledModel(model, settings(dynamic=False))
    for tokens in (6, 9):
        run(compiled, model, tokens)
    assert len(compiled.report.graphs) == 2
    (again,) = compiled.report.recompiles
    assert "size mismatch at index 1" in again.again_because


def test_a_stance_says_what_would_compile_again_does(model):
    kinds = ("eager_on_recompile", "fail_on_recompile")
    own = settings(dynamic=False, reuse_if_similar=False)
    eagerly, failing = (CompiledModel(model, own, stance=kind) for kind in kinds)
    for compiled in (eagerly, failing):
        run(compiled, model, 6)
    out, eager = run(eagerly, model, 9)
    torch.testing.assert_close(out, eager)
    with pytest.raises(RuntimeError, match="recompil"):
        run(failing, model, 9)
    for compiled in (eagerly, failing):
        run(compiled, model, 6)
        assert len(compiled.report.graphs) == 1 and not compiled.report.fallback
    with pytest.raises(InvalidArgumentError, match='stance is "never"; the stances: default, '):
        CompiledModel(model, own, stance="never")
    # Nothing of it stays.
    other = CompiledModel(model, own)
    for tokens in (6, 9):
        run(other, model, tokens)
    assert len(other.report.graphs) == 2


def test_the_whole_model_is_one_graph(model):
    compiled = CompiledModel(model, settings(compile_transformer_blocks_only=False))
    out, eager = run(compiled, model)
    torch.testing.assert_close(out, eager)
    assert compiled.report.regions == {"Model": 1} and len(compiled.report.graphs) == 1


def test_the_limit_is_kept_and_said(model):
    compiled = CompiledModel(model, settings(dynamic=False, dynamo_recompile_limit=1))
    for tokens in (6, 9, 12):
        out, eager = run(compiled, model, tokens)
        torch.testing.assert_close(out, eager)
    assert len([graph for graph in compiled.report.graphs if graph.ops]) == 1
    assert any("the limit" in note for note in compiled.report.notes)


def test_similar_models_share_and_others_do_not(model, make_model):
    first = CompiledModel(model, settings())
    run(first, model)
    other = make_model()
    second = CompiledModel(other, settings())
    out, eager = run(second, other)
    torch.testing.assert_close(out, eager)
    assert second.report.reused and not second.report.graphs
    for values in ({"reuse_if_similar": False}, {"dynamo_recompile_limit": 5}):
        own = CompiledModel(other, settings(**values))
        run(own, other)
        assert not own.report.reused and len(own.report.graphs) == 1


def test_nothing_keeps_what_is_no_longer_used(model):
    compiled = CompiledModel(model, settings())
    run(compiled, model)
    (function,) = compiled.functions.values()
    gone = weakref.ref(model), weakref.ref(function)
    del compiled, function, model
    gc.collect()
    assert gone[1]() is None


def test_a_model_goes_while_another_uses_what_it_compiled(model, make_model):
    first = make_model()
    run(CompiledModel(first, settings()), first)
    second = CompiledModel(model, settings())
    gone = weakref.ref(first), weakref.ref(first.blocks[0].attn.qkv.weight)
    del first
    gc.collect()
    assert gone[0]() is None and gone[1]() is None
    out, eager = run(second, model)
    torch.testing.assert_close(out, eager)


def test_what_differs_in_any_setting_is_not_shared(model):
    def function(**values):
        return compiled_function(model.blocks[0], settings(**values))[0]

    base = function()
    assert function() is base
    others = [
        {"backend": "aot_eager"}, {"fullgraph": True}, {"dynamic": False}, {"dynamic": None},
        {"dynamo_recompile_limit": 9}, {"force_parameter_static_shapes": True},
        {"ptx_cache_dir": "a"}, {"backend": "inductor"},
        {"backend": "inductor", "mode": "max-autotune"},
        {"backend": "inductor", "experimental_ptx": True},
        {"backend": "inductor", "experimental_ptx": True, "ptx_fast_math": False},
    ]  # fmt: skip
    made = [base, *(function(**values) for values in others)]
    assert len({id(one) for one in made}) == len(made)


def test_weights_that_a_patch_replaces_compile_nothing(model):
    """As LoRA nodes do between two runs: the parameter is another one."""
    compiled = CompiledModel(model, settings())
    run(compiled, model)
    linear = model.blocks[1].attn.qkv
    linear.weight = nn.Parameter(linear.weight + 0.5 * torch.randn_like(linear.weight))
    out, eager = run(compiled, model)
    torch.testing.assert_close(out, eager)
    assert len(compiled.report.graphs) == 1


def test_a_step_copies_no_configuration(model, monkeypatch):
    """It took 0.4 ms, in which a GPU waited for the first block."""
    from torch._dynamo import config

    compiled = CompiledModel(model, settings())
    run(compiled, model)
    monkeypatch.setattr(
        type(config), "get_config_copy", lambda self: pytest.fail("copied in a step")
    )
    out, eager = run(compiled, model)
    torch.testing.assert_close(out, eager)
    assert len(compiled.report.calls) == 2 and not compiled.report.fallback


# ---- what is left behind


def test_the_model_is_as_it_was(model):
    compiled = CompiledModel(model, settings())
    before = [dict(vars(module)) for module in model.modules()]
    run(compiled, model)
    assert [dict(vars(module)) for module in model.modules()] == before

    def stopped():
        assert "forward" in vars(model.blocks[0])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compiled.run(model, stopped)
    assert [dict(vars(module)) for module in model.modules()] == before
    assert not compiled.report.fallback


def test_the_class_is_not_compiled_for_others(model, make_model):
    run(CompiledModel(model, settings(dynamic=False)), model)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    other = make_model()
    with torch.inference_mode():
        other(torch.randn(2, 5, 4))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs


# ---- what patchers pass down


def test_patches_are_seen_and_bookkeeping_is_not(model):
    compiled = CompiledModel(model, settings())
    run(compiled, model)
    out, eager = run(compiled, model, options={"another": 1})
    torch.testing.assert_close(out, eager)
    assert len(compiled.report.graphs) == 1

    def by_block(x, options):
        return x * (options["block_index"] + 2)

    plain = eager
    patched = {"patches": {"input": [by_block]}}
    out, eager = run(compiled, model, options=patched)
    torch.testing.assert_close(out, eager)
    assert relative_error(out, plain) > 0.1
    assert len(compiled.report.graphs) > 1


# ---- when they run eagerly


def test_a_wrong_compiler_is_caught(model, caplog):
    def doubled(graph, inputs):
        return lambda *args: tuple(2 * one for one in graph(*args))

    compiled = CompiledModel(model, settings(backend=doubled), error_bound=0.05)
    out, eager = run(compiled, model)
    assert torch.equal(out, eager)
    assert compiled.report.error > 0.05
    assert "above the bound of 0.05" in compiled.report.fallback
    assert "runs eagerly: the error against eager" in caplog.text
    run(compiled, model, 11)
    assert len(compiled.report.calls) == 1
    assert "runs eagerly" in str(compiled.report)


def test_a_compiler_that_fails_is_named(model):
    def failing(graph, inputs):
        raise RuntimeError("no such machine")

    compiled = CompiledModel(model, settings(backend=failing))
    out, eager = run(compiled, model)
    assert torch.equal(out, eager)
    assert "compiling failed" in compiled.report.fallback
    assert "no such machine" in compiled.report.fallback


def test_the_models_own_error_is_raised(model):
    compiled = CompiledModel(model, settings())
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        compiled.run(model, lambda: model(torch.randn(1, 3, 5)))


def test_a_run_that_must_not_be_repeated_is_not(model):
    compiled = CompiledModel(model, settings())
    times = []
    x = torch.randn(1, 6, 4)
    with torch.inference_mode():
        compiled.run(model, lambda: times.append(1) or model(x), comparable=False)
    assert times == [1] and compiled.report.error is None
    assert any("not compared" in note for note in compiled.report.notes)


def test_graph_breaks_are_told_with_reasons(model):
    block = model.blocks[0]
    inner = type(block).forward

    def forward(self, x, transformer_options=None):
        torch._dynamo.graph_break(msg="looked at by hand")
        return inner(self, x, transformer_options)

    broken = type("Broken", (type(block),), {"forward": forward})
    for one in model.blocks:
        one.__class__ = broken
    compiled = CompiledModel(model, settings())
    out, eager = run(compiled, model)
    torch.testing.assert_close(out, eager)
    assert sum(compiled.report.breaks.values()) >= 1
    assert "graph breaks: " in str(compiled.report)
    full = CompiledModel(model, settings(fullgraph=True))
    out, eager = run(full, model)
    assert torch.equal(out, eager) and "compiling failed" in full.report.fallback


@pytest.mark.parametrize(
    ("out", "expected", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0),
        ([0.0, 0.0], [3.0, 4.0], 1),
        ([float("nan"), 2.0], [1.0, 2.0], float("inf")),
        ([float("nan"), 2.0], [float("nan"), 2.0], 0),
        ([0.0, 0.0], [0.0, 0.0], 0),
        ([1.0], [0.0], float("inf")),
        ([1.0], [1.0, 2.0], float("inf")),
    ],
)
def test_relative_error(out, expected, error):
    assert relative_error(torch.tensor(out), torch.tensor(expected)) == error


def test_warm_ups_are_told_and_what_they_compiled_is_compared(model):
    compiled = CompiledModel(model, settings(experimental_ptx=True, warmup_runs=2))
    out, eager = run(compiled, model)
    torch.testing.assert_close(out, eager)
    matmul = "warm-up: a compiled matmul"
    runs = [f"warm-up: the model, run {number}" for number in (1, 2)]
    assert compiled.report.warmups == [matmul, matmul, *runs]
    assert len(compiled.report.cold_ms) == 1 and len(compiled.report.warm_ms) == 2
    assert compiled.report.error is not None
    run(compiled, model)
    assert len(compiled.report.warmups) == 4


def test_the_peak_is_that_of_the_models_steps(monkeypatch):
    """What ran before, a text encoder say, does not count."""
    now = {"peak": 900}
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: now.update(peak=0))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: now["peak"])
    report = CompileReport()
    for bytes_of_step in (300, 200):
        peak = Peak(torch.device("cuda"))
        now["peak"] = bytes_of_step << 20
        peak.add_to(report)
    assert "peak memory of a step: 300 MiB" in str(report)


# ---- older PyTorch


def test_what_an_older_torch_lacks_is_said_and_left_out(model, tmp_path, monkeypatch):
    from pestle.comfy import artifacts, compiling, scope
    from pestle.comfy import model as running

    asked = settings(ptx_cache_dir=str(tmp_path), force_parameter_static_shapes=True)
    assert running.ignored_by_torch(asked) == []
    lacking = [
        (scope, "known_to_dynamo", lambda: {"cache_size_limit", "accumulated_cache_size_limit"}),
        (compiling, "has_guard_filter", lambda: False),
        (running, "has_guard_filter", lambda: False),
        (artifacts, "can_keep", lambda: False),
        (running, "can_keep", lambda: False),
    ]
    for module, name, function in lacking:
        monkeypatch.setattr(module, name, function)
    compiled = CompiledModel(model, asked)
    version = f"PyTorch {torch.__version__}"
    assert compiled.report.notes == [
        f"{version} has no dynamo setting force_parameter_static_shapes: it is left out",
        f"{version} can't leave guards out: what a step hands down may compile again",
        f"{version} keeps no compiled kernels in a file: another process finds only inductor's "
        "and Triton's own",
    ]
    out, eager = run(compiled, model)
    torch.testing.assert_close(out, eager)
    assert not compiled.report.fallback and not list(tmp_path.glob("*.artifacts"))


# ---- inductor, and another process

ANOTHER = """
import json, sys, torch
sys.path.insert(0, {tests!r})
from comfy_models import Model
from pestle.comfy import CompiledModel, CompileSettings
torch.manual_seed(0)
model, x = Model(2).eval(), torch.ones(1, 6, 4)
settings = CompileSettings.of({{
    "mode": "default", "dynamic": True, "ptx_cache_dir": {folder!r}}})
compiled = CompiledModel(model, settings)
with torch.inference_mode():
    compiled.run(model, lambda: model(x), x.shape)
print(json.dumps(compiled.report.to_dict()))
"""


def another(folder) -> dict:
    import json
    from pathlib import Path

    code = ANOTHER.format(tests=str(Path(__file__).parent), folder=str(folder))
    quick = {**os.environ, "TORCHINDUCTOR_VEC_ISA_OK": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=quick, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_another_process_starts_warm(tmp_path):
    """Only the file moves; the folders of inductor and Triton stay behind."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = another(tmp_path / "a")
    assert not first["fallback"] and first["error"] < 1e-5
    assert first["cache"].get("graphs made") and not first["cache"].get("AOT found")
    (file,) = (tmp_path / "a").glob("pestle-*.artifacts")
    file.rename(tmp_path / "b" / file.name)
    second = another(tmp_path / "b")
    assert second["cache"].get("AOT found") or second["cache"].get("graphs found")
    assert not second["cache"].get("graphs made")
    assert any(note.startswith("compiled kernels read from") for note in second["notes"])
    assert second["error"] == pytest.approx(first["error"], abs=1e-6)
