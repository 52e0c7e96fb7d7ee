"""Tables and sentences."""
