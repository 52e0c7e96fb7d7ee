"""Routing under congestion prices, then scheduling, for any size."""
