"""torch.compile: settings, and a model that runs by them."""

import copy

from comfy.patcher_extension import WrappersMP
from comfy_api.latest import io
from pestle.comfy import DEFAULT_ERROR_BOUND, INPUTS, STANCES, CompiledModel, CompileSettings

CATEGORY = "Pestle/compile"
# ComfyUI's own node wraps by this name too: the later node stands in place of the earlier.
KEY = "torch.compile"
KERNELS = "pestle.kernels"
ATTACHMENT = "pestle.compiled"
CompileArgs = io.Custom("WANCOMPILEARGS")
WanVideoModel = io.Custom("WANVIDEOMODEL")


def _widget(one):
    told = {"optional": one.optional, "tooltip": one.tooltip, "default": one.default}
    if one.kind == "combo":
        return io.Combo.Input(one.name, options=list(one.options), **told)
    if one.kind == "int":
        return io.Int.Input(one.name, min=one.low, max=one.high, **told)
    return {"bool": io.Boolean, "string": io.String}[one.kind].Input(one.name, **told)


class TorchCompileSpeedSettings(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TorchCompileSpeedSettings",
            display_name="Torch Compile Speed Settings",
            category=CATEGORY,
            description="What torch.compile shall do: for Apply Torch Compile, and for WanVideo's "
            "loaders.",
            inputs=[_widget(one) for one in INPUTS],
            outputs=[CompileArgs.Output("torch_compile_args", display_name="torch_compile_args")],
        )

    @classmethod
    def execute(cls, **values) -> io.NodeOutput:
        return io.NodeOutput(CompileSettings.of(values).to_dict())


class ApplyTorchCompile(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="ApplyTorchCompile",
            display_name="Apply Torch Compile",
            category=CATEGORY,
            description="The model, compiled while the sampler runs it. Other uses of the same "
            "model stay as they are.",
            inputs=[
                io.MultiType.Input("model", types=[io.Model, WanVideoModel]),
                CompileArgs.Input("compile_args"),
                io.Float.Input(
                    "error_bound", default=DEFAULT_ERROR_BOUND, min=0.0, max=1.0, step=0.001,
                    optional=True, advanced=True,
                    tooltip="A step that compiled something is run eagerly too; where the relative "
                    "error is larger than this, the model runs eagerly from then on. 0: not "
                    "compared.",
                ),
                io.Combo.Input(
                    "stance", options=list(STANCES), default=STANCES[0],
                    optional=True, advanced=True,
                    tooltip="What a step does that would compile again, as for a resolution that "
                    "`dynamic` does not cover: compile, run that part eagerly, or stop the run.",
                ),
            ],
            outputs=[io.Custom("MODEL,WANVIDEOMODEL").Output("compiled", display_name="MODEL")],
        )  # fmt: skip

    @classmethod
    def execute(
        cls, model, compile_args, error_bound=DEFAULT_ERROR_BOUND, stance=STANCES[0]
    ) -> io.NodeOutput:
        settings = CompileSettings.of(compile_args)
        if isinstance(getattr(model.model, "pipeline", None), dict):
            return io.NodeOutput(_told_to_wrapper(model, settings))
        return io.NodeOutput(compiled_clone(model, settings, error_bound or None, stance))


def compiled_clone(model, settings: CompileSettings, error_bound: float | None, stance: str):
    """A clone whose sampler's calls go through CompiledModel; its model is the same object, and
    ComfyUI's own wrappers are the only way in."""
    clone = model.clone(disable_dynamic=True)
    root = clone.get_model_object("diffusion_model")
    compiled = CompiledModel(root, settings, error_bound, stance)

    def run(executor, x, *args, **kwargs):
        model = executor.class_obj
        root, patches = model.diffusion_model, getattr(model.current_patcher, "patches", None)
        if patches:  # of LoRA nodes before or behind this one
            compiled.report.note(f"{len(patches)} weights have patches (LoRA)")
        comparable = not _wrapped_by_others((*args, *kwargs.values()))
        return compiled.run(root, lambda: executor(x, *args, **kwargs), x.shape, comparable)

    clone.remove_wrappers_with_key(WrappersMP.APPLY_MODEL, KEY)
    clone.add_wrapper_with_key(WrappersMP.APPLY_MODEL, KEY, run)
    clone.set_attachments(ATTACHMENT, compiled)
    return clone


def _wrapped_by_others(values: tuple) -> bool:
    """Whether other nodes wrap the model's steps (caches, say): they may count them."""
    options = [value for value in values if isinstance(value, dict) and "wrappers" in value]
    return any(
        key not in (KEY, KERNELS) and found
        for one in options
        for kind in (WrappersMP.APPLY_MODEL, WrappersMP.DIFFUSION_MODEL)
        for key, found in one["wrappers"].get(kind, {}).items()
    )


def _told_to_wrapper(model, settings: CompileSettings):
    """WanVideoWrapper compiles by itself, by what its model object holds: a shallow copy of that
    is told, so that the loader's output keeps what it had."""
    own = copy.copy(model.model)
    own._modules = dict(model.model._modules)
    own.pipeline = {**model.model.pipeline, "compile_args": settings.to_dict()}
    clone = model.clone()
    clone.model = own
    return clone


NODES = [TorchCompileSpeedSettings, ApplyTorchCompile]
