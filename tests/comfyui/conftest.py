"""The real ComfyUI of ../shared/comfyui, which tools/test_comfyui.sh unpacks."""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
COMFYUI = os.environ.get("PESTLE_COMFYUI", "")
NEXT = "tools/test_comfyui.sh unpacks it from ../shared/comfyui and runs these tests"

if not COMFYUI:
    collect_ignore_glob = ["test_*.py"]
    print(f"tests/comfyui is skipped: PESTLE_COMFYUI names no ComfyUI; {NEXT}", file=sys.stderr)


@pytest.fixture(scope="session")
def pestle_bin() -> str:
    return os.environ.get("PESTLE_BIN", str(ROOT / "build/bin/pestle"))


def pytest_configure(config):
    if not COMFYUI:
        return
    if not (Path(COMFYUI) / "comfy" / "sd.py").exists():
        raise pytest.UsageError(f"PESTLE_COMFYUI={COMFYUI} holds no ComfyUI; {NEXT}")
    sys.path.insert(0, COMFYUI)
    sys.path.insert(0, str(Path(__file__).parent))
    from comfy.cli_args import args

    args.cpu = True  # before anything imports comfy.model_management
