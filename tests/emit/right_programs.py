"""Right programs of many makers: lowered schedules, compiled scripts, hand-built ones, and what files bring back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from emit.compiler.compile import compile_instructions
from emit.compiler.lower import lower
from emit.goal import Goal
from emit.language import load_script
from emit.msccl.format import write_msccl
from emit.msccl.read import read_msccl
from emit.program import Gpu, Program, Step, ThreadBlock
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
    """A program that is right, its goal where its name does not say it, and where it comes from."""

    name: str
    program: Program
    goal: Goal | None
    origin: str  # lowered, compiled, hand-built, read from a file


# topology, collective, group (None: all), relays
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
MOST_STEPS = 160  # what is held back step by step must be short


def lowered(most_steps: int = MOST_STEPS) -> Iterator[Right]:
    """Every baseline of every question, in turn for each protocol."""
    number = 0
    for spec, collective, group, relays in QUESTIONS:
        problem = make_problem(load(spec), collective, None if group is None else list(group), relays)
        seen = set()
        for algorithm in baseline(problem):
            shape = (algorithm.engine, algorithm.chunks, algorithm.steps)
            if shape in seen:
                continue
            seen.add(shape)
            protocol = PROTOCOLS[number % len(PROTOCOLS)]
            try:
                program, goal = lower(algorithm, "lowered", protocol)
            except InputError:
                continue  # some orders cannot be lowered; the lowering has tests of its own
            if program.nsteps <= most_steps:
                number += 1
                yield Right(f"{collective} on {spec} by {algorithm.engine}", program, goal, "lowered")


# Each example with the smallest settings that are of interest; some passes are left out in turn.
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
    """The shipped algorithms, as the compiler makes them."""
    folder = EXAMPLES
    for name, settings, off in SCRIPTS:
        ir = load_script(folder / name, settings).instructions()
        program = compile_instructions(ir, "msccl", without=off).program
        yield Right(f"{name} {' '.join(settings)}", program, ir.goal, "compiled")


def stacked_reduce(n: int, width: int) -> Program:
    """All-reduce through scratch that is used again: every rank sums what comes and gives the sum back."""
    gpus = []
    for r in range(n):
        blocks = []
        if r:
            steps = [Step("s", "i", 0, "s", 0, width), Step("r", "i", 0, "i", 0, width)]
            blocks.append(ThreadBlock(0, 0, 0, steps))
        else:
            for p in range(1, n):
                dep = (p - 2, 1) if p > 1 else (-1, -1)
                come = [
                    Step("r", "s", 0, "s", 0, width, *dep),
                    Step("re", "s", 0, "i", 0, width, has_dep=True),
                    Step("s", "i", 0, "i", 0, width, *((n - 2, 1) if p < n - 1 else (-1, -1))),
                ]
                blocks.append(ThreadBlock(p, p, 0, come))
        gpus.append(Gpu(width, 0, 0 if r else width, blocks))
    return Program("stacked_reduce", "allreduce", "LL", n, width, True, False, gpus)


def hand_built() -> Iterator[Right]:
    """Small families, in place and out of place."""
    more = {
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
    for name, program in (RIGHT | more).items():
        yield Right(name, program, None, "hand-built")


def read_back(rights: Iterator[Right]) -> Iterator[Right]:
    """The same programs after a file was written of them and read."""
    for right in rights:
        target = "executor-nccl" if right.goal is None else "msccl"
        try:
            text = write_msccl(right.program, right.goal, target)
        except InputError:
            continue  # two forms in one have no words in a file, for one
        program = replace(read_msccl(text), root=right.program.root)
        yield Right(f"{right.name}, read", program, right.goal, "read from a file")


@cache
def right_programs() -> tuple[Right, ...]:
    """All of them."""
    made = [*lowered(), *compiled_scripts(), *hand_built()]
    return (*made, *read_back(iter(made[::2])))
