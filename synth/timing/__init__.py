"""The one place for microseconds."""
