"""Read, write, check and time MSCCL++ execution plans."""
