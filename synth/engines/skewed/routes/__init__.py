"""Plans of all-to-alls on networks whose messages pass through other ranks, and the straight plan."""
