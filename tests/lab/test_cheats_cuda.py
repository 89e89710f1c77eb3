"""Cheats that need a GPU. Where there is none, conftest.py leaves this file out."""

from pathlib import Path

import pytest
from cheats import gpu
from pestle_lab import benching, checking, kernels, problems

HERE = Path(__file__).parent


def _problem():
    return problems.get("double", [HERE])


@pytest.mark.parametrize("name", gpu.CHECKED)
def test_check_catches(name, kernel_file):
    file, text, statuses = gpu.CHECKED[name]
    kernel = kernels.read(kernel_file(text, file))
    done = checking.check(
        kernel, _problem(), ["M=64 N=256"], device="cuda", seed=None, timeout=60,
        problem_folders=[HERE],
    )  # fmt: skip
    assert done.cases[0].status in statuses, (done.cases[0].status, done.cases[0].message)


def _median_us(kernel, case: str) -> float:
    settings = benching.Settings(device="cuda", seconds=1, folders=[HERE])
    timed = benching.bench(kernel, _problem(), [case], settings).cases[0]
    assert timed.verdict.status == "ok", timed.verdict.message
    return timed.modes["cold"].median / 1e3


def test_work_on_another_stream_is_no_faster(kernel_file):
    kernel = kernels.read(kernel_file(gpu.LATE, "late.py"))
    settings = benching.Settings(device="cuda", seconds=1, folders=[HERE])
    timed = benching.bench(kernel, _problem(), ["M=64 N=256"], settings).cases[0]
    # Refused, or with the 10 ms that the other stream takes in its time.
    if timed.verdict.status == "ok":
        assert timed.modes["cold"].median > 5e6
    else:
        assert timed.verdict.status == "impossible_time", timed.verdict.message


def test_a_part_of_the_cache_that_is_set_aside_is_flushed(kernel_file):
    honest = kernels.read(kernel_file(gpu.HONEST, "honest.cu"))
    keeps = kernels.read(kernel_file(gpu.KEEPS_ITS_DATA_IN_L2, "keeps.cu"))
    case = "M=1024 N=2048"
    assert _median_us(keeps, case) > 0.9 * _median_us(honest, case)
