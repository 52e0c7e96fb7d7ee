"""Automorphisms and translations of a network."""
