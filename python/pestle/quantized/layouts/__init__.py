"""The layouts that Pestle has, and which of them each format of files is."""

from __future__ import annotations

from ..layout import register_layout_class
from .blocks import MXFP4Layout, TensorCoreMXFP8Layout, TensorCoreNVFP4Layout
from .fp8 import FP8BlockLayout, FP8RowLayout, TensorCoreFP8Layout
from .int4 import AsymW4A8Int8Layout, INT4Layout, TensorCoreConvRotW4A4Layout
from .int8 import INT8GroupLayout, TensorWiseINT8Layout
from .offline import TensorCoreAWQW4A16Layout, TensorCoreSVDQuantW4A4Layout

LAYOUTS = (
    TensorCoreFP8Layout,
    FP8RowLayout,
    FP8BlockLayout,
    TensorCoreNVFP4Layout,
    TensorCoreMXFP8Layout,
    MXFP4Layout,
    TensorWiseINT8Layout,
    INT8GroupLayout,
    INT4Layout,
    AsymW4A8Int8Layout,
    TensorCoreConvRotW4A4Layout,
    TensorCoreSVDQuantW4A4Layout,
    TensorCoreAWQW4A16Layout,
)

for _layout in LAYOUTS:
    register_layout_class(_layout.__name__, _layout)

__all__ = [layout.__name__ for layout in LAYOUTS]
