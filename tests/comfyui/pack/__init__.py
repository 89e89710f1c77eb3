"""A node that only the tests need: conditioning of a given seed, without a text encoder."""

import torch
from comfy_api.latest import ComfyExtension, io


class RandomConditioning(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TestRandomConditioning",
            category="tests",
            inputs=[
                io.Int.Input("width", default=512),
                io.Int.Input("pooled", default=256),
                io.Int.Input("salt", default=0),  # another one: what follows is computed again
            ],
            outputs=[io.Conditioning.Output("conditioning")],
        )

    @classmethod
    def execute(cls, width, pooled, salt) -> io.NodeOutput:
        made = torch.Generator().manual_seed(7)
        context = torch.randn(1, 12, width, generator=made)
        more = {"pooled_output": torch.randn(1, pooled, generator=made), "guidance": 3.5}
        return io.NodeOutput([[context, more]])


class TestExtension(ComfyExtension):
    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return [RandomConditioning]


async def comfy_entrypoint() -> TestExtension:
    return TestExtension()
