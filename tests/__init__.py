"""Tests mirror the folders of the code that they test; `tests.oracles` holds executors that share no code with ours."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
