"""The engine `flow`: routes under congestion prices, then a list schedule, for any number of ranks."""
