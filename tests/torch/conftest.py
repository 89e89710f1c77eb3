"""These tests run where the wheel is installed (tools/test_wheel.sh), beside a release build."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "python"))  # pestle_ctypes
