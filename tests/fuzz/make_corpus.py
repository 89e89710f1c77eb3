#!/usr/bin/env python3
"""Writes the seed inputs of the fuzz targets: tests/fuzz/corpus/<target>/."""

import json
import pathlib
import struct

ROOT = pathlib.Path(__file__).parent / "corpus"


def save(target: str, name: str, data: bytes) -> None:
    folder = ROOT / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def safetensors(header: dict | str, data: bytes = b"") -> bytes:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: str, shape: list, begin: int, end: int) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def make_safetensors() -> None:
    target = "safetensors_fuzz"
    save(target, "empty", safetensors({}))
    two = {
        "__metadata__": {"format": "pt"},
        "a.weight": entry("BF16", [2, 2], 0, 8),
        "b": entry("F32", [], 8, 12),
        "c": entry("F8_E4M3", [0, 3], 12, 12),
    }
    save(target, "three", safetensors(two, bytes(12)))
    save(target, "four_bit", safetensors({"a": entry("F4", [1, 4], 0, 2)}, bytes(2)))
    save(target, "utf8_name", safetensors({"é": entry("U8", [1], 0, 1)}, b"x"))
    save(
        target,
        "overlap",
        safetensors({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 1, 3)}, bytes(3)),
    )
    save(target, "overflow", safetensors({"a": entry("F64", [2**62, 2**62], 0, 8)}, bytes(8)))
    save(target, "negative", safetensors({"a": entry("U8", [-1], 0, 1)}, bytes(1)))
    save(target, "fraction", safetensors({"a": entry("U8", [1.5], 0, 1)}, bytes(1)))
    save(
        target,
        "duplicate",
        safetensors('{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":1}'),
    )
    save(target, "nested", safetensors('{"a":' + "[" * 60 + "]" * 60 + "}"))
    save(target, "huge_header", struct.pack("<Q", 2**63) + b"{}")
    save(target, "truncated", safetensors(two)[:-4])


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(keys: list[bytes], tensors: list[bytes], data: bytes, version: int = 3) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    head += b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + data


def tensor(name: str, dims: list[int], kind: int, offset: int) -> bytes:
    packed = struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
    return text(name) + packed


def make_gguf() -> None:
    target = "gguf_fuzz"
    name = text("general.name") + struct.pack("<I", 8) + text("m")
    align = text("general.alignment") + struct.pack("<II", 4, 32)
    array = text("a") + struct.pack("<IIQ", 9, 5, 2) + struct.pack("<2i", 1, 2)
    strings = text("s") + struct.pack("<IIQ", 9, 8, 2) + text("x") + text("y")
    nested = text("n") + struct.pack("<IIQIQB", 9, 9, 1, 0, 1, 7)
    flag = text("f") + struct.pack("<IB", 7, 1)
    save(target, "empty", gguf([], [], b""))
    save(target, "keys", gguf([name, align, array, strings, nested, flag], [], b""))
    save(target, "f32", gguf([align], [tensor("w", [2, 2], 0, 0)], bytes(16)))
    save(target, "q8_0", gguf([], [tensor("w", [32, 1], 8, 0)], bytes(34), 2))
    two = [tensor("a", [32], 2, 0), tensor("b", [256], 12, 32)]
    save(target, "two", gguf([name], two, bytes(32 + 144)))
    save(target, "version1", b"GGUF" + struct.pack("<III", 1, 0, 0))
    save(target, "big_endian", b"GGUF" + struct.pack(">IQQ", 3, 0, 0))
    save(
        target, "overlap", gguf([], [tensor("a", [32], 0, 0), tensor("b", [8], 0, 32)], bytes(256))
    )
    save(target, "many_keys", b"GGUF" + struct.pack("<IQQ", 3, 0, 2**63))


def make_recipe() -> None:
    target = "recipe_fuzz"
    full = """
format = "nvfp4"
layout = "plain"
target_error = 0.02
scale_search = "mse"
default_keep = false
max_shard = "5GB"
keep = ["final_layer*", "*.norm?", "[!a-c]*"]
[[layer]]
pattern = "blocks.*.mlp.*"
format = "fp8"
"""
    save(target, "full", full.encode())
    save(target, "empty", b"")
    save(target, "unknown_key", b'formt = "fp8"\n')
    save(target, "inline_layers", b'layer = [{pattern = "a", format = "fp8"}]\n')
    save(target, "dotted", b'a.b.c = {d = [1, 2.5, 1979-05-27T07:32:00Z, """x"""]}\n')
    save(target, "not_toml", b"= =\n")


if __name__ == "__main__":
    make_safetensors()
    make_gguf()
    make_recipe()
