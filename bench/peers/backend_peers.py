"""The package's own backends on the cases of `pestle bench`, as peers: pestle_triton and so on.

Needs the installed package; run_peers.py --backends triton,cuda adds them to a walk.
"""

import torch
import torch_peers

CODES = {
    "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "e8m0": torch.float8_e8m0fnu,
    "u8": torch.uint8, "i8": torch.int8,
}  # fmt: skip


def tensor(case, name):
    """Data of an input: normal values, bytes of codes, scales near 1."""
    described = case["tensors"][name]
    shape, dtype = described["shape"], described["dtype"]
    if dtype in torch_peers.DTYPES and "scale" not in name:
        return torch_peers.random_tensor(case, name)
    if dtype == "f32":
        return torch.full(shape, 0.01, device=torch_peers.DEVICE)
    low, high = (120, 132) if dtype == "e8m0" else (0, 127)
    raw = torch.randint(low, high, shape, dtype=torch.uint8, device=torch_peers.DEVICE)
    return raw.view(CODES[dtype])


def calls(case, backends):
    """{peer: (callable, None)} of the backends that take the case."""
    import pestle
    from pestle import _contract

    op = _contract.op(case["op"])
    described = case["tensors"]
    inputs = {a.name: tensor(case, a.name) for a in op.of_role("input") if a.name in described}
    options = {a.name: case["attributes"][a.name] for a in op.of_role("attribute")}
    options |= {a.name: bool(options[a.name]) for a in op.of_role("attribute") if a.kind == "bool"}
    dtypes = torch_peers.DTYPES | CODES
    for arg in op.of_role("output"):
        choice = arg.name in described and "|" in "".join(arg.dtypes.values())
        if choice and not "".join(arg.dtypes.values()).startswith("="):
            options[f"{arg.name}_dtype"] = dtypes[described[arg.name]["dtype"]]
    function = getattr(pestle, op.name)
    found = {}
    for backend in backends:
        try:
            function(**inputs, **options, backend=backend)
        except pestle.NoCapableBackendError:
            continue
        found[f"pestle_{backend}"] = (
            lambda b=backend: function(**inputs, **options, backend=b), None
        )  # fmt: skip
    return found
