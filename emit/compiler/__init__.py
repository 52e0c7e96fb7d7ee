"""Compile a schedule or a script to a program."""
