"""Engines: each takes a problem and yields candidates and claims; solvers run in child processes."""
