"""The chains of torch_eager through torch.compile, for the case's shapes."""

import torch
import torch_eager

NAME = "torch_compile"


def unavailable(device):
    return ""


compiled = {}  # the last case's: the same code with other tensors is not compiled again


def calls(case):
    made = torch_eager.CHAINS[case.op](case) if case.op in torch_eager.CHAINS else None
    if made is None:
        return {}
    chain, arguments = made
    if getattr(chain, "is_one_call", False):
        return {}  # of a library, which compiling leaves as it is
    key = (case.op, case.text)
    if key not in compiled:
        # The chains of an op share their code, and torch gives up after a few shapes of one code.
        torch.compiler.reset()
        compiled.clear()
        compiled[key] = torch.compile(chain, dynamic=False)
    run = compiled[key]
    return {NAME: (lambda: run(*arguments), None)}
