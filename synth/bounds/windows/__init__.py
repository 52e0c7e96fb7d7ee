"""Bounds by windows of time: flows over time that cannot end early enough."""
