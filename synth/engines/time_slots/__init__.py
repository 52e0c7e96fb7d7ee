"""Exact search in time slots (TE-CCL)."""
