"""Pestle's nodes for ComfyUI. This folder belongs into custom_nodes, Pestle's wheel into ComfyUI's
Python; the nodes are thin, and what they do is pestle.comfy."""

import logging
import sys

try:
    import pestle.comfy  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"Pestle's nodes need the Python package pestle in ComfyUI's environment: {error}"
    ) from error

from comfy_api.latest import ComfyExtension, io

from . import compile_nodes, report_nodes, weight_nodes

WEB_DIRECTORY = "./web"

if sys.platform != "linux":
    logging.info("Pestle is proven on Linux only; on %s its nodes are untested", sys.platform)


class PestleExtension(ComfyExtension):
    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return [*compile_nodes.NODES, *report_nodes.NODES, *weight_nodes.NODES]


async def comfy_entrypoint() -> PestleExtension:
    return PestleExtension()
