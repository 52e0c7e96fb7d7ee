"""Programs executed and measured: on the host, on GPUs, and over torch.distributed."""
