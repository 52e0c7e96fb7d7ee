"""Axes of parallelism on a hierarchical network: which ranks form which groups, and what these groups run."""
