"""The protocol of an executor, and measurements of programs on one, as nccl-tests makes them.

The goal of a collective alone says what its results must be (`count_wrong`); the steps of the program are not read.
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

_MOST_EXECUTORS = 8  # Executors that one process keeps.
# Collectives whose in-place programs cannot serve separate buffers: the output has no room for the input.
_IN_PLACE_OR_NOT = frozenset({"reducescatter"})


@dataclass(frozen=True)
class EmulatedTime:
    """The time of a run on an emulated network, in µs of the network.

    Attributes:
        measured_us: Time by the device's clock until the last block ended.
        due_us: Time of the network's own clock at that end; much less if the device is too slow to emulate this
            network.
    """

    measured_us: float
    due_us: float


class BenchExecutor(Protocol):
    """A program that can be run any number of times. Executors keep this protocol and share no class."""

    @property
    def arrays(self) -> Any:
        """Return the module whose arrays the executor takes without a copy: NumPy or CuPy."""

    @property
    def kernel_us(self) -> float | None:
        """Return the time of the last run in µs by the executor's own clock, or None if it has none."""

    @property
    def emulated(self) -> EmulatedTime | None:
        """Return the times of the last run on an emulated network, or None if no network is emulated."""

    @property
    def recorded(self) -> Recorded | None:
        """Return the begin and end in µs of the steps of the last run, or None if they are not recorded."""

    def at(self, rank: int) -> AbstractContextManager[Any]:
        """Return a context manager within which the rank's buffers must be created; it selects the rank's device."""
        ...

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], *, kind: str = "float", op: str = "sum") -> None:
        """Run the program once; the result is in the outputs afterwards, and the inputs may be overwritten.

        Args:
            inputs: Input of each rank, one-dimensional, of the type `kind`; of bfloat16 as uint16 (`dtypes.TYPES`).
            outputs: Output of each rank; in place the same arrays as the inputs, or one a part of the other. The inputs
                of a program that works only in place are copied if they are apart.
            kind: Data type, by nccl-tests' name.
            op: Reduction, by nccl-tests' name: sum, prod, max, min or avg.

        Raises:
            InputError: Buffers do not fit, or the program stops before its end.
        """
        ...


@dataclass(frozen=True)
class Timing:
    """The measurement of one half of a row: out of place or in place.

    Attributes:
        time_us: Mean time of a run in µs, by the executor's own clock where it has one.
        wrong: Number of wrong elements of the last run.
    """

    time_us: float
    wrong: int


@dataclass(frozen=True)
class BenchRow:
    """The measurements of a program at one size.

    Attributes:
        name: Name of the program.
        size_bytes: Size of the message in bytes.
        count: Number of elements, as nccl-tests counts them.
        kind: Data type.
        op: Reduction.
        root: Root of the collective; -1 if it has none.
        out_of_place: Measurement out of place; None if there is none.
        in_place: Measurement in place; None if there is none.
        factor: busbw / algbw; None if the collective has no such factor.
        reduces: True if the program reduces.
        emulated: Times of the last run on an emulated network.
        recorded: Begin and end of the steps of the last run.
    """

    name: str
    size_bytes: int
    count: int
    kind: str
    op: str
    root: int
    out_of_place: Timing | None
    in_place: Timing | None
    factor: float | None
    reduces: bool
    emulated: EmulatedTime | None = None
    recorded: Recorded | None = None

    def algbw(self, timing: Timing) -> float:
        """Return the algorithm bandwidth in GB/s (10⁹ bytes/s); 0 for a time of 0."""
        return self.size_bytes / timing.time_us / 1e3 if timing.time_us else 0.0

    def busbw(self, timing: Timing) -> float:
        """Return the bus bandwidth in GB/s (10⁹ bytes/s); that of the algorithm if the collective has no factor."""
        return self.algbw(timing) * (self.factor if self.factor is not None else 1.0)

    @property
    def wrong(self) -> int:
        """Return the number of wrong elements, out of place and in place."""
        return sum(timing.wrong for timing in (self.out_of_place, self.in_place) if timing is not None)


@dataclass(frozen=True)
class Settings:
    """The settings of a measurement.

    Attributes:
        kind: Data type.
        op: Reduction.
        iterations: Number of runs that count.
        warmup: Number of runs before them that do not count.
        seed: Seed of the input data.
    """

    kind: str = "float"
    op: str = "sum"
    iterations: int = 5
    warmup: int = 1
    seed: int = 0


class BenchAlgorithm(Protocol):
    """A program to measure."""

    @property
    def name(self) -> str:
        """Return the name of the algorithm."""

    @property
    def program(self) -> Program:
        """Return the program."""

    @property
    def goal(self) -> Goal | None:
        """Return the goal of a custom collective, or None."""

    def communicator(self, topology: Topology) -> tuple[int, ...] | None:
        """Return the topology's rank of each rank of the program; None: the first ranks."""


@dataclass(frozen=True)
class BenchRequest:
    """The subject and the conditions of a measurement.

    Attributes:
        path: File or library of the algorithms; None if they are in none.
        nranks: Number of ranks.
        settings: Settings of the measurement.
        devices: Numbers of GPUs, as `parse_ranks` takes them.
        network: Network to emulate; None: none.
        slower: Factor by which the emulated network is slower than the real one.
        record: True to record when each step of a run begins and ends.
    """

    path: Path | None
    nranks: int
    settings: Settings
    devices: str | None = None
    network: Topology | None = None
    slower: float = 1.0
    record: bool = False


Measure = Callable[[BenchAlgorithm, int], BenchRow]  # It measures an algorithm at a size in bytes.
Session = AbstractContextManager[tuple[Measure, bool]]  # The measuring function, and whether this process prints.


@contextmanager
def in_process(
    request: BenchRequest, make: Callable[[BenchAlgorithm], BenchExecutor]
) -> Iterator[tuple[Measure, bool]]:
    """Yield a function that measures with executors of this process, and True: this process prints.

    Executors hold memory of their device, so only the last `_MOST_EXECUTORS` are kept.

    Args:
        request: The request, of which only the settings are used.
        make: Function that makes the executor of an algorithm; algorithms of equal names share one.
    """
    executors: dict[str, BenchExecutor] = {}

    def measure_algorithm(algorithm: BenchAlgorithm, size_bytes: int) -> BenchRow:
        """Measure an algorithm at a size in bytes with its executor, which is made at the first call and kept.

        Beyond `_MOST_EXECUTORS` the oldest executor is dropped.
        """
        if algorithm.name not in executors:
            executors[algorithm.name] = make(algorithm)
            if len(executors) > _MOST_EXECUTORS:
                del executors[next(iter(executors))]
        return measure(algorithm.program, algorithm.goal, size_bytes, executors[algorithm.name], request.settings)

    yield measure_algorithm, True


def message_sizes(low: int, high: int, factor: float, step: int = 0) -> Iterator[int]:
    """Yield message sizes as nccl-tests does: from `low` to `high` bytes, each times `factor` or plus `step`.

    Args:
        low: First size.
        high: Largest allowed size, which is only yielded if the steps meet it.
        factor: Factor between two sizes, above 1; ignored with a `step`. Sizes are rounded down, so two may be equal.
        step: Bytes between two sizes; 0 for a factor.

    Raises:
        InputError: The range has no end, or `low` is above `high`; raised when the first size is asked for.
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
    program: Program, goal: Goal | None, size_bytes: int, executor: BenchExecutor, settings: Settings = Settings()
) -> BenchRow:
    """Measure a program at one message size on fresh data, out of place and in place where it can.

    Out of place is left out for a reducescatter that works in place only; in place is left out for a program that does
    not work so. Warmup runs come first in each case. The size is rounded down, see `elements_of`; the row has the
    rounded size.

    Args:
        program: The program.
        goal: Goal of a custom collective; None for the one that the collective's name implies.
        size_bytes: Size of the message in bytes, as nccl-tests counts it.
        executor: The executor of this program.
        settings: Settings of the measurement.

    Raises:
        InputError: As for `BenchExecutor.run`; the data type is unknown; or a custom program comes without a goal.
    """
    kind = parse_type(settings.kind)
    layout = Layout.of(program, elements_of(program, size_bytes, kind))
    out_of_place = in_place = None
    if program.outofplace or program.collective not in _IN_PLACE_OR_NOT:
        out_of_place = _measure_side(program, goal, layout, settings, False, executor)
    if program.inplace:
        in_place = _measure_side(program, goal, layout, settings, True, executor)
    row = make_row(program, program.name, layout.elements, settings, out_of_place, in_place, executor.emulated)
    return replace(row, recorded=executor.recorded)


def elements_of(program: Program, size_bytes: int, kind: str) -> int:
    """Return the elements of a block of a message of `size_bytes`, as executors take it.

    For a custom program the number is rounded down to whole chunks, but not to 0. In other collectives chunks that
    trade places have the same position in their blocks, so that their lengths agree. The result is 0 for a size that
    has less than an element a block. `kind` is a key of TYPES.
    """
    elements = size_bytes // TYPES[kind].itemsize // count_blocks(program.collective, program.nranks)
    whole = elements - elements % program.nchunks_per_loop
    return whole if whole and program.collective == "custom" else elements


def count_blocks(collective: str, ranks: int) -> int:
    """Return the number of blocks in a message's size: `ranks` if a block is of or for a single rank, else 1.

    So it is the number of ranks for an allgather or alltoall, and 1 for an allreduce or a custom collective.
    """
    return ranks if find_kind(collective).unit in (SHARE, PAIR) else 1


def make_row(
    program: Program,
    name: str,
    elements: int,
    settings: Settings,
    out_of_place: Timing | None,
    in_place: Timing | None,
    emulated: EmulatedTime | None = None,
) -> BenchRow:
    """Build the row of a program that was measured on blocks of `elements` elements; `name` is the name in the row.

    `out_of_place` and `in_place` are the two measurements, None for one that was not made.
    """
    kind, row_kind = parse_type(settings.kind), find_kind(program.collective)
    message_elements = elements * count_blocks(program.collective, program.nranks)
    return BenchRow(
        name,
        message_elements * TYPES[kind].itemsize,
        elements if program.collective in ("allgather", "reducescatter") else message_elements,
        kind,
        settings.op,
        program.root if row_kind.rooted else -1,
        out_of_place,
        in_place,
        row_kind.bus_factor(program.nranks),
        any("r" in step.op[1:] or step.op == "re" for *_, step in program.steps()),
        emulated,
    )


def _measure_side(
    program: Program, goal: Goal | None, layout: Layout, settings: Settings, inplace: bool, executor: BenchExecutor
) -> Timing:
    """Measure a program out of place or in place: the mean time of a run, and the wrong elements of the last run.

    Before each run the inputs are filled anew, outside of the timed interval. Warmup runs do not count.

    Args:
        program: The program.
        goal: Goal of a custom collective, or None.
        layout: Layout of the buffers.
        settings: Settings of the measurement.
        inplace: Whether input and output share memory.
        executor: The executor of this program.

    Raises:
        InputError: As for `measure`.
    """
    kind, op = parse_type(settings.kind), settings.op
    end_goal = goal_of(program, goal, inplace)
    input_values = [make_input(layout, rank, kind, op, settings.seed) for rank in range(program.nranks)]
    inputs, outputs = _make_buffers(end_goal, layout, kind, inplace, executor)
    fresh = []
    for rank, values in enumerate(input_values):
        with executor.at(rank):
            fresh.append(executor.arrays.asarray(values))
    seconds = 0.0
    for iteration in range(settings.warmup + settings.iterations):
        for rank, (buffer, values) in enumerate(zip(inputs, fresh, strict=True)):
            with executor.at(rank):
                buffer[:] = values
        begin_s = time.perf_counter()
        executor.run(inputs, outputs, kind=kind, op=op)
        own_us = executor.kernel_us
        if iteration >= settings.warmup:
            seconds += time.perf_counter() - begin_s if own_us is None else own_us / 1e6
    if executor.arrays is not np:
        inputs, outputs = ([array.get() for array in side] for side in (inputs, outputs))
    if inplace:
        inputs = outputs = [max(pair, key=len) for pair in zip(inputs, outputs, strict=True)]
    wrong = count_wrong(end_goal, layout, input_values, inputs, outputs, kind, op)
    return Timing(seconds / settings.iterations * 1e6, wrong)


def _make_buffers(
    goal: Goal, layout: Layout, kind: str, inplace: bool, executor: BenchExecutor
) -> tuple[list[Any], list[Any]]:
    """Create an input and an output for every rank, all 0; with `inplace` one is part of the other.

    A rank for which the goal states no common place has two buffers of its own even so.
    """
    inputs, outputs = [], []
    for rank, shift in enumerate(goal.o_in_i):
        with executor.at(rank):
            input_array, output_array = (executor.arrays.zeros(size, dtype=TYPES[kind]) for size in layout.sizes(rank))
        if inplace and shift is not None:
            input_is_part, span = part_in_place(layout, shift, len(input_array), len(output_array))
            input_array, output_array = (
                (output_array[span], output_array) if input_is_part else (input_array, input_array[span])
            )
        inputs.append(input_array)
        outputs.append(output_array)
    return inputs, outputs


def make_input(layout: Layout, rank: int, kind: str, op: str, seed: int = 0) -> Array:
    """Build a rank's input buffer, out of place, of small whole numbers whose reductions are exact in every type.

    The same `seed` and `rank` give the same numbers: 1 to 4, or 1 and 2 for prod.
    """
    rng = np.random.default_rng([seed, rank])
    values = rng.integers(1, 3 if op == "prod" else 5, layout.sizes(rank)[0])
    return narrow(values.astype(np.float32), kind)


def count_wrong(
    goal: Goal,
    layout: Layout,
    original_inputs: Sequence[Array],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    kind: str,
    op: str,
) -> int:
    """Count the elements of all ranks' results that are wrong; averages may differ by a rounding error.

    Args:
        goal: What the results must contain; results may lie in input buffers, too.
        layout: Position of the chunks in the buffers.
        original_inputs: Input of every rank before the run, in memory of its own.
        inputs: Input buffer of every rank after the run.
        outputs: Output buffer of every rank after the run.
        kind: Data type.
        op: Reduction.
    """
    reduce = reducer(op, kind)
    initial = zip(*(c.tolist() for c in goal.initial), strict=True)
    place = {(source, chunk): (rank, index) for rank, buffer, index, source, chunk in initial if buffer == 0}
    wrong = 0
    expected_values: dict[int, Array] = {}
    for rank, buffer, index, number in zip(*(c.tolist() for c in goal.required), strict=True):
        if number not in expected_values:
            parts = []
            for row in range(int(goal.sets.start[number]), int(goal.sets.start[number + 1])):
                r, at = place[int(goal.sets.source[row]), int(goal.sets.chunk[row])]
                parts.append(original_inputs[r][layout.span(at)])
            total = parts[0].copy()
            for part in parts[1:]:
                reduce(total, part, out=total)
            if op == "avg" and len(parts) > 1:
                average(total, kind, layout.program.nranks)
            expected_values[number] = total
        actual, expected = (inputs, outputs)[buffer][rank][layout.span(index)], expected_values[number]
        if actual.shape != expected.shape:
            wrong += max(actual.size, expected.size)
        elif op == "avg":
            close = np.isclose(widen(actual, kind).astype(float), widen(expected, kind).astype(float), rtol=1e-2)
            wrong += int((~close).sum())
        else:
            wrong += int((actual != expected).sum())
    return wrong
