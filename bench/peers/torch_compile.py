"""The chains of torch_eager through torch.compile, for the case's shapes."""

import torch
import torch_eager

NAME = "torch_compile"


def unavailable(device):
    return ""


def calls(case):
    made = torch_eager.CHAINS[case.op](case) if case.op in torch_eager.CHAINS else None
    if made is None:
        return {}
    chain, arguments = made
    # The chains of an op share their code, and torch gives up after a few shapes of one code.
    torch.compiler.reset()
    compiled = torch.compile(chain, dynamic=False)
    return {NAME: (lambda: compiled(*arguments), None)}
