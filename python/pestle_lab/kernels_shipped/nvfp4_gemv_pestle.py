# kernel: nvfp4_gemv/pestle
# language = "python"
# entry = "run"
# notes = "The product's own kernel, the last rung: its arguments are views of the tensors."
import pestle  # noqa: F401  (registers torch.ops.pestle)
import torch


def run(c, a, b, sfa, sfb, sfa_permuted, sfb_permuted):
    batches = [t.permute(2, 0, 1) for t in (a, b, sfa, sfb)]
    out = c[:, 0, :].permute(1, 0)
    torch.ops.pestle.gemv_nvfp4.out(*batches, nibbles="low_first", scale_layout="plain", out=out)
