import subprocess
import sys
from pathlib import Path


def test_env_check_runs():
    done = subprocess.run(
        [sys.executable, "-m", "forge_cute_py.env_check"],
        cwd=Path(__file__).parents[1], capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "copy_transpose of 4 x 4" in done.stdout
