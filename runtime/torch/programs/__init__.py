"""Run one rank's part of a program on torch tensors, over another back end's messages."""
