"""Loads the compiled ops and speaks the C ABI: the table, the contracts, last errors."""

import ctypes
import gc
import json
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from . import errors

PATH = Path(__file__).with_name("libpestle_torch.so")
# In the pure-Python wheel, in place of the library: what the table says (tools/wheel_pure.sh).
TABLE = Path(__file__).with_name("table.json")


def _load() -> ctypes.CDLL | None:
    """The library, or None in a pure-Python installation."""
    if not PATH.exists():
        if TABLE.exists():
            return None
        raise ImportError(f"{PATH} is missing: install Pestle's wheel (`make wheel`)")
    library = ctypes.CDLL(str(PATH))
    library.pestle_torch_error.restype = ctypes.c_char_p
    library.pestle_torch_forms.restype = ctypes.c_void_p
    library.pestle_op_at.restype = ctypes.c_void_p
    library.pestle_op_at.argtypes = [ctypes.c_size_t]
    library.pestle_op_count.restype = ctypes.c_size_t
    library.pestle_op_json.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)]
    library.pestle_free.argtypes = [ctypes.c_void_p]
    for name in ("pestle_last_error", "pestle_version", "pestle_status_name"):
        getattr(library, name).restype = ctypes.c_char_p
    if failure := library.pestle_torch_error().decode():
        raise ImportError(f"Pestle's ops could not be registered: {failure}")
    for status in errors.BY_STATUS:
        errors.STATUS_NAMES[library.pestle_status_name(status).decode()] = status
    return library


LIBRARY = _load()


@cache
def _table() -> dict:
    return json.loads(TABLE.read_text())


def check(status: int) -> None:
    if status:
        raise errors.BY_STATUS.get(status, errors.PestleError)(LIBRARY.pestle_last_error().decode())


def take_text(pointer: int | None) -> str:
    """Copies a text that the library allocated, and frees it."""
    if not pointer:
        raise MemoryError
    try:
        return ctypes.string_at(pointer).decode()
    finally:
        LIBRARY.pestle_free(pointer)


def version() -> str:
    return LIBRARY.pestle_version().decode() if LIBRARY else _table()["version"]


@cache
def contracts() -> dict[str, dict]:
    """The contract of each op as the library prints it, in the table's order."""
    if LIBRARY is None:
        return {contract["name"]: contract for contract in _table()["contracts"]}
    result = {}
    for index in range(LIBRARY.pestle_op_count()):
        text = ctypes.c_void_p()
        check(LIBRARY.pestle_op_json(LIBRARY.pestle_op_at(index), ctypes.byref(text)))
        contract = json.loads(take_text(text.value))
        result[contract["name"]] = contract
    return result


@cache
def forms() -> dict:
    """What is registered with torch: {"forms": [...], "unbound": {op: why}}."""
    return json.loads(take_text(LIBRARY.pestle_torch_forms())) if LIBRARY else _table()["forms"]


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection inside: what registration makes is kept for good, and looking through
    all of torch's objects for garbage takes as long as registering."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def keep(library):
    """Keeps a torch.library.Library's ops to the end of the process, and returns it.

    torch 2.5 and 2.11 abort at exit when they take down some 140 ops, in jit::deregisterOperator.
    So nothing is taken back, as with the library in C++.
    """
    for finalizer in list(weakref.finalize._registry):
        if (watched := finalizer.peek()) and watched[0] is library:
            finalizer.atexit = False
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(library.m))
    return library
