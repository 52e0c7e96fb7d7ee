"""Executors of programs and their measurements: on the host, on GPUs, and over torch.distributed."""

from synth import check_packages

check_packages("topologies", "emit")
