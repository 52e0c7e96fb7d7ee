"""Calls that the wrapped back end serves: handed straight to it, or made of its messages and its own calls."""
