"""Quotient problems by a network's symmetry, and their check."""
