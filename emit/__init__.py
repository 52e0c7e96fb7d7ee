"""Programs: lowered from schedules, checked, and written in the formats of executors."""

from synth import check_packages

check_packages("topologies")
