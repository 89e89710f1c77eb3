"""Whole files from Python: reports, progress, stopping, errors."""

import pestle
import pytest
import torch
from safetensors.torch import load_file, save_file


@pytest.fixture
def model(tmp_path):
    random = torch.Generator().manual_seed(3)
    tensors = {
        f"blocks.{i}.{part}.weight": torch.randn(256, 512, generator=random)
        for i in range(4)
        for part in ("attn.qkv", "mlp.up")
    }
    path = tmp_path / "model.safetensors"
    save_file(tensors, path)
    return path


def test_quantize_inspect_diff_dequantize(model, tmp_path):
    small, again = tmp_path / "small.safetensors", tmp_path / "again.safetensors"
    report = pestle.quantize_file(
        model, small, "nvfp4", layers={"blocks.*.mlp.*": "mxfp8"}, default_keep=False
    )
    formats = {layer["name"]: layer["format"] for layer in report["layers"]}
    assert formats["blocks.2.attn.qkv"] == "nvfp4"
    assert formats["blocks.2.mlp.up"] == "mxfp8"
    assert report["bytes_after"] < report["bytes_before"] / 4
    assert {layer["format"] for layer in pestle.inspect(small)["layers"]} >= {"nvfp4", "mxfp8"}
    worst = pestle.diff(model, small)["layers"][0]
    assert worst["relative_error"] < 0.11
    pestle.dequantize_file(small, again, dtype="f32")
    name = "blocks.1.mlp.up.weight"
    before, after = load_file(model)[name], load_file(again)[name]
    assert (before - after).norm() / before.norm() < 0.03


def test_a_file_holds_what_the_ops_give(model, tmp_path):
    small = tmp_path / "small.safetensors"
    pestle.quantize_file(model, small, "nvfp4", default_keep=False)
    weight, stored = load_file(model)["blocks.0.mlp.up.weight"], load_file(small)
    q, scale, whole = pestle.quantize_nvfp4(weight)
    assert torch.equal(stored["blocks.0.mlp.up.weight"], q)
    scales = stored["blocks.0.mlp.up.weight_scale"].view(torch.uint8)
    assert torch.equal(scales, scale.view(torch.uint8))
    assert stored["blocks.0.mlp.up.weight_scale_2"].item() == whole.item()


def test_progress_is_reported_and_stops(model, tmp_path):
    out, steps = tmp_path / "out.safetensors", []
    pestle.quantize_file(model, out, "fp8", progress=lambda *step: steps.append(step))
    assert steps
    stage, done, total = steps[-1]
    assert isinstance(stage, str) and 0 < done <= total
    stopped = tmp_path / "stopped.safetensors"
    with pytest.raises(pestle.InterruptedByCallerError):
        pestle.quantize_file(model, stopped, "fp8", progress=lambda *_: True)
    with pytest.raises(ZeroDivisionError):
        pestle.quantize_file(model, stopped, "fp8", progress=lambda *_: 1 / 0)
    assert not list(tmp_path.glob("stopped*"))


def test_bar(model, tmp_path, capsys):
    pestle.quantize_file(model, tmp_path / "out.safetensors", "fp8", progress=True)
    assert "100%" in capsys.readouterr().err


def test_errors(model, tmp_path):
    with pytest.raises(pestle.FileError, match=r"nothing\.safetensors"):
        pestle.inspect(tmp_path / "nothing.safetensors")
    with pytest.raises(pestle.InvalidArgumentError, match="fp9"):
        pestle.quantize_file(model, tmp_path / "out.safetensors", "fp9")
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"\xff" * 64)
    with pytest.raises(pestle.CorruptFileError):
        pestle.inspect(broken)


def _some_tensors() -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(5)
    tensors = {
        f"layer.{str(dtype).rpartition('.')[2]}": torch.randn(3, 5, generator=random).to(dtype)
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int8)
    }
    tensors["scale"] = torch.full((7,), 127, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    tensors["strided"] = torch.arange(24).reshape(4, 6).t()
    return tensors | {"number": torch.tensor(2.5), "nothing": torch.empty(0, 4)}


def _same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(
        a[n].dtype == b[n].dtype
        and a[n].shape == b[n].shape
        and torch.equal(a[n].contiguous().float(), b[n].contiguous().float())
        for n in a
    )


def test_tensors_are_saved_and_loaded(tmp_path):
    tensors, path = _some_tensors(), tmp_path / "some.safetensors"
    pestle.save_file(tensors, path, {"made by": "a test"})
    assert _same(pestle.load_file(path), tensors)
    assert _same(load_file(path), tensors)  # of safetensors
    save_file({n: t.contiguous() for n, t in tensors.items()}, tmp_path / "theirs.safetensors")
    assert _same(pestle.load_file(tmp_path / "theirs.safetensors"), tensors)
    assert list(pestle.load_file(path, names=["number"])) == ["number"]
    assert pestle.inspect(path)["metadata"]["made by"] == "a test"


def test_shards_and_folders(tmp_path):
    tensors = {f"w{i}": torch.randn(64, 64) for i in range(6)}
    index = tmp_path / "model.safetensors.index.json"
    pestle.save_file(tensors, index.with_suffix("").with_suffix(""), max_shard_bytes=40_000)
    assert len(list(tmp_path.glob("*.safetensors"))) == 3
    assert _same(pestle.load_file(tmp_path), tensors)


def test_saving_is_atomic_and_says_what_is_wrong(tmp_path):
    path = tmp_path / "some.safetensors"
    pestle.save_file({"a": torch.ones(4)}, path)
    with pytest.raises(pestle.PestleError):
        pestle.save_file({"a": torch.zeros(4)}, path, force=False)
    with pytest.raises(pestle.InterruptedByCallerError):
        pestle.save_file({"a": torch.zeros(4)}, path, progress=lambda *step: True)
    assert torch.equal(pestle.load_file(path)["a"], torch.ones(4))
    assert [p.name for p in tmp_path.iterdir()] == ["some.safetensors"]
    with pytest.raises(pestle.InvalidArgumentError, match="no dtype for"):
        pestle.save_file({"a": torch.ones(2, dtype=torch.complex64)}, path)
    with pytest.raises(pestle.InvalidArgumentError, match="has no tensor 'b'"):
        pestle.load_file(path, names=["b"])


def test_progress_of_tensors(tmp_path):
    steps, path = [], tmp_path / "large.safetensors"
    pestle.save_file({"a": torch.zeros(6_000_000)}, path, progress=lambda *s: steps.append(s))
    assert steps == [("writing", 16 << 20, 24_000_000), ("writing", 24_000_000, 24_000_000)]
    pestle.load_file(path, progress=True)
