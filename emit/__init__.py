"""Programs: lowered from schedules, checked, and written in the formats of executors."""
