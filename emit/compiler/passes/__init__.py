"""Passes over a Draft, one idea a file: each takes a Draft and returns one that does the same, or the same one."""
