"""Libraries for a whole cluster: its questions, the distinct problems among them, their solution, and the files."""
