"""The package's own backends on the cases of `pestle bench`, as peers: pestle_triton and so on.

Needs the installed package; run_peers.py --backends triton,cuda asks for them.
"""

from case_tensors import DTYPES

NAME = "pestle"
NOT_ASKED = "--backends names none"
BACKENDS = ()  # run_peers.py --backends sets them


def unavailable(device):
    if not BACKENDS:
        return NOT_ASKED
    try:
        import pestle  # noqa: F401
    except ImportError as error:
        return f"pestle can't be imported: {error}"
    return ""


def arguments(case):
    """Inputs and options of the Python function for a case."""
    from pestle import _contract

    op = _contract.op(case.op)
    inputs = {a.name: case.tensor(a.name) for a in op.of_role("input") if case.has(a.name)}
    options = {a.name: case.attribute(a.name, a.default) for a in op.of_role("attribute")}
    options |= {a.name: bool(options[a.name]) for a in op.of_role("attribute") if a.kind == "bool"}
    for arg in op.of_role("output"):
        allowed = "".join(arg.dtypes.values())
        if case.has(arg.name) and "|" in allowed:
            options[f"{arg.name}_dtype"] = DTYPES[case.tensors[arg.name]["dtype"]]
    return inputs, options


def calls(case):
    """Of the backends that take the case."""
    import pestle

    function = getattr(pestle, case.op)
    inputs, options = arguments(case)
    found = {}
    for backend in BACKENDS:
        try:
            function(**inputs, **options, backend=backend)
        except pestle.NoCapableBackendError:
            continue
        found[f"pestle_{backend}"] = (
            lambda b=backend: function(**inputs, **options, backend=b), None
        )  # fmt: skip
    return found
