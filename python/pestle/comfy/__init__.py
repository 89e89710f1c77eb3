"""What Pestle's ComfyUI nodes do, without ComfyUI: docs/site/comfyui.md.

settings = CompileSettings.of({"mode": "default", "dynamic": True})
compiled = CompiledModel(model, settings)
y = compiled.run(model, lambda: model(x))
print(compiled.report)
"""

from .artifacts import artifact_path, load_artifacts, save_artifacts
from .blocks import repeated_blocks
from .kernels import MODES, Served, check_mode, serving
from .loading import comfy_state_dict, is_comfys
from .model import DEFAULT_ERROR_BOUND, CompiledModel, relative_error
from .quantising import FORMATS, patterns_of, quantised_state_dict
from .report import Call, CompileReport, Graph
from .scope import STANCES, scoped
from .settings import INPUTS, CompileSettings, Input
from .weights import summary, weight_report

__all__ = [
    "DEFAULT_ERROR_BOUND",
    "FORMATS",
    "INPUTS",
    "MODES",
    "STANCES",
    "Call",
    "CompileReport",
    "CompileSettings",
    "CompiledModel",
    "Graph",
    "Input",
    "Served",
    "artifact_path",
    "check_mode",
    "comfy_state_dict",
    "is_comfys",
    "load_artifacts",
    "patterns_of",
    "quantised_state_dict",
    "relative_error",
    "repeated_blocks",
    "save_artifacts",
    "scoped",
    "serving",
    "summary",
    "weight_report",
]
