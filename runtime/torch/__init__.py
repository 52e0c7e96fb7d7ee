"""Serve calls of torch.distributed as one of its back ends."""
