"""Replay of schedules, and the Algorithm that only exists when its replay passed."""
