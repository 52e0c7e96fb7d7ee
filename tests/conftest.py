"""Random problems for tests in every folder: they stand with those of `synth`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "synth"))
