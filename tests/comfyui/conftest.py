"""The real ComfyUI of ../shared/comfyui, which tools/test_comfyui.sh unpacks."""

import os
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
COMFYUI = os.environ.get("PESTLE_COMFYUI", "")
NEXT = "tools/test_comfyui.sh unpacks it from ../shared/comfyui and runs these tests"

if not COMFYUI:
    collect_ignore_glob = ["test_*.py"]
    print(f"tests/comfyui is skipped: PESTLE_COMFYUI names no ComfyUI; {NEXT}", file=sys.stderr)


def pytest_addoption(parser):
    told = "photographs for the documentation go into docs/site/pictures"
    parser.addoption("--write-pictures", action="store_true", help=told)


@pytest.fixture(scope="session")
def pestle_bin() -> str:
    return os.environ.get("PESTLE_BIN", str(ROOT / "build/bin/pestle"))


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """A ComfyUI that runs, with comfy-kitchen, for all tests."""
    from models import write
    from server import Server

    base = tmp_path_factory.mktemp("comfyui")
    server = Server(Path(COMFYUI), base)
    try:
        models = base / "models/diffusion_models"
        write("flux", models / "flux.safetensors")
        write("wan", models / "wan.safetensors")
        shutil.copy(models / "flux.safetensors", models / "second.safetensors")
        server.wait()
        yield server
    finally:
        server.stop()


def pytest_configure(config):
    if not COMFYUI:
        return
    if not (Path(COMFYUI) / "comfy" / "sd.py").exists():
        raise pytest.UsageError(f"PESTLE_COMFYUI={COMFYUI} holds no ComfyUI; {NEXT}")
    sys.path.insert(0, COMFYUI)
    sys.path.insert(0, str(Path(__file__).parent))
    from comfy.cli_args import args

    args.cpu = True  # before anything imports comfy.model_management
