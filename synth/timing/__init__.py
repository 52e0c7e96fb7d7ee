"""Compute the times of schedules; no other room does."""
