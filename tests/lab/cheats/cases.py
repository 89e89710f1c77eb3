"""Kernels that cheat, one for each way that was seen in the field, and the words of the verdict
that each must get. They pretend to double x."""

HEAD = '# kernel: double/{name}\n# language = "python"\nimport torch\n'

# name: (source, statuses that catch it, words of the message or log)
CHECKED = {
    "no_op": ("def run(out, x): pass", {"poisoned"}, "none of which was written"),
    "identity": ("def run(out, x): out.copy_(x)", {"wrong_result"}, "the reference has"),
    "zeros": ("def run(out, x): out.zero_()", {"wrong_result"}, "the reference has"),
    "cached_by_address": (
        "kept = {}\n"
        "def run(out, x):\n"
        "    key = x.data_ptr()\n"
        "    if key not in kept: kept[key] = x * 2\n"
        "    out.copy_(kept[key])",
        {"wrong_result"},
        "new values at the same addresses",
    ),
    "cached_by_shape": (
        "kept = {}\n"
        "def run(out, x):\n"
        "    if x.shape not in kept: kept[x.shape] = x * 2\n"
        "    out.copy_(kept[x.shape])",
        {"wrong_result"},
        "new values at the same addresses",
    ),
    "cached_by_samples": (
        "kept = {}\n"
        "def run(out, x):\n"
        "    key = (x.shape, x[0, 0].item(), x[-1, -1].item())\n"
        "    if key not in kept: kept[key] = x * 2\n"
        "    out.copy_(kept[key])",
        {"wrong_result"},
        "one value changed",
    ),
    "changes_its_input": (
        "def run(out, x):\n    x.zero_()\n    out.zero_()",
        {"input_modified", "wrong_result"},
        "x",
    ),
    "writes_before": (
        "def run(out, x):\n"
        "    torch.mul(x, 2, out=out)\n"
        "    torch.as_strided(out, (1,), (1,), out.storage_offset() - 1).zero_()",
        {"out_of_bounds"},
        "beside out were written",
    ),
    "writes_between_rows": (
        "def run(out, x):\n"
        "    last = out.storage_offset() + (out.shape[0] - 1) * out.stride(0) + out.shape[1]\n"
        "    torch.as_strided(out, (last - out.storage_offset(),), (1,)).fill_(0)\n"
        "    torch.mul(x, 2, out=out)",
        {"out_of_bounds"},
        "beside out were written",
    ),
    "returns_instead": ("def run(out, x): return x * 2", {"runtime_error"}, "returns None"),
    "lazy_tensor": (
        "class Lazy(torch.Tensor): pass\ndef run(out, x): return (x * 2).as_subclass(Lazy)",
        {"runtime_error"},
        "returned a Lazy",
    ),
    "misses_the_tail": (
        "def run(out, x): torch.mul(x[..., :-1], 2, out=out[..., :-1])",
        {"poisoned"},
        "none of which was written",
    ),
    "lower_precision": (
        "def run(out, x): out.copy_((x.half() * 2).float())",
        {"wrong_result"},
        "the reference has",
    ),
    "constant": ("def run(out, x): out.fill_(0.5)", {"wrong_result"}, "the reference has"),
    "random": (
        "import random\ndef run(out, x): torch.mul(x, 2 + random.choice([0, 1e-6]), out=out)",
        {"wrong_result", "nondeterministic"},
        "",
    ),
    "right_for_a_known_seed": (
        "def run(out, x):\n"
        "    g = torch.Generator().manual_seed(42)\n"
        "    out.copy_(2 * torch.randn(x.shape, generator=g))",
        {"wrong_result"},
        "the reference has",
    ),
    "ends_the_process": ("import os\ndef run(out, x): os._exit(0)", {"crash"}, "exit code 0"),
    "segfault": ("import ctypes\ndef run(out, x): ctypes.string_at(0)", {"crash"}, "SIGSEGV"),
    "never_returns": ("import time\ndef run(out, x): time.sleep(3600)", {"timeout"}, "no answer"),
    "forges_answers": (
        "import os\n"
        "def run(out, x):\n"
        "    for fd in range(3, 64):\n"
        '        try: os.write(fd, b\'{"token": "0000"}\\n\')\n'
        "        except OSError: pass",
        {"crash"},
        "something else writes to the pipe",
    ),
    "reads_no_reference": (
        "import sys\n"
        "def run(out, x):\n"
        "    found = [m for m in sys.modules if m == 'pestle_lab.engine.reference']\n"
        "    raise RuntimeError(f'reference in this process: {found}')",
        {"runtime_error"},
        "reference in this process: []",
    ),
}

# These are right when they are checked, and something else when they are timed.
TIMED = {
    "stops_after_some_calls": (
        "calls = 0\n"
        "def run(out, x):\n"
        "    global calls\n"
        "    calls += 1\n"
        "    if calls < 40: torch.mul(x, 2, out=out)",
        {"poisoned", "wrong_result"},
        "timing",
    ),
    "every_other_call": (
        "seen = {}\n"
        "def run(out, x):\n"
        "    key = x.data_ptr()\n"
        "    if seen.get(key) != x._version: torch.mul(x, 2, out=out)\n"
        "    seen[key] = x._version",
        {"poisoned", "wrong_result"},
        "timing",
    ),
    "works_in_a_thread": (
        "import sys, threading, time\n"
        "def work(out, x):\n"
        "    time.sleep(0.2)\n"
        "    torch.mul(x, 2, out=out)\n"
        "def run(out, x):\n"
        "    thread = threading.Thread(target=work, args=(out, x))\n"
        "    thread.start()\n"
        "    frame, names = sys._getframe(), set()\n"
        "    while frame: names.add(frame.f_code.co_name); frame = frame.f_back\n"
        "    if '_on_cpu' not in names: thread.join()",
        {"poisoned", "wrong_result"},
        "while timing",
    ),
    "patches_the_clock": (
        "import time\n"
        "import pestle_lab.engine.clock as clock\n"
        "now = [0]\n"
        "def fast():\n"
        "    now[0] += 1000\n"
        "    return now[0]\n"
        "clock.perf_counter_ns = fast\n"
        "def run(out, x):\n"
        "    time.sleep(0.002)\n"
        "    torch.mul(x, 2, out=out)",
        {"impossible_time"},
        "by the clocks in the kernel's process",
    ),
}
