"""Read, write and check schedule, problem and proof files, and keep answers in a cache."""
