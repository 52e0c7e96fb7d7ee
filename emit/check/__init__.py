"""Check that a program ends for every interleaving, without a race, with the right result."""
