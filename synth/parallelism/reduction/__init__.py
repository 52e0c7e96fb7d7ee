"""Reduction programs: sequences of collectives in a hierarchy that make a reduction (P²)."""
