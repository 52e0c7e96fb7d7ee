"""Replay schedules, and construct an Algorithm only when its replay passes."""
