"""The command `pestle` of an installed wheel: the same program as build/bin/pestle, from the
library that the package carries. Neither torch nor the package itself is imported."""

import ctypes
import sys
from importlib.util import find_spec
from pathlib import Path


def main() -> int:
    package = find_spec("pestle")
    folders = package.submodule_search_locations if package else []
    found = [Path(f) / "libpestle_torch.so" for f in folders or []]
    library = next((path for path in found if path.is_file()), None)
    if library is None:
        print(
            "pestle: the library of the command line is missing; install the wheel with compiled "
            "kernels (the pure-Python one has none)",
            file=sys.stderr,
        )
        return 2
    arguments = ["pestle", *sys.argv[1:]]
    argv = (ctypes.c_char_p * (len(arguments) + 1))(
        *[a.encode("utf-8", "surrogateescape") for a in arguments]
    )
    return ctypes.CDLL(str(library)).pestle_command_line(len(arguments), argv)
