"""The portfolio of engines and bounds, the frontier and the result."""
