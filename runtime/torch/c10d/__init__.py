"""Connect our back end to torch.distributed: its groups, options, Works, hooks and dispatcher; and to torchcomms."""
