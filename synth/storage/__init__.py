"""Schedule, problem and proof files."""
