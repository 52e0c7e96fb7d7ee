"""The kinds of witnesses, each with the check of what it proves; `window` is in `synth.bounds.windows.limit`."""
