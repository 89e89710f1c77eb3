"""tools/compare_kernels.py reads dumps, ignores names, and sees every other instruction."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import compare_kernels

DUMP = """\
Fatbin elf code:
arch = sm_90a
\tcode for sm_90a
\t\tFunction : _Z3oneIfEvv
        /*0000*/                   MOV R1, c[0x0][0x28] ;         /* 0x00000a0000017a02 */
                                                                  /* 0x000fe40000000f00 */
        /*0010*/                   EXIT ;                         /* 0x000000000000794d */
\t\tFunction : _Z3twov
        /*0000*/                   EXIT ;                         /* 0x000000000000794d */
arch = sm_80
\tcode for sm_80
\t\tFunction : _Z3twov
        /*0000*/                   EXIT ;                         /* 0x000000000000794d */
"""


def test_kernels_are_read():
    found = compare_kernels.kernels(DUMP.splitlines())
    assert sorted(k[0] for k in found) == ["sm_80", "sm_90a", "sm_90a"]
    assert sorted(n for names in found.values() for n in names) == [
        "_Z3oneIfEvv", "_Z3twov", "_Z3twov"]  # fmt: skip


def test_names_do_not_count():
    before = compare_kernels.kernels(DUMP.splitlines())
    after = compare_kernels.kernels(DUMP.replace("_Z3twov", "_Z5threev").splitlines())
    assert compare_kernels.differences(before, after) == []


def test_another_instruction_is_seen():
    before = compare_kernels.kernels(DUMP.splitlines())
    after = compare_kernels.kernels(
        DUMP.replace("0x000fe40000000f00", "0x000fe40000000f01").splitlines()
    )
    found = compare_kernels.differences(before, after)
    assert len(found) == 2 and all("sm_90a" in line and "_Z3one" in line for line in found)


def test_a_kernel_that_is_gone_is_seen():
    before = compare_kernels.kernels(DUMP.splitlines())
    after = compare_kernels.kernels(DUMP.partition("arch = sm_80")[0].splitlines())
    assert len(compare_kernels.differences(before, after)) == 1
