"""Programs in microseconds."""
