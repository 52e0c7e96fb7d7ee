"""Schedules as programs held in memory, for executors of this package: no reader's limits, and no file."""

from __future__ import annotations

from emit.compiler.compile import compile_instructions
from emit.compiler.lower import lower, lower_to_instructions
from emit.goal import Goal
from emit.program import Program
from emit.targets import Limits
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError

MOST_RANKS = 512
MOST_SENDS = 400_000  # some minutes of lowering, and 2 GB
_ANY = 1 << 30
UNLIMITED = Limits(
    "a program in memory", steps_per_tb=_ANY, tbs_per_gpu=_ANY, channels=_ANY, tbs_per_channel=_ANY, dep_tb=_ANY,
    offset=_ANY, count=_ANY, nodes=_ANY, children=_ANY, reduce_chain=_ANY,
)  # fmt: skip


def lower_unlimited(algorithm: Algorithm, name: str, protocol: str = "LL") -> tuple[Program, Goal | None]:
    """A program that does what the algorithm's schedule does, and its goal where the name does not say it.

    It is the first layout that ends; none is timed. Raises InputError: too many ranks or sends, or all orders deadlock.
    """
    ranks, sends = algorithm.problem.nranks, len(algorithm.schedule)
    for what, number, most in (("ranks", ranks, MOST_RANKS), ("sends", sends, MOST_SENDS)):
        if number > most:
            raise InputError(f"{name}: {number} {what}; it must be at most {most} to be run from memory")
    ir = lower_to_instructions(algorithm, name, protocol)
    return compile_instructions(ir, limits=UNLIMITED).program, ir.goal


def lower_any(algorithm: Algorithm, name: str) -> tuple[Program, Goal | None]:
    """The program that an executor would get, which takes its schedule's time, or else that of `lower_unlimited`."""
    try:
        return lower(algorithm, name)
    except InputError:
        return lower_unlimited(algorithm, name)
