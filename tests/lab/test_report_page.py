"""The page of `pestle-lab bench --html`, looked at in Chromium."""

import subprocess
import sys
from pathlib import Path

import pytest
from browser_page import opened

HERE = Path(__file__).parent
KERNEL = """\
# kernel: double/mine
# language = "python"
import torch
def run(out, x):
    torch.mul(x, 2, out=out)
"""
CASES = ("M=4 N=64", "M=64 N=300")


@pytest.fixture(scope="module")
def page_file(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    (folder / "double.problem.py").write_text((HERE / "double.problem.py").read_text())
    (folder / "mine.py").write_text(KERNEL)
    command = [
        sys.executable, "-m", "pestle_lab", "bench", "double/mine", "--seconds", "0.2", "--mode",
        "warm", "--html", "r.html", "--kernels", ".", *(f"--case={case}" for case in CASES),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=600)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return folder / "r.html"


def test_the_report_in_a_browser(page_file):
    address = page_file.as_uri()
    with opened(width=1280, height=900) as seen:
        seen.page.goto(address)
        _shows_what_was_measured(seen.page)
        for width in (1280, 400):
            seen.page.set_viewport_size({"width": width, "height": 900})
            assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
        _is_legible_in_both_schemes(seen.page)
    assert seen.requests == [address]
    assert seen.console_errors == [] and seen.exceptions == []


def _shows_what_was_measured(page) -> None:
    assert page.title() == "pestle-lab: double/mine"
    for case in CASES:
        assert page.get_by_role("cell", name=case).first.is_visible()
    roofline = page.get_by_role("img", name="Roofline")
    frame = roofline.bounding_box()
    assert roofline.locator("polyline").bounding_box()["width"] > frame["width"] / 2
    points = [point.bounding_box() for point in roofline.locator("circle").all()]
    assert len(points) == len(CASES)
    for point in points:
        assert frame["x"] < point["x"] < frame["x"] + frame["width"]
        assert frame["y"] < point["y"] < frame["y"] + frame["height"]
    shapes = page.get_by_role("img", name="Time per shape")
    assert shapes.locator("circle").count() == len(CASES)
    left, right = (dot.bounding_box()["x"] for dot in shapes.locator("circle").all())
    assert right > left, "the larger case takes longer"
    histograms = page.get_by_role("img", name="Histogram of samples")
    assert histograms.count() == len(CASES)
    for histogram in histograms.all():
        heights = [bar.bounding_box()["height"] for bar in histogram.locator("rect").all()]
        assert len(heights) == 40 and max(heights) == pytest.approx(36, abs=1)


def _is_legible_in_both_schemes(page) -> None:
    told = "(s => [s.color, s.backgroundColor])(getComputedStyle(document.body))"
    schemes = {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        schemes[scheme] = [_brightness(color) for color in page.evaluate(told)]
    ink, paper = schemes["light"]
    assert paper - ink > 100
    ink, paper = schemes["dark"]
    assert ink - paper > 100


def _brightness(color: str) -> float:
    parts = color.removeprefix("rgb(").removesuffix(")").split(",")
    return sum(float(part) for part in parts) / 3
