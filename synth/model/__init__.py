"""What is asked and what answers: collectives, problems, schedules, patterns, process groups."""
