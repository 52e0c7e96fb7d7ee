"""Symmetries of a network: automorphisms and translations."""
