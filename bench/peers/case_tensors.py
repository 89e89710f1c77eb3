"""A case of `pestle bench --list-cases`, and tensors for it: what all peers start from."""

import torch

DTYPES = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f32": torch.float32,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e8m0": torch.float8_e8m0fnu,
    "u8": torch.uint8,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "f64": torch.float64,
    "bool": torch.bool,
}
FLOATS = ("bf16", "f16", "f32")
# Elements made at random and repeated: filling gigabytes takes longer than measuring. A prime
# number of them, as `pestle bench` has: of 2^20 a matrix of 8192 columns repeats its rows every
# 128, and a product whose tiles are alike changes fewer bits, draws less power and runs at a
# higher clock.
BLOCK = 4194301


class Case:
    def __init__(self, row, device="cpu"):
        self.op, self.text, self.device = row["op"], row["case"], device
        self.tensors, self.attributes = row["tensors"], row["attributes"]
        self.flops = row.get("flops", 0)
        self.made = {}  # all peers of a case read the same tensors

    def has(self, *names):
        return all(name in self.tensors for name in names)

    def only(self, *names):
        """Whether the case has no inputs but these."""
        inputs = {n for n, t in self.tensors.items() if t["role"] == "input"}
        return inputs <= set(names)

    def dtype(self, name):
        return DTYPES[self.tensors[name]["dtype"]]

    def shape(self, name):
        return self.tensors[name]["shape"]

    def attribute(self, name, otherwise=None):
        return self.attributes.get(name, otherwise)

    def plain(self):
        """Whether the result is rows of floats, not quantised and not two of them."""
        return self.attribute("out_format", "none") in ("none", "float", "plain") and not (
            self.has("q") or self.has("residual_out")
        )

    def tensor(self, name):
        if name not in self.made:
            self.made[name] = self.fill(name)
        return self.made[name]

    def fill(self, name):
        """Normal values, or any codes; scales are positive and moderate."""
        kind, shape = self.tensors[name]["dtype"], self.shape(name)
        if self.tensors[name].get("transposed"):
            return self.filled(name, kind, shape[::-1]).mT
        return self.filled(name, kind, shape)

    def filled(self, name, kind, shape):
        values = torch.empty(shape, dtype=DTYPES[kind], device=self.device)
        # Narrow floats have no copy on some devices: their bytes do.
        flat = values.view(torch.uint8 if values.itemsize == 1 else values.dtype).view(-1)
        block = self.block(name, kind, min(flat.numel(), BLOCK)).view(flat.dtype)
        for start in range(0, flat.numel(), max(1, block.numel())):
            part = flat[start : start + block.numel()]
            part.copy_(block[: part.numel()])
        return values

    def block(self, name, kind, count):
        scale = "scale" in name
        if kind in FLOATS or kind == "f64":
            normal = torch.randn(count, device=self.device)
            return (normal.abs() * 0.01 if scale and kind == "f32" else normal).to(DTYPES[kind])
        if kind in ("e4m3", "e5m2") and not scale:
            return self.finite_codes(kind, count)
        # Codes: any; a scale's are moderate.
        low, high = (0, self.classes()) if kind in ("i32", "i64") else (0, 256)
        if scale:
            low, high = {"e8m0": (110, 120), "e4m3": (50, 60), "u8": (50, 60)}.get(
                kind, (low, high)
            )
        codes = torch.randint(low, high, (count,), device=self.device)
        if kind == "bool":
            codes %= 2
        return codes.to(torch.uint8 if DTYPES[kind].itemsize == 1 else DTYPES[kind])

    def finite_codes(self, kind, count):
        """Every finite code of both signs, equally often, as `pestle bench` draws its own: products
        are bound by power, which depends on the bits that change."""
        finite = {"e4m3": 0x7F, "e5m2": 0x7C}[kind]
        magnitude = torch.randint(0, finite, (count,), device=self.device)
        sign = torch.randint(0, 2, (count,), device=self.device)
        return (magnitude + 128 * sign).to(torch.uint8)

    def codes(self, name, dtype):
        """A tensor of codes that may come as bytes."""
        return self.tensor(name).view(dtype)

    def classes(self):
        return self.shape("logits")[-1] if self.has("logits") else 8
