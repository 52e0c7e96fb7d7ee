"""Of all tests: none takes another one's answers."""

from __future__ import annotations

import os

os.environ["SYNTH_CACHE"] = "none"  # also of the processes that tests start
