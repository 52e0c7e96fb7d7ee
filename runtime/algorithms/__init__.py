"""Algorithms for any number of ranks that need no search; examples/ shows those that are scripts of their own."""
