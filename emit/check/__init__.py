"""Check that a program ends for every interleaving, without a race, with the right result.

The check of execution plans (`emit.mscclpp`) shares the files on accesses, clocks and limits.
"""
