"""Passes over Instructions, one idea a file: each returns others that do the same, or the same object unchanged."""
