"""Schedules for all-to-alls whose sizes change at every step: prepared once for a group, planned in microseconds."""
