"""HTML pages about algorithms, libraries and placements."""
