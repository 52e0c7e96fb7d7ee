"""The check of a program."""
