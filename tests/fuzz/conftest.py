"""What the fuzzed files are made of stands with the tests of `emit`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "emit"))
