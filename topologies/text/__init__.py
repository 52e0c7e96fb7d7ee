"""Reader and writer of our TOML."""
