"""What the scripts share; nothing here is run by itself, but `sccl_like` by `exact_rows`."""
