"""Levels of a topology, as racks, nodes and GPUs."""
