"""The algorithms that libraries and papers name, one file each."""
