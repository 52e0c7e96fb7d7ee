"""Scripts that make the tables: `python -m results.scripts.NAME` writes `results/tables/NAME.md`."""
