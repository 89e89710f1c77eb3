"""What can be asked of torch.compile: the inputs of the settings node, and the dict that it gives.

The dict is what today's readers of WANCOMPILEARGS take apart key by key, so every key is in it.
"""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass, fields, replace

import torch

from ..errors import InvalidArgumentError

MODES = ("default", "max-autotune", "max-autotune-no-cudagraphs", "reduce-overhead")
SPEED = "speed"


@dataclass(frozen=True)
class Input:
    """One input of the settings node."""

    name: str
    kind: str  # combo, bool, int, string
    default: object
    tooltip: str
    options: tuple[str, ...] = ()
    low: int = 0
    high: int = 0
    optional: bool = False


INPUTS = (
    Input("backend", "combo", "inductor",
          "What torch.compile hands the graphs to. inductor writes kernels; cudagraphs replays "
          "eager ones without the cost of launching each.",
          ("inductor", "cudagraphs")),
    Input("fullgraph", "bool", False,
          "A graph break is an error, and the model runs eagerly; the report names its reason."),
    Input("mode", "combo", SPEED,
          "How inductor searches for kernels. speed stands for inductor, "
          "max-autotune-no-cudagraphs, dynamic shapes and no fullgraph, whatever else is set.",
          (*MODES, SPEED)),
    Input("dynamic", "bool", False,
          "Height, width, length and tokens are left open, so that a new resolution costs no "
          "compilation. Off: a compilation for each."),
    Input("dynamo_cache_size_limit", "int", 64,
          "Variants of a function that are compiled before the rest run eagerly. PyTorch 2.6 and "
          "later know it under the name of the recompile limit, which stands above it here.",
          low=0, high=1024),
    Input("compile_transformer_blocks_only", "bool", True,
          "Compiles the blocks that a model repeats, which share one graph: the first step comes "
          "many times sooner. Off: the whole model."),
    Input("reuse_if_similar", "bool", True,
          "Models whose blocks have the same code, shapes and settings share what was compiled."),
    Input("experimental_ptx", "bool", False,
          "Tries out more kernels (coordinate descent and autotuning of inductor), and warms up "
          "in the first step."),
    Input("ptx_fast_math", "bool", True,
          "With experimental_ptx: inductor's use_fast_math, and TF32 for f32 products."),
    Input("warmup_runs", "int", 1,
          "With experimental_ptx: how often a matrix product and then the model itself run before "
          "the first step is given out.",
          low=0, high=5),
    Input("ptx_cache_dir", "string", "",
          "A folder for compiled kernels (inductor's and Triton's) and for the file from which "
          "another process starts warm. Empty: where PyTorch keeps them.",
          optional=True),
    Input("dynamo_recompile_limit", "int", 128,
          "Variants of a function that are compiled before the rest run eagerly.",
          low=0, high=1024, optional=True),
    Input("force_parameter_static_shapes", "bool", False,
          "Takes the shapes of weights for fixed even where activations are dynamic.",
          optional=True),
)  # fmt: skip


@dataclass(frozen=True)
class CompileSettings:
    """The inputs, checked. `mode` is never "speed": speed_preset says that it was asked for."""

    backend: str = "inductor"
    fullgraph: bool = False
    mode: str = "default"
    dynamic: bool | None = False
    dynamo_cache_size_limit: int = 64
    compile_transformer_blocks_only: bool = True
    reuse_if_similar: bool = True
    experimental_ptx: bool = False
    ptx_fast_math: bool = True
    warmup_runs: int = 1
    ptx_cache_dir: str = ""
    dynamo_recompile_limit: int = 128
    force_parameter_static_shapes: bool = False
    allow_unmerged_lora_compile: bool = False
    speed_preset: bool = False

    @classmethod
    def of(cls, values: dict | None = None, **more) -> CompileSettings:
        """From the node's inputs, or from a dict of another node that gives WANCOMPILEARGS; what
        is not in it stands at the seed's defaults."""
        given = {"mode": SPEED} if not values else {}
        given = {**given, **(values or {}), **more}
        known = {field.name for field in fields(cls)}
        made = {name: value for name, value in given.items() if name in known}
        if made.get("mode") is None:
            made["mode"] = "default"
        if made["mode"] == SPEED:
            made |= {
                "backend": "inductor", "fullgraph": False, "dynamic": True,
                "mode": "max-autotune-no-cudagraphs", "speed_preset": True,
            }  # fmt: skip
        settings = cls(**made)
        settings._check()
        return settings

    def _check(self) -> None:
        if self.mode not in MODES:
            raise InvalidArgumentError(
                f'mode is "{self.mode}"; the modes are {", ".join((*MODES, SPEED))}'
            )
        for one in INPUTS:
            value = getattr(self, one.name)
            if one.kind == "int" and not one.low <= value <= one.high:
                raise InvalidArgumentError(
                    f"{one.name} is {value}; it lies between {one.low} and {one.high}"
                )

    def to_dict(self) -> dict:
        """What readers of WANCOMPILEARGS take: every input, and names that older ones know."""
        return {**asdict(self), "compile_transformer_blocks": self.compile_transformer_blocks_only}

    def changed(self, **values) -> CompileSettings:
        return replace(self, **values)

    @property
    def recompile_limit(self) -> int:
        """Of the two limits the one that is written last, as everywhere."""
        return self.dynamo_recompile_limit

    def options(self) -> tuple[dict, tuple[str, ...]]:
        """Inductor's options, those of the mode among them (torch.compile takes no mode beside
        options), and a sentence for each that this PyTorch does not know."""
        if self.backend != "inductor":
            told = self.mode != "default" or self.experimental_ptx
            said = f"backend {self.backend} has no options: mode and experimental_ptx do nothing"
            return {}, (said,) if told else ()
        wanted = dict(_mode_options(self.mode, self.dynamic))
        if self.experimental_ptx:
            wanted |= {
                "triton.cudagraphs": False, "max_autotune": True, "max_autotune_pointwise": True,
                "max_autotune_gemm": True, "coordinate_descent_tuning": True,
            }  # fmt: skip
            if self.ptx_fast_math:
                wanted["use_fast_math"] = True
        known = known_options()
        ignored = tuple(
            f"PyTorch {torch.__version__} has no inductor option {name}: it is left out"
            for name in wanted
            if name not in known
        )
        return {name: value for name, value in wanted.items() if name in known}, ignored

    def key(self) -> tuple:
        """What two compilations have in common that can stand for each other."""
        options, _ = self.options()
        return (
            self.backend, self.fullgraph, self.dynamic, tuple(sorted(options.items())),
            self.recompile_limit, self.force_parameter_static_shapes, self.ptx_cache_dir,
        )  # fmt: skip


def _mode_options(mode: str, dynamic: bool | None) -> dict:
    from torch._inductor import list_mode_options

    return {} if mode == "default" else list_mode_options(mode, dynamic)


@functools.cache
def known_options() -> frozenset[str]:
    from torch._inductor import config

    return frozenset(config.get_config_copy())
