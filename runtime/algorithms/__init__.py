"""Algorithms for any number of ranks that need no search; examples/ has those that are scripts of their own."""
