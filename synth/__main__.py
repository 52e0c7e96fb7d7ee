"""The entry point of `python -m synth`, which is the command `synth`."""

from synth.app.cli import main

main()
