"""Parallelism axes on a hierarchical network: the process groups they form, and the programs that the groups run."""
