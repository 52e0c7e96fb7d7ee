"""Statements of results as plain data, and the tables and texts that people read."""
