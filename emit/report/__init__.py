"""One HTML page about algorithms."""
