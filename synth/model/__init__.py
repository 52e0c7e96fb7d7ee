"""State questions and their answers: collectives, problems, schedules, user-defined patterns and message sizes."""
