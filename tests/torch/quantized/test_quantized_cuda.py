"""What quantised tensors do on a GPU alone: pinned memory, copies, CUDA graphs, host time."""

import time

import pestle
import pytest
import torch
from quantized_cases import NAMES, nothing_decoded, quantized, relative, weight


@pytest.mark.parametrize("name", NAMES)
def test_copies_to_the_gpu(name):
    made = quantized(name, weight())
    with nothing_decoded():
        pinned = made.pin_memory()
        moved = pinned.to("cuda", non_blocking=True)
        assert pinned.is_pinned() and moved.device.type == "cuda" and torch.equal(moved.cpu(), made)


@pytest.mark.parametrize("name", NAMES)
def test_a_cuda_graph_holds_a_linear(name):
    made = quantized(name, weight(dtype=torch.bfloat16).cuda())
    x = weight(16, seed=1).cuda()
    with torch.no_grad(), nothing_decoded():
        expected = torch.nn.functional.linear(x, made)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.nn.functional.linear(x, made)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = torch.nn.functional.linear(x, made)
        x.copy_(weight(16, seed=2))
        graph.replay()
        torch.cuda.synchronize()
        assert not torch.equal(out, expected)
        assert torch.equal(out, torch.nn.functional.linear(x, made))


@pytest.mark.parametrize("name", NAMES)
def test_peak_memory_stays_below_the_decoded_weight(name):
    made = quantized(name, weight(4096, 4096).cuda())
    x = weight(16, 4096, seed=1).cuda()
    with torch.no_grad(), nothing_decoded():
        torch.nn.functional.linear(x, made)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        torch.nn.functional.linear(x, made)
        peak = torch.cuda.max_memory_allocated() - before
    assert peak < 4096 * 4096 * 2 / 4, f"{peak} bytes"


def test_gpu_and_cpu_agree():
    for name in NAMES:
        on_cpu, on_gpu = quantized(name, weight()), quantized(name, weight().cuda())
        assert torch.equal(on_gpu.cpu(), on_cpu), name
        x = weight(7, seed=3)
        found = torch.nn.functional.linear(x.cuda(), on_gpu).cpu()
        assert relative(found, torch.nn.functional.linear(x, on_cpu)) < 5e-3, name


def host_time(call, count: int = 300) -> float:
    """Microseconds of host time a call, the quickest of several rounds."""
    best = float("inf")
    for _ in range(7):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            call()
        best = min(best, (time.perf_counter() - start) / count * 1e6)
        torch.cuda.synchronize()
    return best


@pytest.mark.parametrize("name", ["fp8", "nvfp4", "mxfp8", "int8-row"])
def test_host_time_of_a_linear(name, record_property):
    made = quantized(name, weight(256, 256).cuda())
    x = weight(1, 256).cuda()
    with torch.no_grad():
        plain = host_time(lambda: torch.nn.functional.linear(x, made))
    learned = x.clone().requires_grad_()
    with_gradient = host_time(lambda: torch.nn.functional.linear(learned, made))
    record_property("host_us", (plain, with_gradient))
    print(f"{name}: {plain:.1f} us under no_grad, {with_gradient:.1f} us with a gradient")
    assert isinstance(made, pestle.QuantizedTensor)
