"""MSCCL XML, the format of the MSCCL executors' algorithm files."""
