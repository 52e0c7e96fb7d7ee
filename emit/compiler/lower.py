"""Schedule → Instructions: where chunks lie, and the instructions that move them, in an order that is right.

What a rank sends in a step of the schedule is read before what arrives in that step is written; beyond that the
order is the schedule's in time.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from emit.columns import Columns
from emit.compiler.compile import Compiler
from emit.compiler.cuts import cut_time_us
from emit.compiler.in_time import in_time
from emit.compiler.ir import BUFFER, NONE, SCRATCH, Instructions
from emit.compiler.search import Timer
from emit.compiler.tuning import TUNING
from emit.goal import Goal
from emit.program import COLLECTIVES, CUSTOM, Gpu, Program
from emit.targets import LL_MOST_BYTES, Limits, target_named
from emit.timing.predict import Predictor
from synth.model.collective import Collective, Ints
from synth.model.collective import named as named_collective
from synth.model.common_chunk import CommonChunk, common_chunk
from synth.model.pairs import ordinary
from synth.model.problem import LARGEST, SMALLEST, Problem
from synth.model.registry import BUFFER as BUFFER_UNIT
from synth.model.registry import PAIR
from synth.model.schedule import Schedule
from synth.timing.simulate import timed
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError
from topologies.network import Network
from topologies.topology import Topology

_LEAST_US_PER_BYTE = 1e-12  # of an algorithm that moves nothing


class Lowering:
    """An algorithm on its way to programs for one target: what those for several ranges of sizes share is done once.

    Attributes:
        goal: where the collective's name does not say it.
        first: of `synth.model.deadline.now`, when there was a program, if not yet the best.

    Raises InputError: a rank has more steps than a file of the target.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        name: str,
        target: str = "executor-nccl",
        limits: Limits | None = None,
        *,
        inplace: bool | None = None,
        common: CommonChunk | None = None,
    ) -> None:
        """limits: that programs keep; None: the target's. inplace, common: as in `lower_to_instructions`."""
        problem, schedule = algorithm.problem, algorithm.schedule
        net = problem.network
        limits = target_named(target).limits if limits is None else limits
        large = 2 * len(schedule) >= TUNING.unfused_from and ordinary(net, schedule.link)
        if large:  # refused before so many are written down
            ends = (np.bincount(side[schedule.link], minlength=net.nranks) for side in (net.src, net.dst))
            most = int(np.maximum(*ends).max())  # what comes and goes may be one step
            if most > limits.nodes:
                raise InputError(
                    f"{name}: a rank has {most} steps; {limits.name} takes at most {limits.nodes} {limits.node};"
                    " use fewer chunks (--chunks)"
                )
        ir = lower_to_instructions(algorithm, name, inplace=inplace, common=common)
        self.common = common or common_chunk(problem.collective)
        self.algorithm, self.goal, self.compiler = algorithm, ir.goal, Compiler(ir, limits)
        self.narrow = partial(Compiler, ir.copy(), limits, ("deal",))
        self.first = math.inf

    def is_of(self, algorithm: Algorithm, common: CommonChunk) -> bool:
        """Whether it is of that algorithm in those cells."""
        return self.algorithm is algorithm and np.array_equal(self.common.count, common.count)

    def program(
        self,
        protocol: str = "Simple",
        *,
        min_bytes: int = 0,
        max_bytes: int = 0,
        narrow: bool = False,
        until: float = math.inf,
    ) -> Program:
        """For messages of min_bytes to max_bytes (0: no limit); narrow: on as few channels as hold it.

        until: of `synth.model.deadline.now`, after which the best of what was made is taken, or the first.
        Raises InputError: more than the target holds.
        """
        problem = self.algorithm.problem
        sizes = _telling_sizes(self.algorithm, min_bytes, max_bytes)
        timer = _timer(problem.topology, problem.ranks, sizes)
        enough = tuple(cut_time_us(self.algorithm, self.common, size) for size in sizes)
        header = {"protocol": protocol, "min_bytes": min_bytes, "max_bytes": max_bytes}
        compiler = self.narrow() if narrow else self.compiler
        made = compiler.best(timer, enough, until, **header)
        self.first = min(self.first, made.first)
        return made.program


def lower(
    algorithm: Algorithm,
    name: str,
    protocol: str = "Simple",
    *,
    min_bytes: int = 0,
    max_bytes: int = 0,
    target: str = "executor-nccl",
    limits: Limits | None = None,
    inplace: bool | None = None,
    common: CommonChunk | None = None,
) -> tuple[Program, Goal | None]:
    """A program that does what the algorithm's schedule does, and its goal where the name does not say it.

    limits: that it keeps; None: the target's. inplace, common: as in `lower_to_instructions`. Raises InputError: more
    steps than threadblocks and channels hold; a form that there is none of.
    """
    lowering = Lowering(algorithm, name, target, limits, inplace=inplace, common=common)
    return lowering.program(protocol, min_bytes=min_bytes, max_bytes=max_bytes), lowering.goal


def _telling_sizes(algorithm: Algorithm, min_bytes: int, max_bytes: int) -> list[float]:
    """Sizes in a range at which a program shows what it is worth, the largest first.

    That at which bytes cost the algorithm as much as its latency, and an eighth of it: below, one of fewer chunks or
    steps is faster, so that nobody asks for this one.
    """
    low, high = float(max(min_bytes, SMALLEST)), float(max_bytes or LARGEST)
    least_us = algorithm.time_us(SMALLEST)
    us_per_byte = max((algorithm.time_us(LARGEST) - least_us) / (LARGEST - SMALLEST), _LEAST_US_PER_BYTE)
    even = least_us / us_per_byte
    return sorted({high, *(min(max(size, low), high) for size in (even, even / 8))}, reverse=True)


def timer_for(topology: Topology, ranks: Sequence[int], min_bytes: int, max_bytes: int) -> Timer:
    """Of a program, its times in µs at the ends of the range of sizes that it is for (max_bytes 0: no limit)."""
    return _timer(topology, ranks, sorted({float(max(min_bytes, SMALLEST)), float(max_bytes or LARGEST)}))


def _timer(topology: Topology, ranks: Sequence[int], sizes: Sequence[float]) -> Timer:
    def times_us(program: Program, columns: Columns | None = None) -> Iterator[float]:
        return map(Predictor(program, topology, ranks, columns=columns).time_us, sizes)

    return times_us


def program_collective(problem: Problem) -> str:
    """The collective's name as programs have it; "custom" where they have none, and with relays."""
    name = problem.collective.name
    return name if name in COLLECTIVES and problem.collective.kind.by_name and not problem.relays else CUSTOM


def forms(problem: Problem) -> tuple[bool, ...]:
    """Of each form that its programs have whether it is in place; first as the formats know the collective."""
    kind = problem.collective.kind
    if not kind.whole or program_collective(problem) == CUSTOM:
        return (False,)
    return bool(kind.inplace), not kind.inplace


def lower_to_instructions(
    algorithm: Algorithm,
    name: str,
    protocol: str = "Simple",
    *,
    min_bytes: int = 0,
    max_bytes: int = 0,
    inplace: bool | None = None,
    common: CommonChunk | None = None,
) -> Instructions:
    """The schedule as instructions, with its goal where the collective's name does not say it.

    inplace: whether input and output are one memory; None: where the formats know the collective so (allreduce,
    allgather, reducescatter). common: the cells of its chunks; None: one each, if they are of one size.

    Raises InputError: an order of sends that no program can keep; a collective that has no form in place.
    """
    problem = algorithm.problem
    if not ordinary(problem.network, algorithm.schedule.link):
        raise InputError(f"{name}: sends through switches that multicast or reduce; no program says them")
    common = common or common_chunk(problem.collective)
    collective, coll = common.cells, program_collective(problem)
    named = coll != CUSTOM
    if inplace is None:
        inplace = forms(problem)[0]
    if inplace not in forms(problem):
        raise InputError(f"{collective.name}: has no form in place; it must be out of place")
    ranks = [_Rank(common, rank, inplace) for rank in range(problem.nranks)]
    sizes = [Gpu(*rank.sizes, 0, ()) for rank in ranks]
    per_loop = named_chunks_per_loop(collective) if named else max(max((g.i_chunks, g.o_chunks)) for g in sizes)
    header = Program(
        name=name,
        collective=coll,
        protocol=protocol,
        nranks=problem.nranks,
        nchunks_per_loop=per_loop,
        inplace=inplace,
        outofplace=not inplace,
        gpus=sizes,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        root=collective.root if named else 0,
    )
    goal = None if named else Goal.from_arrays(problem.nranks, **goal_columns(_stated(collective)))
    ir = Instructions(header, goal)
    schedule = algorithm.schedule
    if max_bytes and min_bytes < max_bytes <= LL_MOST_BYTES:  # what is sent at once in small messages is not in large
        schedule = timed(problem, schedule, float(max(min_bytes, SMALLEST)))
    return in_time(ir, *_fill(ir, problem.network, schedule, ranks, common.count.tolist()))


def named_chunks_per_loop(cells: Collective) -> int:
    """Return `Program.nchunks_per_loop` of a program whose collective's name says what it does.

    Args:
        cells: The collective with one chunk for each cell of the program.
    """
    if cells.is_one_shot or cells.kind.blocks_at_root:
        return cells.chunks
    return cells.nchunks // cells.nranks if cells.kind.unit == PAIR else cells.nchunks


def _stated(collective: Collective) -> Collective:
    """What is asked of it, however it is summed up."""
    one = collective
    return named_collective(one.name, one.nranks, one.chunks) if one.is_one_shot else one


def goal_columns(collective: Collective) -> dict[str, Any]:
    """What `Goal.from_arrays` takes as initial and required, for any pattern, out of place; relays have no buffers."""
    first = {c: r for r, c in reversed(collective.pre.tolist())}
    holders = defaultdict(list)
    for rank, chunk in collective.pre.tolist():
        holders[chunk].append(rank)
    initial = [
        (rank, "i", index, rank if collective.reduces[chunk] else first[chunk], chunk)
        for (rank, chunk), index in zip(collective.pre.tolist(), collective.in_index.tolist(), strict=True)
    ]
    required = [
        (rank, "o", index, source, chunk)
        for (rank, chunk), index in zip(collective.post.tolist(), collective.out_index.tolist(), strict=True)
        for source in (holders[chunk] if collective.reduces[chunk] else [first[chunk]])
    ]
    return {
        name: [list(column) for column in zip(*rows, strict=True)]
        for name, rows in (("initial", initial), ("required", required))
    }


class _Rank:
    """Where one rank's chunks lie."""

    def __init__(self, common: CommonChunk, rank: int, inplace: bool) -> None:
        self.rank, self.count, collective = rank, common.count, common.cells
        first = common.first.tolist()
        pre = collective.pre[:, 0] == rank
        post = collective.post[:, 0] == rank
        cells = dict(zip(collective.pre[pre, 1].tolist(), collective.in_index[pre].tolist(), strict=True))
        held = {c: cells[cell] for c, cell in enumerate(first) if cell in cells}
        input_cells = max(cells.values(), default=-1) + 1
        cells = dict(zip(collective.post[post, 1].tolist(), collective.out_index[post].tolist(), strict=True))
        wanted = {c: cells[cell] for c, cell in enumerate(first) if cell in cells}
        output_cells = max(cells.values(), default=-1) + 1
        self.home: dict[int, int] = {}  # the (first) cell where a chunk's content is now
        self.goal: dict[int, int] = {}  # where it is to end
        if inplace:
            # in place a chunk has one cell only, in the buffer that holds all blocks
            side = BUFFER if collective.kind.whole == "o" else 0
            shared = collective.is_one_shot  # all sums begin with what is in the same cell
            self.home = dict(held) if shared else {c: side + first[c] for c in held}
            self.goal = dict(wanted) if shared else {c: side + first[c] for c in wanted}
            count = collective.chunks if shared else collective.nchunks
            self.sizes = (0, count) if side else (count, 0)
        else:
            self.home = dict(held)
            self.goal = {c: BUFFER + at for c, at in wanted.items()}
            self.sizes = (input_cells, output_cells)
            kind = collective.kind
            if kind.unit in (BUFFER_UNIT, PAIR) and not kind.in_shares:
                # these readers give every rank both buffers
                full = collective.nchunks if kind.rooted else max(self.sizes)
                self.sizes = (full, full)
        # whoever is not the root has no output, and keeps its input
        self.works_in_input = inplace and not collective.kind.rooted and not collective.is_one_shot
        self.goal_is_input = inplace and collective.is_one_shot  # others' sums still begin with what is there
        self.scratch: dict[int, int] = {}  # the (first) cell in which a chunk is kept that only comes by

    def place(self, leaves: Mapping[int, int]) -> None:
        """Give every chunk of `leaves` that only comes by a place in scratch.

        leaves: to which rank each is first sent on. What goes to one rank lies side by side, in the order of chunks, so
        that it can go as one message.
        """
        kept = [c for c in leaves if self.goal_is_input or c not in self.goal]
        at = SCRATCH
        for c in sorted(kept, key=lambda c: (leaves[c], c)):
            if not (self.works_in_input and c in self.home):
                self.scratch[c] = at
                at += int(self.count[c])

    def target(self, chunk: int) -> int:
        """The (first) cell in which an arriving chunk is put: its last place, or scratch."""
        if chunk in self.goal and not self.goal_is_input:
            return self.goal[chunk]
        home = self.home.get(chunk)
        if home is not None and (self.works_in_input or home >= SCRATCH):
            return home
        return self.scratch[chunk]


def _fill(
    ir: Instructions, net: Network, schedule: Schedule, ranks: list[_Rank], count: list[int]
) -> tuple[list[float], list[int]]:
    """Append the instructions step by step; for each when it is due, in µs, and its row of the schedule (or −1).

    count: cells of each chunk.
    """
    arrival = (schedule.end_us + net.alpha_us[schedule.link]).tolist()
    start = schedule.start_us.tolist()
    src, dst = net.src[schedule.link].tolist(), net.dst[schedule.link].tolist()
    chunk, adds = schedule.chunk.tolist(), schedule.reduces.tolist()
    nrows = len(schedule)
    leaves: list[dict[int, int]] = [{} for _ in ranks]
    for row in range(nrows):  # what is not sent on comes last
        leaves[dst[row]].setdefault(chunk[row], len(ranks))
    for row in sorted(range(nrows), key=start.__getitem__, reverse=True):
        if chunk[row] in leaves[src[row]]:
            leaves[src[row]][chunk[row]] = dst[row]
    for rank, mine in zip(ranks, leaves, strict=True):
        rank.place(mine)
    # a step's sends before what arrives; sums that may come in any order as they are due
    when = np.concatenate([schedule.step, _last_steps(schedule, src, dst)])
    events = np.lexsort((np.concatenate([np.zeros(nrows), arrival]), np.arange(2 * nrows) >= nrows, when))
    sent = [NONE] * nrows
    due: list[float] = []
    rows: list[int] = []
    for event in events.tolist():
        row = event % nrows
        rank, c = ranks[dst[row]], chunk[row]
        rows.append(row)
        if event < nrows:
            sent[row] = ir.add(src[row], "s", ranks[src[row]].home[c], NONE, count[c])
            due.append(start[row])
            continue
        cell, home = rank.target(c), rank.home.get(c)
        if not adds[row] or home is None:
            ir.add(rank.rank, "r", NONE, cell, count[c], sent[row])
        else:
            ir.add(rank.rank, "rrc", home, cell, count[c], sent[row])
        due.append(arrival[row])
        rank.home[c] = cell
    for rank in ranks:
        for c, cell in rank.goal.items():
            home = rank.home.get(c)
            if home is not None and home != cell:
                ir.add(rank.rank, "cpy", home, cell, count[c])
                due.append(np.inf)
                rows.append(NONE)
    return due, rows


def _last_steps(schedule: Schedule, src: list[int], dst: list[int]) -> Ints:
    """For every row the last step in which it may as well arrive.

    Its own, or, of a sum, that before the next in which its chunk leaves the rank or is replaced there.
    """
    last = schedule.step.copy()
    chunk, step, adds = schedule.chunk.tolist(), schedule.step.tolist(), schedule.reduces.tolist()
    before: dict[tuple[int, int], list[int]] = defaultdict(list)  # by rank and chunk
    for row in np.argsort(schedule.step, kind="stable").tolist():
        before[src[row], chunk[row]].append(step[row] - 1)
        if not adds[row]:
            before[dst[row], chunk[row]].append(step[row] - 1)
    for row in np.flatnonzero(schedule.reduces).tolist():
        mine = before.get((dst[row], chunk[row]), [])
        at = bisect_left(mine, step[row])
        last[row] = mine[at] if at < len(mine) else schedule.nsteps
    return last
