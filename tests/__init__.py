"""Tests stand where what they test stands; executors that share nothing with ours are in `tests.oracles`."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
