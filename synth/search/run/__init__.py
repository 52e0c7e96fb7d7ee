"""How a search runs: its stages and protocols, their state, and bounds by windows of time."""
