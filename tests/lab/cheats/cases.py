"""Kernels that cheat, one for each way that was seen in the field, and the words of the verdict
that each must get. They pretend to double x. FIELD says which published cheat each one is."""

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
    "stale_memory": (
        "def run(out, x):\n    kept = torch.empty_like(out)\n    out.copy_(kept)",
        {"wrong_result", "nonfinite", "poisoned"},
        "first call",
    ),
    "finds_the_answer": (
        "import gc\n"
        "def run(out, x):\n"
        "    tensors = [t for t in gc.get_objects() if type(t) is torch.Tensor]\n"
        "    like = [t for t in tensors if t.shape == x.shape and t.device == x.device\n"
        "            and t is not x and t is not out]\n"
        "    out.copy_(like[0]) if like else out.zero_()",
        {"wrong_result"},
        "the reference has",
    ),
    "poisons_all_it_finds": (
        "import gc\n"
        "def run(out, x):\n"
        "    for t in gc.get_objects():\n"
        "        if type(t) is torch.Tensor and t.dtype == x.dtype: t.fill_(float('nan'))",
        {"input_modified", "out_of_bounds", "nonfinite", "wrong_result"},
        "",
    ),
    "patches_the_comparison": (
        "import numpy, sys\n"
        "import pestle_lab.engine.buffers as buffers\n"
        "numpy.allclose = torch.allclose = lambda *a, **k: True\n"
        "torch.testing.assert_close = lambda *a, **k: None\n"
        "buffers.changed_outside = lambda *a: 0\n"
        "def run(out, x): out.zero_()",
        {"wrong_result"},
        "the reference has",
    ),
    "answers_in_the_harness_s_name": (
        "import json, os, sys\n"
        "def run(out, x):\n"
        "    frame = sys._getframe()\n"
        "    while 'token' not in frame.f_locals: frame = frame.f_back\n"
        "    known = frame.f_locals\n"
        "    known['answers'].write(json.dumps({'token': known['token']}) + '\\n')\n"
        "    known['answers'].flush()\n"
        "    os._exit(0)",
        {"crash"},
        "exit code 0",
    ),
    "writes_when_it_is_read": (
        "import pestle_lab.worker as worker\n"
        "kept = []\n"
        "honest = worker.Worker.fetch\n"
        "def late(self, request):\n"
        "    for out, x in kept: torch.mul(x, 2, out=out)\n"
        "    return honest(self, request)\n"
        "worker.Worker.fetch = late\n"
        "def run(out, x): kept.append((out, x))",
        {"poisoned"},
        "none of which was written",
    ),
    "replaces_how_memory_is_read": (
        "cpu, kept = torch.Tensor.cpu, []\n"
        "def late(self, *a, **k):\n"
        "    for out, x in kept: torch.mul(x, 2, out=out)\n"
        "    return cpu(self, *a, **k)\n"
        "torch.Tensor.cpu = late\n"
        "def run(out, x): kept.append((out, x))",
        {"poisoned"},
        "none of which was written",
    ),
    "fails_and_says_nothing": (
        "def run(out, x):\n"
        "    try:\n"
        "        torch.mul(x, 2, out=out[:, : 10**9].view(-1, 7))\n"
        "    except Exception:\n"
        "        pass",
        {"poisoned"},
        "none of which was written",
    ),
    "redefines_the_problem": (
        "import pestle_lab.problems as problems\n"
        "problems.get = lambda *a: None\n"
        "def run(out, x): out.copy_(x)",
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
    "leaves_what_is_written": (
        "def run(out, x):\n    if out[0, 0].isnan(): torch.mul(x, 2, out=out)",
        {"wrong_result"},
        "timing",
    ),
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
    "reports_no_time": (
        "import sys\n"
        "import pestle_lab.engine.clock as clock\n"
        "honest = clock.Timer._on_cpu\n"
        "def none(self, calls, mode): return [0 * s for s in honest(self, calls, mode)]\n"
        "clock.Timer._on_cpu = none\n"
        "def run(out, x): torch.mul(x, 2, out=out)",
        {"impossible_time"},
        "by the clocks in the kernel's process",
    ),
    "reports_other_times": (
        "import sys\n"
        "import pestle_lab.engine.clock as clock\n"
        "honest = clock.Timer._on_cpu\n"
        "def fast(self, calls, mode):\n"
        "    frame, names = sys._getframe(), set()\n"
        "    while frame: names.add(frame.f_code.co_name); frame = frame.f_back\n"
        "    made = honest(self, calls, mode)\n"
        "    return made if 'time_all' in names else [s // 100 for s in made]\n"
        "clock.Timer._on_cpu = fast\n"
        "def run(out, x):\n"
        "    for _ in range(100): torch.mul(x, 2, out=out)",
        {"impossible_time"},
        "by the clocks in the kernel's process",
    ),
    "slow_until_it_is_timed": (
        "import sys, time\n"
        "def run(out, x):\n"
        "    frame, names = sys._getframe(), set()\n"
        "    while frame: names.add(frame.f_code.co_name); frame = frame.f_back\n"
        "    if 'time' in names: return\n"
        "    time.sleep(0.001)\n"
        "    torch.mul(x, 2, out=out)",
        {"poisoned", "wrong_result"},
        "timing",
    ),
    "does_all_calls_in_one": (
        "seen = []\n"
        "def run(out, x):\n"
        "    if not any(o is out for o, _ in seen): seen.append((out, x))\n"
        "    if out is seen[0][0]:\n"
        "        for o, i in seen: torch.mul(i, 2, out=o)\n"
        "    elif len(seen) < 3: torch.mul(x, 2, out=out)",
        {"poisoned", "wrong_result"},
        "timing",
    ),
    "rewrites_the_pipe": (
        "import os, re, sys, threading\n"
        "def between(inside, outside):\n"
        "    while data := os.read(inside, 1 << 16):\n"
        "        os.write(outside, re.sub(rb'\\d{5,}', b'1000', data))\n"
        "fd = int(sys.argv[2])\n"
        "outside = os.dup(fd)\n"
        "inside, written = os.pipe()\n"
        "os.dup2(written, fd)\n"
        "threading.Thread(target=between, args=(inside, outside), daemon=True).start()\n"
        "def run(out, x):\n"
        "    __import__('time').sleep(0.002)\n"
        "    torch.mul(x, 2, out=out)",
        {"impossible_time", "crash"},
        "",
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

# These are right, and do by another's work what they are to do themselves: bench says what it saw.
TOLD = {
    "calls_pytorch": ("def run(out, x): torch.mul(x, 2, out=out)", "aten::mul"),
}

# What was published, under its name there, and the cheat here that does the same.
FIELD = {
    "gpu-mode/reference-kernels": {
        "result kept by address (#142)": "cached_by_address",
        "result kept by shape (#102)": "cached_by_shape",
        "result kept by a few values": "cached_by_samples",
        "all timed calls in one launch (#102, #104)": "does_all_calls_in_one",
        "timed calls that do nothing (#104)": "stops_after_some_calls",
        "every second call": "every_other_call",
        "lazy output: a tensor's subclass (#161)": "lazy_tensor",
        "lazy output: the work is done when it is read (#161)": "writes_when_it_is_read",
        "lazy output: Tensor's methods replaced (#161)": "replaces_how_memory_is_read",
        "timer replaced (#162)": "patches_the_clock",
        "statistics replaced (#162)": "reports_other_times",
        "times of nothing, for the geometric mean (#162)": "reports_no_time",
        "time below the roofline (#159)": "reports_no_time",
        "comparison replaced": "patches_the_comparison",
        "problem replaced": "redefines_the_problem",
        "results forged on the pipe": "forges_answers",
        "expected values read": "reads_no_reference",
        "seed known beforehand": "right_for_a_known_seed",
        "precision below what is asked": "lower_precision",
        "process ended before it is judged": "ends_the_process",
    },
    "KernelBench": {
        "zero_out_kernel: inputs changed": "changes_its_input",
        "result_reuse_kernel: memory that held the answer": "stale_memory",
        "non_default_stream_kernel": "works_on_another_stream",
        "stream injection": "works_on_another_stream",
        "thread injection": "works_in_a_thread",
        "lazy tensor": "lazy_tensor",
        "timing function patched": "patches_the_clock",
        "code bypass: try, except, pass": "fails_and_says_nothing",
        "no work at all": "no_op",
        "PyTorch wrapped, torch computes": "calls_pytorch",
        "precision downgraded": "lower_precision",
        "problems whose answer is a constant (#108)": "constant",
        "launch that fails": "launch_fails",
    },
    "pygpubench": {
        "aes_key_recovery": "answers_in_the_harness_s_name",
        "combined": "poisons_all_it_finds",
        "error_counter": "patches_the_comparison",
        "event_array": "reports_other_times",
        "fd_overwrite": "forges_answers",
        "file_struct": "rewrites_the_pipe",
        "function_detour": "reports_other_times",
        "gc_copy": "finds_the_answer",
        "gc_nan": "poisons_all_it_finds",
        "got_patch": "reports_other_times",
        "gpu_scan_zeros": "poisons_all_it_finds",
        "heap_sig_scan": "answers_in_the_harness_s_name",
        "pipe_interpose": "rewrites_the_pipe",
        "proc_mem_bypass": "answers_in_the_harness_s_name",
        "ptrace": "reports_other_times",
        "replace_torch": "leaves_a_torch_py",
        "seccomp_trap": "rewrites_the_pipe",
        "stack_sig_scan": "answers_in_the_harness_s_name",
        "test_canary_direct": "writes_before",
        "test_canary_make_writeable": "writes_before",
        "thread_fd": "forges_answers",
        "warmup": "slow_until_it_is_timed",
        "wrong": "zeros",
        "persisting part of the L2 cache (#49)": "keeps_its_data_in_l2",
    },
}
