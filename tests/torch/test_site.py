"""README and the pages of the site: every Python snippet runs as it stands, page by page."""

import re
import sys
import types
from pathlib import Path

import pestle
import pytest
import torch
from pestle import _backends, _python_ops

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "site").glob("*.md"))]


def snippets(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_snippets_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # torch.compile looks globals up by the name of their module.
    module = types.ModuleType(f"site_page_{page.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    _backends.load("eager")
    before = dict(_backends.implementations("eager"))
    try:
        for number, snippet in enumerate(snippets(page), 1):
            exec(compile(snippet, f"<{page.name}, snippet {number}>", "exec"), vars(module))
    finally:
        # Others go on with the package's own implementations.
        _backends.implementations("eager").update(before)
        _python_ops.register("eager")
        pestle.set_backend_priority()
    # Those that have no Python of their own.
    assert snippets(page) or page.stem in ("index", "rust", "lab-cheats")


def test_every_function_of_the_package_is_documented():
    assert all(getattr(pestle, name).__doc__ for name in pestle.__all__)


def test_an_implementation_from_outside_is_used():
    x = torch.arange(8, dtype=torch.uint8).reshape(2, 4)
    expected = pestle.swap_nibbles(x, backend="eager")
    before = _backends.implementation("eager", "swap_nibbles")
    calls = []

    @pestle.implements("swap_nibbles", backend="eager")
    def swap_nibbles(x, **options):
        calls.append(x.shape)
        return before.function(x, **options)

    try:
        assert torch.equal(pestle.swap_nibbles(x, backend="eager"), expected)
        assert calls == [(2, 4)]
    finally:
        _backends.implementations("eager")["swap_nibbles"] = before
        _python_ops.register("eager")
    pestle.swap_nibbles(x, backend="eager")
    assert calls == [(2, 4)]
