"""The back end of torch.distributed."""
