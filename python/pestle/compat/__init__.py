"""Pestle under the names of other libraries.

pestle.compat.comfy_kitchen   comfy-kitchen's functions, registry, exceptions
pestle.compat.forge_cute      forge-cute-py's four ops
pestle.compat.install(...)    one in the place of the other
"""

from ._install import install, uninstall

__all__ = ["install", "uninstall"]
