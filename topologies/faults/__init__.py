"""Dead and degraded parts."""
