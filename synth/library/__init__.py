"""Libraries for a whole cluster: its questions, the distinct problems among them, who solves them, and what is kept."""
