"""Several process groups that share a network."""
