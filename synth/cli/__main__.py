"""The entry point of `python -m synth.cli`."""

from synth.cli import main

main()
