"""Faults: dead and degraded parts of a topology."""
