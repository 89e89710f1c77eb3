"""What these tests share with those of the compiled package: cases, and the C ABI as the oracle."""

import sys
from pathlib import Path

_TESTS = Path(__file__).parent.parent
sys.path += [str(_TESTS / "torch"), str(_TESTS / "python")]
