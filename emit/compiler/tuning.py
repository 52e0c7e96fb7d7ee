"""Set the thresholds of the compiler's search for the best program."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CompilerTuning:
    """The thresholds of the compiler, each with the reason for its value.

    Attributes:
        unfused_from: Instructions from which on nothing is fused or aggregated: a program of that size is near the
            executors' limits on XML nodes, and a pass over it takes seconds.
        fused_below: Instructions up to which fusion is tried if the likeliest variant is fast enough.
        few_variants_from: Instructions from which on variants are tried only if the likeliest one is fast enough, for
            the same reason.
        as_fast: Time over the least time up to which fewer instructions and threadblocks are preferred: smaller
            differences are no more than rounding in the model.
        first_as_fast: Time of a first program over the least time up to which it gets no more channels.
        spread_gain: Factor by which more channels for a connection must improve the product of the times at all sizes,
            because each channel costs an executor a threadblock.
        largest_counts: Weight of the largest message size among the sizes at which programs are compared.
        clock_entries: Entries (int32) of vector clocks up to which the clocks also use what messages imply, so that
            fewer waits are written: 16 MB.
        most_clock_entries: Entries beyond which no clocks are used, and an instruction waits for the last instruction
            of each other threadblock that it must follow: 1 GB.
        scratch_instructions: Instructions up to which scratch is reused; their order takes a bit for each pair.
        scratch_contents: Contents of a rank's scratch up to which it is reused; each is compared with all before it.
    """

    unfused_from: int = 20_000
    fused_below: int = 6_000
    few_variants_from: int = 1_000
    as_fast: float = 1.002
    first_as_fast: float = 1.1
    spread_gain: float = 1.02
    largest_counts: int = 4
    clock_entries: int = 4_000_000
    most_clock_entries: int = 250_000_000
    scratch_instructions: int = 20_000
    scratch_contents: int = 1_000


TUNING = CompilerTuning()
