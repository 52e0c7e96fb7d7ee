"""NCCL's choice in its own model of time: the algorithm, the protocol, the channels, and their time."""
