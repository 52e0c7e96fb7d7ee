"""The engine `lns`: large neighbourhood search over schedules."""
