"""tools/lint.py: the limits of notes and notebooks."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tools"))

import lint


def test_notes_and_notebooks_share_one_limit_of_words():
    half = "word " * (lint.MAX_WORDS // 2)
    pages = {"docs/notes/cuda.md": half, "ops/gemm/matmul/matmul.md": half}
    assert lint.wordy(pages) == []
    (fault,) = lint.wordy(pages | {"ops/copy/copy/copy.md": "one"})
    assert fault.startswith(f"docs/notes: {lint.MAX_WORDS + 1} words")


def test_a_notebook_has_a_limit_of_lines():
    most = "line\n" * lint.MAX_NOTEBOOK_LINES
    assert lint.wordy({"ops/copy/copy/copy.md": most}) == []
    (fault,) = lint.wordy({"ops/copy/copy/copy.md": most + "line\n"})
    assert fault.startswith(f"ops/copy/copy/copy.md:{lint.MAX_NOTEBOOK_LINES + 1}: ")


def test_other_documents_have_no_limit():
    long = "word\n" * (lint.MAX_WORDS + 1)
    assert lint.wordy({"docs/formats/fp8.md": long, "README.md": long}) == []
    assert lint.wordy({"docs/notes/cuda.md": "line\n" * (lint.MAX_NOTEBOOK_LINES + 1)}) == []


def test_launch_bounds_fit_every_multiprocessor():
    kernel = "__global__ void __launch_bounds__({}) one(int* x) {{}}\n"
    few = "constexpr int kFew = 256;\n" + kernel.format("kFew, kWide ? 5 : 6")
    assert lint.bounds_faults({"a.cuh": few, "b.cuh": kernel.format("128, 12")}) == []
    many = "constexpr int kMany = 256;\n" + kernel.format("kMany, 8")
    (fault,) = lint.bounds_faults({"a.cuh": few, "b.cuh": many})
    assert fault.startswith("b.cuh:2: 256 threads times 8 ")
    (fault,) = lint.bounds_faults(
        {"a.cuh": few + "constexpr int kCtas = 9;\n" + kernel.format("kFew, kCtas")}
    )
    assert fault.startswith("a.cuh:4: ")
