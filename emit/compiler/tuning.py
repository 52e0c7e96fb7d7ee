"""What the compiler weighs: thresholds of the search for the best program."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CompilerTuning:
    """Thresholds, each with why that value.

    Attributes:
        unfused_from: instructions from which on nothing is fused or aggregated: a program of that size is near the
            executors' limits on XML nodes, and a pass over it takes seconds.
        fused_below: instructions up to which fusion is tried where the likeliest variant is fast enough.
        few_variants_from: instructions from which on variants are tried only where the likeliest one is fast enough,
            for the same reason.
        as_fast: time over the least, up to which fewer instructions and threadblocks are preferred: differences below
            are no more than rounding in the model.
        spread_gain: what more channels a connection must gain at all sizes together, as each costs an executor a
            threadblock.
        largest_counts: how often the largest message size counts among those at which programs are compared.
        clock_entries: entries (int32) of vector clocks up to which also what messages imply is known, so that fewer
            waits are written: 16 MB.
        most_clock_entries: beyond which a wait names every instruction that it must follow, and no clocks are kept:
            1 GB.
        scratch_instructions: up to which scratch is used again; which come before which takes a bit a pair.
        scratch_contents: of a rank, up to which it is; each is compared with all before it.
    """

    unfused_from: int = 20_000
    fused_below: int = 6_000
    few_variants_from: int = 1_000
    as_fast: float = 1.002
    spread_gain: float = 1.02
    largest_counts: int = 4
    clock_entries: int = 4_000_000
    most_clock_entries: int = 250_000_000
    scratch_instructions: int = 20_000
    scratch_contents: int = 1_000


TUNING = CompilerTuning()
