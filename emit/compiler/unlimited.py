"""Lower schedules to programs in memory, for executors of this package: without a reader's limits, without a file."""

from __future__ import annotations

from emit.compiler.compile import compile_instructions
from emit.compiler.lower import lower, lower_to_instructions
from emit.goal import Goal
from emit.program import Program
from emit.targets import Limits
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError

MOST_RANKS = 512
MOST_SENDS = 400_000  # The lowering of so many sends takes some minutes and 2 GB.
_ANY = 1 << 30
UNLIMITED = Limits(
    "a program in memory", steps_per_tb=_ANY, tbs_per_gpu=_ANY, channels=_ANY, tbs_per_channel=_ANY, dep_tb=_ANY,
    offset=_ANY, count=_ANY, nodes=_ANY, children=_ANY, reduce_chain=_ANY,
)  # fmt: skip


def lower_unlimited(algorithm: Algorithm, name: str) -> tuple[Program, Goal | None]:
    """Lower an algorithm, under LL, to the first layout that does not deadlock, without timing it.

    Returns:
        The program, and its goal if the collective's name does not define it, else None.

    Raises:
        InputError: There are more than MOST_RANKS ranks or MOST_SENDS sends, every order deadlocks, or as
            `emit.compiler.lower.lower_to_instructions` raises it.
    """
    ranks, sends = algorithm.problem.nranks, len(algorithm.schedule)
    for quantity, number, most in (("ranks", ranks, MOST_RANKS), ("sends", sends, MOST_SENDS)):
        if number > most:
            raise InputError(f"{name}: {number} {quantity}; it must be at most {most} to be run from memory")
    ir = lower_to_instructions(algorithm, name, "LL")
    return compile_instructions(ir, UNLIMITED).program, ir.goal


def lower_any(algorithm: Algorithm, name: str) -> tuple[Program, Goal | None]:
    """Lower an algorithm, under Simple, to the best program within usual limits, or else as `lower_unlimited` does.

    Returns:
        The program, and its goal if the collective's name does not define it, else None.

    Raises:
        InputError: As `lower_unlimited` raises it.
    """
    try:
        return lower(algorithm, name)
    except InputError:
        return lower_unlimited(algorithm, name)
