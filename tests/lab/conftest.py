"""These tests run where the wheel is installed (tools/test_lab.sh)."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No test sees the user's history or builds."""
    monkeypatch.setenv("PESTLE_LAB_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def kernel_file(tmp_path):
    """write(text, name) -> the path of a kernel's file."""

    def write(text: str, name: str = "mine.py") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write
