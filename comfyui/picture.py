"""Bars under a node: what a report says, at a glance."""

import numpy
import torch
from comfy_api.latest import ui
from PIL import Image, ImageDraw, ImageFont

WIDTH, ROW, LABEL = 640, 20, 340
PAPER, INK = (24, 27, 33), (214, 218, 224)
PLAIN, STRIKING = (96, 158, 221), (224, 138, 60)
MOST = 60  # rows; more are too small to be read


def bars(title: str, rows: list[tuple[str, float, bool]]) -> torch.Tensor:
    """An image of rows of label, length (the longest fills the row) and whether it strikes."""
    shown = rows[:MOST]
    left = [f"and {len(rows) - MOST} more"] if len(rows) > MOST else []
    image = Image.new("RGB", (WIDTH, ROW * (1 + len(shown) + len(left)) + 8), PAPER)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(12)
    draw.text((8, 4), title, INK, font)
    longest = max((value for _, value, _ in shown), default=0) or 1
    for number, (label, value, strikes) in enumerate(shown, 1):
        top = ROW * number + 4
        draw.text((8, top), label[:56], INK, font)
        end = LABEL + round((WIDTH - LABEL - 8) * value / longest)
        draw.rectangle(
            (LABEL, top, max(end, LABEL + 1), top + ROW - 6), STRIKING if strikes else PLAIN
        )
    for text in left:
        draw.text((8, ROW * (1 + len(shown)) + 4), text, INK, font)
    return torch.from_numpy(numpy.asarray(image).astype("float32") / 255)[None]


def shown(text: str, picture: torch.Tensor, node) -> dict:
    """Both under the node."""
    return ui.PreviewText(text).as_dict() | ui.PreviewImage(picture, cls=node).as_dict()
