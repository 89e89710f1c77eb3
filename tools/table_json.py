#!/usr/bin/env python3
"""usage: tools/table_json.py LIBPESTLE_TORCH: prints what the pure-Python wheel needs of the table,
as JSON: every contract, without the library's implementations, and every form of it for torch."""

import ctypes
import json
import sys


def text_of(library: ctypes.CDLL, pointer: int | None) -> str:
    text = ctypes.string_at(pointer).decode()
    library.pestle_free(ctypes.c_void_p(pointer))
    return text


def table(library: ctypes.CDLL) -> dict:
    library.pestle_op_at.restype = library.pestle_torch_forms.restype = ctypes.c_void_p
    library.pestle_op_at.argtypes = [ctypes.c_size_t]
    library.pestle_op_json.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)]
    library.pestle_op_count.restype = ctypes.c_size_t
    library.pestle_version.restype = ctypes.c_char_p
    contracts = []
    for index in range(library.pestle_op_count()):
        pointer = ctypes.c_void_p()
        if library.pestle_op_json(library.pestle_op_at(index), ctypes.byref(pointer)):
            sys.exit(f"table_json.py: no contract for op {index}")
        contract = json.loads(text_of(library, pointer.value))
        contract["implementations"] = []
        contracts.append(contract)
    return {
        "version": library.pestle_version().decode(),
        "contracts": contracts,
        "forms": json.loads(text_of(library, library.pestle_torch_forms())),
    }


if __name__ == "__main__":
    print(json.dumps(table(ctypes.CDLL(sys.argv[1])), separators=(",", ":")))
