"""Readers of topologies that other people's simulators and synthesizers take as input, one file a format."""
