"""Running algorithms and measuring them as nccl-tests does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from emit.goal import Goal
from emit.program import ROOTED, Program
from emit.timing.predict import bus_factor
from runtime.buffers import Layout, goal_of
from runtime.dtypes import TYPES, Array, type_named
from runtime.expected import filled, wrong_elements
from runtime.host.executor import HostExecutor
from topologies.errors import InputError

_ALONE = frozenset(
    {"reducescatter"}
)  # collectives whose in-place programs cannot serve buffers that are apart


class Executor(Protocol):
    """What runs a program: called once for each execution.

    It may have more: `kernel_us`, what the last run took by its own clock; `arrays`, the module whose arrays it wants
    (NumPy's otherwise); `at(rank)`, a context in which these are made for a rank.
    """

    def run(
        self, inputs: Sequence[Array], outputs: Sequence[Array], *, kind: str = "float", op: str = "sum"
    ) -> None: ...


@dataclass(frozen=True)
class Half:
    """One side of a row, out of place or in place: µs on average, wrong elements in the last run.

    The µs are the executor's own where it has a clock, else wall time.
    """

    time_us: float
    wrong: int


@dataclass(frozen=True)
class Row:
    """A measured size. `count`: elements as nccl-tests counts them; rates in GB/s (10^9 bytes/s)."""

    name: str
    size_bytes: int
    count: int
    kind: str
    op: str
    root: int
    apart: Half | None
    inplace: Half | None
    factor: float | None
    reduces: bool

    def algbw(self, half: Half) -> float:
        return self.size_bytes / half.time_us / 1e3 if half.time_us else 0.0

    def busbw(self, half: Half) -> float:
        return self.algbw(half) * (self.factor if self.factor is not None else 1.0)

    @property
    def wrong(self) -> int:
        """Wrong elements in all."""
        return sum(half.wrong for half in (self.apart, self.inplace) if half is not None)


def sizes(low: int, high: int, factor: float, step: int = 0) -> Iterator[int]:
    """Message sizes as nccl-tests takes them: from `low` to `high`, times `factor` or plus `step` each.

    Raises InputError for a range that has no end.
    """
    if low < 0 or high < low or (step <= 0 and (factor <= 1 or low < 1)):
        raise InputError(
            f"sizes from {low} to {high} by {step or factor}: would be 1 <= low <= high and a factor above 1"
        )
    size = float(low)
    while size <= high:
        yield int(size)
        size = size + step if step > 0 else size * factor


def measured(
    program: Program,
    goal: Goal | None,
    size_bytes: int,
    kind: str,
    op: str,
    *,
    executor: Executor | None = None,
    iterations: int = 5,
    warmup: int = 1,
    seed: int = 0,
) -> Row:
    """Run a program at one message size on fresh data, out of place and in place where it can.

    The size is rounded down to whole elements of every block.

    Raises:
        InputError: a type or reduction that is not known, or a program that stops before its end.
    """
    kind = type_named(kind)
    blocks = program.nranks if Layout.of(program, 1).chunks < program.nchunks_per_loop else 1
    if program.collective in ("gather", "scatter"):
        blocks = program.nranks
    elements = size_bytes // TYPES[kind].itemsize // blocks
    layout = Layout.of(program, elements)
    runner = executor or HostExecutor(program, goal)
    halves: list[Half | None] = []
    for inplace in (False, True):
        able = program.inplace if inplace else program.outofplace or program.collective not in _ALONE
        halves.append(
            _half(program, goal, layout, kind, op, inplace, runner, iterations, warmup, seed)
            if able
            else None
        )
    return Row(
        program.name,
        elements * blocks * TYPES[kind].itemsize,
        elements if program.collective in ("allgather", "reducescatter") else elements * blocks,
        kind,
        op,
        program.root if program.collective in ROOTED else -1,
        halves[0],
        halves[1],
        bus_factor(program.collective, program.nranks),
        any("r" in step.op[1:] or step.op == "re" for *_, step in program.steps()),
    )


def _half(
    program: Program,
    goal: Goal | None,
    layout: Layout,
    kind: str,
    op: str,
    inplace: bool,
    runner: Executor,
    iterations: int,
    warmup: int,
    seed: int,
) -> Half:
    wanted = goal_of(program, goal, inplace)
    given = [filled(layout, rank, kind, op, seed) for rank in range(program.nranks)]
    arrays: Any = getattr(runner, "arrays", np)
    at: Callable[[int], AbstractContextManager[Any]] = getattr(runner, "at", lambda _: nullcontext())
    inputs, outputs = _buffers(wanted, layout, kind, inplace, arrays, at)
    kept = []
    for rank, values in enumerate(given):
        with at(rank):
            kept.append(arrays.asarray(values))
    took = 0.0
    for turn in range(warmup + iterations):
        for rank, (mine, values) in enumerate(zip(inputs, kept, strict=True)):
            with at(rank):
                mine[:] = values
        begun = time.perf_counter()
        runner.run(inputs, outputs, kind=kind, op=op)
        own_us = getattr(runner, "kernel_us", None)
        if turn >= warmup:
            took += time.perf_counter() - begun if own_us is None else own_us / 1e6
    if arrays is not np:
        back: list[list[Any]] = [list(inputs), list(outputs)]
        inputs, outputs = ([array.get() for array in side] for side in back)
    if inplace:
        both = [max((i, o), key=len) for i, o in zip(inputs, outputs, strict=True)]
        wrong = wrong_elements(wanted, layout, given, both, both, kind, op)
    else:
        wrong = wrong_elements(wanted, layout, given, inputs, outputs, kind, op)
    return Half(took / iterations * 1e6, wrong)


def _buffers(
    goal: Goal,
    layout: Layout,
    kind: str,
    inplace: bool,
    arrays: Any,
    at: Callable[[int], AbstractContextManager[Any]],
) -> tuple[list[Array], list[Array]]:
    """Per rank an input and an output, in place one part of the other."""
    inputs: list[Array] = []
    outputs: list[Array] = []
    for rank, shift in enumerate(goal.o_in_i):
        with at(rank):
            given, made = (arrays.zeros(size, dtype=TYPES[kind]) for size in layout.sizes(rank))
        if inplace and shift is not None:
            first = abs(shift) // layout.chunks * layout.elements
            if shift <= 0 and len(made) >= len(given):
                given = made[first : first + len(given)]
            else:
                made = given[first : first + len(made)]
        inputs.append(given)
        outputs.append(made)
    return inputs, outputs
