"""The commands that search: for one group, for several at once, and for reduction programs."""
