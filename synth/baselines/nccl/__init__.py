"""What NCCL would run, in its own model of time: which algorithm, protocol and channels, and how long that takes."""
