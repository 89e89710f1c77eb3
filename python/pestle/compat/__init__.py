"""Pestle under the names of other libraries.

pestle.compat.comfy_kitchen   comfy-kitchen's functions, registry, exceptions
pestle.compat.forge_cute      forge-cute-py's four ops
pestle.compat.install(...)    one in the place of the other
pestle.compat.install_forge() `import forge_cute_py`, as `pestle-lab seed forge` writes it
pestle.compat.install_gemv_harness()  `import kernel_utils`, as `pestle-lab seed gemv` does
"""

from ._install import install, uninstall
from ._seeds import install_forge, install_gemv_harness

__all__ = ["install", "install_forge", "install_gemv_harness", "uninstall"]
