"""Predict how many microseconds a program takes."""
