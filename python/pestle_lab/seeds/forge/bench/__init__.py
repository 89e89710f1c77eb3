"""As a package, too: python -m bench.run. The files find each other either way."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
