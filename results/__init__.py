"""Benchmarks: `scripts` make `tables`."""
