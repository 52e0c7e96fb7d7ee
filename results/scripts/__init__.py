"""A script makes the table of its name: `python -m results.scripts.NAME`."""
