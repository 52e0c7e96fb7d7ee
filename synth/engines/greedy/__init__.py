"""Constructive search for problems of a few ranks."""
