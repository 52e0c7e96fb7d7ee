"""Chakra execution traces, one file per rank, as ASTRA-sim loads a custom collective."""
