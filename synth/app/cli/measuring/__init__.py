"""The commands that run and measure."""
