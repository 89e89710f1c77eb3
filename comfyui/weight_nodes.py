"""Weights: quantise a model, load a file of any layout."""

import logging
from pathlib import Path

import comfy.model_management
import comfy.sd
import comfy.utils
import folder_paths
from comfy_api.latest import io
from pestle.comfy import FORMATS, comfy_state_dict, is_comfys, patterns_of, quantised_state_dict

from .picture import bars, shown

CATEGORY = "Pestle/weights"
RECIPE = "from recipe"
# The folders of diffusion models; ComfyUI's own list leaves GGUF out.
FOLDER = "pestle_diffusion_models"
LOG = logging.getLogger("pestle.comfy")


def files() -> list[str]:
    paths = folder_paths.get_folder_paths("diffusion_models")
    folder_paths.folder_names_and_paths[FOLDER] = (paths, {".safetensors", ".gguf"})
    return folder_paths.get_filename_list(FOLDER)


class _Progress:
    """ComfyUI's bar, of whatever Pestle is at; a stop in ComfyUI stops the work."""

    def __init__(self):
        self.stage, self.bar = None, None

    def __call__(self, stage: str, done: int, total: int) -> None:
        comfy.model_management.throw_exception_if_processing_interrupted()
        if stage != self.stage:
            self.stage, self.bar = stage, comfy.utils.ProgressBar(max(total, 1))
        self.bar.update_absolute(done, max(total, 1))


class PestleQuantiseModel(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="PestleQuantiseModel",
            display_name="Quantise model (Pestle)",
            category=CATEGORY,
            description="The model with quantised weights, as ComfyUI would load it from a file of "
            "`pestle quantize`. The model that comes in stays as it is.",
            search_aliases=["quantize model", "fp8", "nvfp4", "int8"],
            inputs=[
                io.Model.Input("model"),
                io.Combo.Input(
                    "format", options=[*FORMATS, RECIPE], default="fp8",
                    tooltip="Of all weights that the rules below do not name; norms, embeddings "
                    "and the first and last layers stay as they are.",
                ),
                io.Float.Input(
                    "target_error", default=0.0, min=0.0, max=1.0, step=0.001, optional=True,
                    tooltip="Above 0: each weight gets the smallest format whose relative error "
                    "is at most this; `format` does not count then.",
                ),
                io.String.Input(
                    "patterns", default="", multiline=True, optional=True,
                    tooltip="PATTERN=FORMAT, one a line, the first that matches wins: "
                    "*.img_attn.*=int8-row",
                ),
                io.String.Input(
                    "keep", default="", multiline=True, optional=True,
                    tooltip="Patterns of weights that stay as they are, one a line.",
                ),
                io.String.Input(
                    "recipe", default="", optional=True,
                    tooltip="The path of a recipe of `pestle quantize`, for the format "
                    f"“{RECIPE}”.",
                ),
            ],
            outputs=[
                io.Model.Output("quantised", display_name="MODEL"),
                io.String.Output("report", display_name="report"),
            ],
            has_intermediate_output=True,
        )  # fmt: skip

    @classmethod
    def execute(
        cls, model, format, target_error=0.0, patterns="", keep="", recipe=""
    ) -> io.NodeOutput:
        if (format == RECIPE) != bool(recipe.strip()):
            raise ValueError(f"a recipe and the format “{RECIPE}” belong together: give both")
        options = {"layers": patterns_of(patterns), "keep": keep.split()}
        if target_error:
            options["target_error"] = target_error
        chosen = recipe.strip() or (None if target_error else format)
        made, report = quantised_clone(model, chosen, options)
        return io.NodeOutput(made, str(report), ui=shown(_head(report), _errors(report), cls))


def quantised_clone(model, recipe, options: dict):
    """A clone around a model of quantised weights: with the patches (LoRA), options and wrappers
    of `model`, which is untouched."""
    comfy.model_management.unload_model_and_clones(model)  # patched weights are not the model's
    root = model.get_model_object("diffusion_model")
    given = {key: value for key, value in options.items() if value}
    tensors, report = quantised_state_dict(root, recipe, progress=_Progress(), **given)
    loaded = comfy.sd.load_diffusion_model_state_dict(tensors, disable_dynamic=True)
    if loaded is None:
        raise ValueError(f"ComfyUI does not find out what model {type(root).__name__} is")
    clone = model.clone(disable_dynamic=True, model_override=(loaded.model, ({}, {}, {}, set())))
    clone.size = loaded.model_size()
    clone.cached_patcher_init = None  # it would load the float model's file
    return clone, report


def _head(report) -> str:
    before, after = report.bytes_before, report.bytes_after
    part = f", {after / before:.0%}" if before else ""
    count = len(report.quantised)
    head = f"{count} weights: {before / 2**20:,.1f} MiB, now {after / 2**20:,.1f}{part}"
    return "\n".join([head, *report.notes])


def _errors(report):
    """A bar for each layer, the largest error first; those of over twice the median strike."""
    known = [layer for layer in report.quantised if layer.relative_error is not None]
    known.sort(key=lambda layer: -layer.relative_error)
    middle = known[len(known) // 2].relative_error if known else 0.0
    rows = [
        (f"{layer.relative_error:.4f}  {layer.format}  {layer.name}", layer.relative_error,
         layer.relative_error > 2 * middle)
        for layer in known
    ]  # fmt: skip
    return bars("relative error of each layer", rows)


class PestleLoadDiffusionModel(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="PestleLoadDiffusionModel",
            display_name="Load diffusion model (Pestle)",
            category=CATEGORY,
            description="A diffusion model from a file in ComfyUI's layout, in Pestle's plain "
            "layout, or GGUF (decoded to bf16).",
            search_aliases=["unet loader", "gguf"],
            inputs=[io.Combo.Input("name", options=files(), tooltip="In models/diffusion_models.")],
            outputs=[
                io.Model.Output("model", display_name="MODEL"),
                io.String.Output("notes", display_name="notes"),
            ],
        )

    @classmethod
    def execute(cls, name) -> io.NodeOutput:
        path = folder_paths.get_full_path_or_raise("diffusion_models", name)
        if is_comfys(path):
            return io.NodeOutput(comfy.sd.load_diffusion_model(path), "")
        made, notes = load_converted(path)
        made.cached_patcher_init = (_loaded, (path,))
        return io.NodeOutput(made, "\n".join(notes))


def load_converted(path: str, disable_dynamic: bool = False):
    """From a file that ComfyUI's own loader does not read, and what was changed for it."""
    tensors, notes = comfy_state_dict(path, _Progress())
    for note in notes:
        LOG.warning("%s: %s", Path(path).name, note)
    made = comfy.sd.load_diffusion_model_state_dict(tensors, disable_dynamic=disable_dynamic)
    if made is None:
        raise ValueError(f"{Path(path).name}: its tensors are those of no model that ComfyUI knows")
    return made, notes


def _loaded(path: str, disable_dynamic: bool = False):
    return load_converted(path, disable_dynamic)[0]


NODES = [PestleQuantiseModel, PestleLoadDiffusionModel]
