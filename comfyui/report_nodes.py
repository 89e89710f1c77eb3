"""What the other nodes did, as text."""

from comfy.patcher_extension import WrappersMP
from comfy_api.latest import io, ui
from pestle.comfy import MODES, Served, serving, summary, weight_report

from .compile_nodes import ATTACHMENT, KERNELS
from .picture import bars, shown

CATEGORY = "Pestle/report"


def any_time() -> float:
    """A fingerprint that equals none: the node runs each time."""
    return float("nan")


def ordered_after() -> io.AnyType.Input:
    return io.AnyType.Input(
        "after", optional=True, tooltip="Anything that is made later: the sampler's latent, say."
    )


class PestleCompileReport(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="PestleCompileReport",
            display_name="Compile report (Pestle)",
            category=CATEGORY,
            description="Of a compiled model: times of first and later steps, graphs and why they "
            "broke or were compiled again, error against eager, memory, caches.",
            search_aliases=["torch.compile report", "recompiles", "graph breaks"],
            inputs=[
                io.MultiType.Input("model", types=[io.Model, io.Custom("WANVIDEOMODEL")]),
                ordered_after(),
            ],
            outputs=[io.String.Output("report", display_name="report")],
            is_output_node=True,
            not_idempotent=True,
        )

    @classmethod
    def fingerprint_inputs(cls, **inputs) -> float:
        return any_time()

    @classmethod
    def execute(cls, model, after=None) -> io.NodeOutput:
        compiled = model.get_attachment(ATTACHMENT)
        if compiled is None:
            raise ValueError("this model is not compiled: Apply Torch Compile comes before")
        text = str(compiled.report)
        return io.NodeOutput(text, ui=shown(text, _steps(compiled.report), cls))


def _steps(report):
    """A bar for each step that was timed."""
    timed = [(call, ms) for call in report.calls if (ms := call.ms()) is not None]
    rows = [
        (f"{ms:,.1f} ms  {'x'.join(map(str, call.shape))}", ms, bool(call.compiled))
        for call, ms in timed
    ]
    return bars(f"{report.model}: steps; the striking ones compiled", rows)


class PestleKernels(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="PestleKernels",
            display_name="Pestle kernels",
            category="Pestle/kernels",
            description="Who serves what this model asks of comfy-kitchen (RoPE, quantised "
            "products): only while the sampler runs this model.",
            inputs=[
                io.Model.Input("model"),
                io.Combo.Input(
                    "mode", options=list(MODES), default="on",
                    tooltip="on: Pestle first, what it refuses goes to the others. strict: Pestle "
                    "alone, a refusal stops the run with its reasons. off: the others alone.",
                ),
            ],
            outputs=[io.Model.Output("served", display_name="MODEL")],
        )  # fmt: skip

    @classmethod
    def execute(cls, model, mode) -> io.NodeOutput:
        clone, served = model.clone(), Served(mode)

        def run(executor, *args, **kwargs):
            with serving(served, executor.class_obj.diffusion_model):
                return executor(*args, **kwargs)

        clone.remove_wrappers_with_key(WrappersMP.APPLY_MODEL, KERNELS)
        clone.add_wrapper_with_key(WrappersMP.APPLY_MODEL, KERNELS, run)
        clone.set_attachments(KERNELS, served)
        return io.NodeOutput(clone)


class PestleModelReport(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="PestleModelReport",
            display_name="Model report (Pestle)",
            category=CATEGORY,
            description="Formats and sizes of a model's weights, and, behind Pestle kernels, what "
            "was asked of comfy-kitchen and who served it.",
            inputs=[io.Model.Input("model"), ordered_after()],
            outputs=[io.String.Output("report", display_name="report")],
            is_output_node=True,
            not_idempotent=True,
        )

    @classmethod
    def fingerprint_inputs(cls, **inputs) -> float:
        return any_time()

    @classmethod
    def execute(cls, model, after=None) -> io.NodeOutput:
        found = weight_report(model.get_model_object("diffusion_model"))
        served = model.get_attachment(KERNELS)
        parts = [summary(found), *([str(served)] if served else []), str(found)]
        text = "\n".join(parts)
        return io.NodeOutput(text, ui=ui.PreviewText(text))


NODES = [PestleCompileReport, PestleKernels, PestleModelReport]
