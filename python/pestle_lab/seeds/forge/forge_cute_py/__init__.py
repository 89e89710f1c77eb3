"""Kernels on 2-D tensors: copy_transpose, reduce, reduce_sum, softmax_online.

ops/      what callers see: checks, allocation, gradients, torch.ops.forge_cute_py
kernels/  what computes, into memory that is given: edit these
ref/      PyTorch, which tests and benchmarks hold kernels against
util/     timing, a cache of tuned configurations
"""

__version__ = "0.1.0"
