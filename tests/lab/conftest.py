"""These tests run where the wheel is installed (tools/test_lab.sh)."""

import os
import shutil
from pathlib import Path

import pytest
import ssh_server
import torch

HERE = Path(__file__).parent
collect_ignore = (
    [] if torch.cuda.is_available() else ["test_cheats_cuda.py", "test_ladders_cuda.py"]
)


@pytest.fixture(scope="session")
def measured_once(tmp_path_factory):
    """A file of this machine's ceilings, which take seconds to measure."""
    from pestle_lab import checking
    from pestle_lab.engine import machine

    folder, before = tmp_path_factory.mktemp("ceilings"), os.environ.get("PESTLE_LAB_CACHE")
    os.environ["PESTLE_LAB_CACHE"] = str(folder)
    try:
        for device in {"cpu", checking.default_device()}:
            machine.ceilings(device)
    finally:
        os.environ.pop("PESTLE_LAB_CACHE")
        os.environ.update({"PESTLE_LAB_CACHE": before} if before else {})
    return folder / "ceilings.json"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch, measured_once):
    """No test sees the user's history or builds."""
    cache = tmp_path / "cache"
    cache.mkdir()
    shutil.copy(measured_once, cache)
    monkeypatch.setenv("PESTLE_LAB_CACHE", str(cache))


@pytest.fixture
def kernel_file(tmp_path):
    """write(text, name) -> the path of a kernel's file."""

    def write(text: str, name: str = "mine.py") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A machine to be reached by SSH: this one."""
    if ssh_server.SSHD is None and not os.environ.get("CI"):
        pytest.skip("no sshd: install openssh-server")
    with ssh_server.Server(tmp_path_factory.mktemp("sshd")) as running:
        yield running
