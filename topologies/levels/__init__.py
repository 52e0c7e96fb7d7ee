"""Levels of a topology, such as racks, nodes and GPUs."""
