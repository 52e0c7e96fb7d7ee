"""The host executor."""
