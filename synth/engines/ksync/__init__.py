"""The engine `ksync`: exact search in the k-synchronous model (SCCL)."""
