"""A problem as phases that copy only, and schedules put together again."""
