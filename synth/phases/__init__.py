"""A problem as phases that copy only: reversal, split, and what is pruned from their schedules."""
