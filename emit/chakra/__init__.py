"""Chakra execution traces: a file a rank, as ASTRA-sim loads a custom collective."""
