"""A CuTe DSL kernel to begin with: a thread for each row, sums in f32. It needs a GPU and the
package nvidia-cutlass-dsl, and says so elsewhere. As delivered it has not run on a GPU."""

import torch
from kernel_utils.backends import BACKENDS, Unsupported
from kernel_utils.task import input_t, output_t

try:
    import cuda.bindings.driver as driver
    import cutlass
    from cutlass import cute
    from cutlass.cute.runtime import from_dlpack
except ModuleNotFoundError:
    cute = None

THREADS = 128
_SIZES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
_compiled = {}
_tables = {}

if cute is not None:

    @cute.kernel
    def gemv(c: cute.Tensor, a: cute.Tensor, b: cute.Tensor, scales: cute.Tensor,
             scales_b: cute.Tensor, table: cute.Tensor):  # fmt: skip
        thread, _, _ = cute.arch.thread_idx()
        block, batch, _ = cute.arch.block_idx()
        row = block * THREADS + thread
        total = cutlass.Float32(0.0)
        for j in range(cute.size(a, mode=[2])):
            left, right = cutlass.Int32(a[batch, row, j]), cutlass.Int32(b[batch, 0, j])
            low = table[left & 15] * table[right & 15]
            high = table[left >> 4] * table[right >> 4]
            total += (low + high) * scales[batch, row, j // 8] * scales_b[batch, 0, j // 8]
        c[batch, row] = cutlass.Float16(total)

    @cute.jit
    def launch(c: cute.Tensor, a: cute.Tensor, b: cute.Tensor, scales: cute.Tensor,
               scales_b: cute.Tensor, table: cute.Tensor, stream: driver.CUstream):  # fmt: skip
        batches, rows = cute.size(a, mode=[0]), cute.size(a, mode=[1])
        gemv(c, a, b, scales, scales_b, table).launch(
            grid=(rows // THREADS, batches, 1), block=(THREADS, 1, 1), stream=stream
        )


def cute_kernel(data: input_t) -> output_t:
    a, b, scale_a, scale_b, _, _, c = data
    if cute is None:
        raise Unsupported("CuTe DSL is not installed: pip install nvidia-cutlass-dsl")
    if not a.is_cuda:
        raise Unsupported("a CuTe DSL kernel needs a GPU")
    if a.device not in _tables:
        _tables[a.device] = torch.tensor([*_SIZES, *(-s for s in _SIZES)], device=a.device)
    outer = lambda x: x.permute(2, 0, 1)  # noqa: E731
    tensors = [
        outer(c).squeeze(-1),
        outer(a.view(torch.uint8)),
        outer(b.view(torch.uint8)),
        outer(scale_a).float(),  # to decode e4m3 in the kernel is the first thing to gain
        outer(scale_b).float(),
        _tables[a.device],
    ]
    # Extents are the kernel's arguments: with constants in their place a compiled kernel fits one
    # shape alone, and what is compiled grows with it.
    arguments = [from_dlpack(t).mark_layout_dynamic(leading_dim=t.dim() - 1) for t in tensors]
    arguments.append(driver.CUstream(torch.cuda.current_stream(a.device).cuda_stream))
    key = tuple((t.dtype, t.dim()) for t in tensors)
    if key not in _compiled:
        _compiled[key] = cute.compile(launch, *arguments)
    _compiled[key](*arguments)
    return c


BACKENDS.register(
    name="cute",
    kernel_fn=cute_kernel,
    description="CuTe DSL, a thread a row",
    language="cutlass",
)
