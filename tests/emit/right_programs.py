"""Right programs of many origins: lowered schedules, compiled scripts, hand-built programs and programs from files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from emit.compiler.compile import compile_instructions
from emit.compiler.lower import lower
from emit.goal import Goal
from emit.language import load_scripts
from emit.msccl.format import write_msccl
from emit.msccl.read import read_msccl
from emit.program import Gpu, Program, Step, ThreadBlock
from emit.targets import target_named
from synth.baselines import baseline
from synth.model.problem import make_problem
from tests import EXAMPLES
from tests.emit.small_programs import (
    RIGHT,
    allpairs_allreduce,
    alltoall,
    chain_broadcast,
    direct_gather,
    doubling_allgather,
    ring_allgather,
    ring_allreduce,
)
from topologies.errors import InputError
from topologies.load import load


@dataclass(frozen=True)
class Right:
    """A program that is right.

    Attributes:
        name: Name for messages.
        program: The program.
        goal: The program's goal; None: its collective says it.
        origin: "lowered", "compiled", "hand-built" or "read from a file".
    """

    name: str
    program: Program
    goal: Goal | None
    origin: str


# (topology, collective, group, relays); group None: all ranks.
QUESTIONS: tuple[tuple[str, str, tuple[int, ...] | None, tuple[int, ...]], ...] = (
    ("ring:4", "allgather", None, ()),
    ("hypercube:2", "allreduce", None, ()),
    ("dgx1", "allreduce", (0, 1, 2, 3), ()),
    ("full:4", "alltoall", None, ()),
    ("line:3", "alltoall", None, ()),
    ("star:4", "reducescatter", None, ()),
    ("mesh:2x2", "broadcast", None, ()),
    ("ring:4", "reduce", None, ()),
    ("mesh:2x2", "gather", None, ()),
    ("mesh:2x2", "scatter", None, ()),
    ("line:4", "alltoall", (0, 3), (1, 2)),
    ("line:4", "allreduce", (3, 0), (1, 2)),
    ("ring:5", "allgather", (0, 2, 4), (1, 3)),
    ("dgx1", "allgather", (7, 0, 3), (4,)),
    ("ring:3", "sendrecv", None, ()),
)
PROTOCOLS = ("Simple", "LL", "LL128")
MOST_STEPS = 160  # Programs must be short, since a run holds back one step at a time.


def lowered(most_steps: int = MOST_STEPS) -> Iterator[Right]:
    """Yield every baseline of every question, lowered with each protocol in turn."""
    number = 0
    for spec, collective, group, relays in QUESTIONS:
        problem = make_problem(load(spec), collective, None if group is None else list(group), relays)
        shapes = set()
        for algorithm in baseline(problem):
            shape = (algorithm.engine, algorithm.chunks, algorithm.steps)
            if shape in shapes:
                continue
            shapes.add(shape)
            protocol = PROTOCOLS[number % len(PROTOCOLS)]
            try:
                program, goal = lower(algorithm, "lowered", protocol)
            except InputError:
                continue  # Some orders cannot be lowered; the lowering has tests of its own.
            if program.nsteps <= most_steps:
                number += 1
                yield Right(f"{collective} on {spec} by {algorithm.engine}", program, goal, "lowered")


# Each example with the smallest settings of interest, and the passes that are switched off.
SCRIPTS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("ring.py", ("ranks=4", "instances=2"), ()),
    ("ring.py", ("ranks=3",), ("fuse",)),
    ("allgather.py", ("ranks=4",), ()),
    ("allpairs.py", ("ranks=4",), ()),
    ("allpairs.py", ("ranks=3", "passes=1"), ("prune",)),
    ("alltoall.py", ("nodes=2", "gpus=2"), ()),
    ("alltonext.py", ("nodes=2", "gpus=2"), ()),
    ("halving_doubling.py", ("ranks=4", "instances=2"), ()),
    ("hierarchical.py", ("nodes=2", "gpus=2"), ()),
)


def compiled_scripts() -> Iterator[Right]:
    """Yield the shipped algorithms as compiled programs."""
    folder = EXAMPLES
    for name, settings, off in SCRIPTS:
        ir = load_scripts(folder / name, settings)[0].instructions()
        program = compile_instructions(ir, target_named("msccl").limits, without=off).program
        yield Right(f"{name} {' '.join(settings)}", program, ir.goal, "compiled")


def stacked_reduce(n: int, width: int) -> Program:
    """Build an all-reduce through reused scratch: rank 0 sums the other ranks' inputs and returns the sum."""
    gpus = []
    for r in range(n):
        blocks = []
        if r:
            steps = [Step("s", "i", 0, "s", 0, width), Step("r", "i", 0, "i", 0, width)]
            blocks.append(ThreadBlock(0, 0, 0, steps))
        else:
            for p in range(1, n):
                dep = (p - 2, 1) if p > 1 else (-1, -1)
                steps_of_peer = [
                    Step("r", "s", 0, "s", 0, width, *dep),
                    Step("re", "s", 0, "i", 0, width, has_dep=True),
                    Step("s", "i", 0, "i", 0, width, *((n - 2, 1) if p < n - 1 else (-1, -1))),
                ]
                blocks.append(ThreadBlock(p, p, 0, steps_of_peer))
        gpus.append(Gpu(width, 0, 0 if r else width, blocks))
    return Program("stacked_reduce", "allreduce", "LL", n, width, True, False, gpus)


def hand_built() -> Iterator[Right]:
    """Yield small families, in place and out of place."""
    further_programs = {
        "ring_allgather of 3": ring_allgather(3, "Simple"),
        "ring_allgather of 6": ring_allgather(6),
        "ring_allreduce of 3": ring_allreduce(3, 2, "LL"),
        "ring_allreduce of 5": ring_allreduce(5),
        "allpairs_allreduce of 5": allpairs_allreduce(5),
        "doubling_allgather of 4": doubling_allgather(4),
        "alltoall of 3": alltoall(3, 2, "LL"),
        "stacked_reduce of 4": stacked_reduce(4, 2),
        "stacked_reduce of 3": stacked_reduce(3, 3),
        "broadcast in both forms": replace(chain_broadcast(3, 1), inplace=True),
        "direct_gather of 4": direct_gather(4, 2),
    }
    for name, program in (RIGHT | further_programs).items():
        yield Right(name, program, None, "hand-built")


def read_back(rights: Iterator[Right]) -> Iterator[Right]:
    """Yield the programs after they were written to a file and read."""
    for right in rights:
        target = "executor-nccl" if right.goal is None else "msccl"
        try:
            text = write_msccl(right.program, right.goal, target)
        except InputError:
            continue  # For example, no file can state a program for both forms.
        program = replace(read_msccl(text), root=right.program.root)
        yield Right(f"{right.name}, read", program, right.goal, "read from a file")


@cache
def right_programs() -> tuple[Right, ...]:
    """Return all right programs."""
    programs = [*lowered(), *compiled_scripts(), *hand_built()]
    return (*programs, *read_back(iter(programs[::2])))
