"""The assembler sees every instruction in CI: instructions.cu calls each function that has one."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FUNCTION = re.compile(r"^__device__ (?:__noinline__ )?inline [\w:]+ (\w+)\(", re.MULTILINE)


def test_each_function_of_the_ptx_headers_is_assembled():
    test = (ROOT / "tests/cuda/instructions.cu").read_text()
    headers = sorted((ROOT / "backends/cuda/device/ptx").glob("*.cuh"))
    names = {name for header in headers for name in FUNCTION.findall(header.read_text())}
    assert len(names) > 40
    called = set(re.findall(r"\b(\w+)(?:<[^;]*?>)?\(", test))
    # What others call that are in it.
    inner = {"shared_at", "widen_e4m3", "widen_e5m2"}
    assert sorted(names - called - inner) == []
