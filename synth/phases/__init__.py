"""Reduce a problem to phases that copy only: reversal, split, and pruning of their schedules."""
