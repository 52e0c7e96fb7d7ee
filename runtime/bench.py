"""What an executor is, and programs measured on one as nccl-tests does.

What a collective must leave behind follows from its goal alone (`count_wrong`), without a look at a program's steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from emit.goal import Goal
from emit.program import Program
from emit.timing.trace import Recorded
from runtime.buffers import Layout, goal_of, part_in_place
from runtime.dtypes import TYPES, Array, average, narrow, parse_type, reducer, widen
from synth.model.registry import PAIR, SHARE, find_kind
from topologies.errors import InputError
from topologies.topology import Topology

_KEPT = 8  # executors of one process
# collectives whose programs in place cannot serve buffers that are apart: the output has no room for the input
_IN_PLACE_OR_NOT = frozenset({"reducescatter"})


@dataclass(frozen=True)
class EmulatedTime:
    """What a run on an emulated network took, in µs of the network."""

    measured_us: float  # on the device's clock, until the last block ended
    due_us: float  # the network's own time then; much less where the device was too slow to emulate this network


class Executor(Protocol):
    """A program that is ready to be run, any number of times. Executors keep this protocol and share no class.

    Attributes:
        arrays: the module that makes the buffers that it takes as they are: NumPy or CuPy.
        kernel_us: time of the last run by the executor's own clock; None where it has none.
        emulated: times of the last run where a network is emulated; None otherwise.
        recorded: when the steps of the last run began and ended, where the executor was asked to say; None otherwise.
    """

    @property
    def arrays(self) -> Any: ...
    @property
    def kernel_us(self) -> float | None: ...
    @property
    def emulated(self) -> EmulatedTime | None: ...
    @property
    def recorded(self) -> Recorded | None: ...

    def at(self, rank: int) -> AbstractContextManager[Any]:
        """A context in which the rank's buffers are made."""
        ...

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], *, kind: str = "float", op: str = "sum") -> None:
        """Execute once.

        inputs, outputs: per rank, one-dimensional and of the type `kind`; in place the same arrays, or one a part of
        the other. A program that works in place only gets the inputs copied where they are apart. kind, op: as
        nccl-tests names them. Raises InputError for buffers that do not fit, or a program that stops before its end.
        """
        ...


@dataclass(frozen=True)
class Timing:
    """One side of a row, out of place or in place."""

    time_us: float  # on average, by the executor's own clock where it has one
    wrong: int  # elements, in the last run


@dataclass(frozen=True)
class Row:
    """A measured size; rates in GB/s (10^9 bytes/s)."""

    name: str
    size_bytes: int
    count: int  # elements as nccl-tests counts them
    kind: str
    op: str
    root: int
    out_of_place: Timing | None
    in_place: Timing | None
    factor: float | None  # busbw / algbw, None where the collective has none
    reduces: bool
    emulated: EmulatedTime | None = None  # of the last run, on an emulated network
    recorded: Recorded | None = None  # the last run, step by step

    def algbw(self, timing: Timing) -> float:
        return self.size_bytes / timing.time_us / 1e3 if timing.time_us else 0.0

    def busbw(self, timing: Timing) -> float:
        return self.algbw(timing) * (self.factor if self.factor is not None else 1.0)

    @property
    def wrong(self) -> int:
        """Wrong elements in all."""
        return sum(timing.wrong for timing in (self.out_of_place, self.in_place) if timing is not None)


@dataclass(frozen=True)
class Settings:
    """How a program is measured. kind, op: data type and reduction; iterations count, `warmup` runs before do not."""

    kind: str = "float"
    op: str = "sum"
    iterations: int = 5
    warmup: int = 1
    seed: int = 0


class Algorithm(Protocol):
    """A program to measure. communicator: the topology's rank of each of the program's, None: the first ones."""

    @property
    def name(self) -> str: ...
    @property
    def program(self) -> Program: ...
    @property
    def goal(self) -> Goal | None: ...

    def communicator(self, topology: Topology) -> tuple[int, ...] | None: ...


@dataclass(frozen=True)
class Request:
    """What is measured, and on what."""

    path: Path | None  # the file or library of the algorithms; None: they are in none
    nranks: int
    settings: Settings
    devices: str | None = None  # numbers of GPUs, as `parse_ranks` takes them
    network: Topology | None = None  # to be emulated, `slower` times slower than it is
    slower: float = 1.0
    record: bool = False  # when each step of a run begins and ends


Measure = Callable[[Algorithm, int], Row]  # an algorithm at a size in bytes
Session = AbstractContextManager[tuple[Measure, bool]]  # what measures; whether this process is to print


@contextmanager
def in_process(request: Request, make: Callable[[Algorithm], Executor]) -> Iterator[tuple[Measure, bool]]:
    """Measures with executors of this process, the last _KEPT of which are kept: they hold memory of their device."""
    executors: dict[str, Executor] = {}

    def measure_algorithm(algorithm: Algorithm, size_bytes: int) -> Row:
        if algorithm.name not in executors:
            executors[algorithm.name] = make(algorithm)
            if len(executors) > _KEPT:
                del executors[next(iter(executors))]
        return measure(algorithm.program, algorithm.goal, size_bytes, executors[algorithm.name], request.settings)

    yield measure_algorithm, True


def message_sizes(low: int, high: int, factor: float, step: int = 0) -> Iterator[int]:
    """Message sizes as nccl-tests takes them: from `low` to `high` bytes, times `factor` or plus `step` each.

    Raises InputError for a range that has no end.
    """
    if low < 0 or high < low or (step <= 0 and (factor <= 1 or low < 1)):
        raise InputError(
            f"sizes from {low} to {high} by {step or factor}: without end; it must be 1 <= low <= high and a factor"
            " above 1"
        )
    size = float(low)
    while size <= high:
        yield int(size)
        size = size + step if step > 0 else size * factor


def measure(
    program: Program, goal: Goal | None, size_bytes: int, executor: Executor, settings: Settings = Settings()
) -> Row:
    """Run a program at one message size on fresh data, out of place and in place where it can; warmup first, each.

    The size is rounded down, see `elements_of`. Raises InputError as `Executor.run` does.
    """
    kind = parse_type(settings.kind)
    layout = Layout.of(program, elements_of(program, size_bytes, kind))
    apart = inside = None
    if program.outofplace or program.collective not in _IN_PLACE_OR_NOT:
        apart = _measure_side(program, goal, layout, settings, False, executor)
    if program.inplace:
        inside = _measure_side(program, goal, layout, settings, True, executor)
    row = make_row(program, program.name, layout.elements, settings, apart, inside, executor.emulated)
    return replace(row, recorded=executor.recorded)


def elements_of(program: Program, size_bytes: int, kind: str) -> int:
    """Elements of a block of a message of `size_bytes`, and of a custom program's whole chunks, as executors take it.

    In others all that trades places has one place in its block.
    """
    elements = size_bytes // TYPES[kind].itemsize // count_blocks(program.collective, program.nranks)
    whole = elements - elements % program.nchunks_per_loop
    return whole if whole and program.collective == "custom" else elements


def count_blocks(collective: str, ranks: int) -> int:
    """Blocks that a message's size is made of."""
    return ranks if find_kind(collective).unit in (SHARE, PAIR) else 1


def make_row(
    program: Program,
    name: str,
    elements: int,
    settings: Settings,
    out_of_place: Timing | None,
    in_place: Timing | None,
    emulated: EmulatedTime | None = None,
) -> Row:
    """The row of a program that was measured on blocks of so many elements; name: as the row has it."""
    kind, what = parse_type(settings.kind), find_kind(program.collective)
    whole = elements * count_blocks(program.collective, program.nranks)
    return Row(
        name,
        whole * TYPES[kind].itemsize,
        elements if program.collective in ("allgather", "reducescatter") else whole,
        kind,
        settings.op,
        program.root if what.rooted else -1,
        out_of_place,
        in_place,
        what.bus_factor(program.nranks),
        any("r" in step.op[1:] or step.op == "re" for *_, step in program.steps()),
        emulated,
    )


def _measure_side(
    program: Program, goal: Goal | None, layout: Layout, settings: Settings, inplace: bool, executor: Executor
) -> Timing:
    kind, op = parse_type(settings.kind), settings.op
    wanted = goal_of(program, goal, inplace)
    given = [make_input(layout, rank, kind, op, settings.seed) for rank in range(program.nranks)]
    inputs, outputs = _make_buffers(wanted, layout, kind, inplace, executor)
    fresh = []
    for rank, values in enumerate(given):
        with executor.at(rank):
            fresh.append(executor.arrays.asarray(values))
    seconds = 0.0
    for iteration in range(settings.warmup + settings.iterations):
        for rank, (buffer, values) in enumerate(zip(inputs, fresh, strict=True)):
            with executor.at(rank):
                buffer[:] = values
        begun = time.perf_counter()
        executor.run(inputs, outputs, kind=kind, op=op)
        own_us = executor.kernel_us
        if iteration >= settings.warmup:
            seconds += time.perf_counter() - begun if own_us is None else own_us / 1e6
    if executor.arrays is not np:
        inputs, outputs = ([array.get() for array in side] for side in (inputs, outputs))
    if inplace:
        inputs = outputs = [max(pair, key=len) for pair in zip(inputs, outputs, strict=True)]
    wrong = count_wrong(wanted, layout, given, inputs, outputs, kind, op)
    return Timing(seconds / settings.iterations * 1e6, wrong)


def _make_buffers(
    goal: Goal, layout: Layout, kind: str, inplace: bool, executor: Executor
) -> tuple[list[Any], list[Any]]:
    """Per rank an input and an output, in place one part of the other."""
    inputs, outputs = [], []
    for rank, shift in enumerate(goal.o_in_i):
        with executor.at(rank):
            given, made = (executor.arrays.zeros(size, dtype=TYPES[kind]) for size in layout.sizes(rank))
        if inplace and shift is not None:
            inside, where = part_in_place(layout, shift, len(given), len(made))
            given, made = (made[where], made) if inside else (given, given[where])
        inputs.append(given)
        outputs.append(made)
    return inputs, outputs


def make_input(layout: Layout, rank: int, kind: str, op: str, seed: int = 0) -> Array:
    """An input buffer of small numbers whose reductions are exact in every type."""
    rng = np.random.default_rng([seed, rank])
    values = rng.integers(1, 3 if op == "prod" else 5, layout.sizes(rank)[0])
    return narrow(values.astype(np.float32), kind)


def count_wrong(
    goal: Goal,
    layout: Layout,
    given: Sequence[Array],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    kind: str,
    op: str,
) -> int:
    """How many elements of the results are not what they must be; averages are compared within a rounding.

    given: per rank the input as it was before. inputs, outputs: the buffers afterwards.
    """
    reduce = reducer(op, kind)
    initial = zip(*(c.tolist() for c in goal.initial), strict=True)
    place = {(source, chunk): (rank, index) for rank, buffer, index, source, chunk in initial if buffer == 0}
    wrong = 0
    made: dict[int, Array] = {}
    for rank, buffer, index, number in zip(*(c.tolist() for c in goal.required), strict=True):
        if number not in made:
            parts = []
            for row in range(int(goal.sets.start[number]), int(goal.sets.start[number + 1])):
                r, at = place[int(goal.sets.source[row]), int(goal.sets.chunk[row])]
                parts.append(given[r][layout.span(at)])
            total = parts[0].copy()
            for part in parts[1:]:
                reduce(total, part, out=total)
            if op == "avg" and len(parts) > 1:
                average(total, kind, layout.program.nranks)
            made[number] = total
        has, want = (inputs, outputs)[buffer][rank][layout.span(index)], made[number]
        if has.shape != want.shape:
            wrong += max(has.size, want.size)
        elif op == "avg":
            close = np.isclose(widen(has, kind).astype(float), widen(want, kind).astype(float), rtol=1e-2)
            wrong += int((~close).sum())
        else:
            wrong += int((has != want).sum())
    return wrong
