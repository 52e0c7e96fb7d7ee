"""Executors of programs (nothing here yet: the GPU, the host and torch come with it)."""
