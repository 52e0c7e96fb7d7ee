"""Exact search in the k-synchronous model (SCCL)."""
