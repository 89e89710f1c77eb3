"""Pestle in comfy-kitchen's place, before ComfyUI imports anything, in an environment without the
other."""

import sys
from importlib.abc import MetaPathFinder

import pestle.compat


class NoComfyKitchen(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "comfy_kitchen":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


assert "comfy_kitchen" not in sys.modules
sys.meta_path.insert(0, NoComfyKitchen())
pestle.compat.install(as_comfy_kitchen=True)
