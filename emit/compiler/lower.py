"""Lower a schedule to Instructions: place the chunks in memory, and order the instructions that move them.

The chunks that a rank sends in a step of the schedule are read before the chunks that arrive in that step are written.
Apart from that, the order is the schedule's order in time.
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
from emit.images import images_of
from emit.program import COLLECTIVES, CUSTOM, Gpu, Program
from emit.targets import USUAL_LIMITS, Limits
from emit.timing.predict import Predictor
from synth.model.collective import Collective, Floats, Ints
from synth.model.collective import named as named_collective
from synth.model.common_chunk import CommonChunk, common_chunk, cut_blocks
from synth.model.deadline import checking_deadline
from synth.model.pairs import ordinary
from synth.model.problem import LARGEST, SMALLEST, Problem
from synth.model.registry import BUFFER as BUFFER_UNIT
from synth.model.registry import PAIR
from synth.model.schedule import Schedule
from synth.symmetry.invariance import image_of_chunks, invariant_under
from synth.symmetry.quotient import expand, whole_problem
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError
from topologies.symmetry.translations import Translations, digits, translate_links
from topologies.topology import Topology

_IMAGES_FROM = 16  # Ranks from which on building few of them saves more than the search for translations costs.
_LEAST_US_PER_BYTE = 1e-12  # assumed for an algorithm that moves nothing


class Lowering:
    """The lowering of an algorithm for one target, which shares its work between programs for several ranges of sizes.

    Attributes:
        algorithm: The algorithm.
        common: Cells of its chunks.
        goal: The goal, if the collective's name does not define it.
        compiler: Compiler for programs on any number of channels.
        translations: Translations of the programs; () if these have the threadblocks of all ranks.
        narrow: Makes a compiler for programs on as few channels as possible.
        first: Time (of `synth.model.deadline.now`) when the first program existed, even if it was not the best; inf:
            never.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        name: str,
        limits: Limits = USUAL_LIMITS,
        *,
        inplace: bool | None = None,
        common: CommonChunk | None = None,
        by_images: bool = False,
    ) -> None:
        """Lower the algorithm to instructions.

        Args:
            algorithm: The algorithm.
            name: Name of the programs.
            limits: Limits that programs keep.
            inplace: Form of the programs, as in `lower_to_instructions`.
            common: Cells of the chunks, as in `lower_to_instructions`.
            by_images: Whether programs may have translations, as in `lower_to_instructions`.

        Raises:
            InputError: A rank has more steps than a file of the target can hold; or as `lower_to_instructions` raises
                it.
        """
        problem, schedule = algorithm.problem, algorithm.schedule
        net = problem.network
        is_whole = problem.quotient is None  # The sends of a quotient are not those of a few ranks.
        large = is_whole and 2 * len(schedule) >= TUNING.unfused_from and ordinary(net, schedule.link)
        if large:  # Refuse it before so many instructions are built.
            ends = (np.bincount(side[schedule.link], minlength=net.nranks) for side in (net.src, net.dst))
            most_steps = int(np.maximum(*ends).max())  # A receive and a send may be one step.
            if most_steps > limits.nodes:
                raise InputError(
                    f"{name}: a rank has {most_steps} steps; {limits.name} takes at most {limits.nodes} {limits.node};"
                    " use fewer chunks (--chunks)"
                )
        ir = lower_to_instructions(algorithm, name, inplace=inplace, common=common, by_images=by_images)
        self.common = common or common_chunk(problem.collective)
        self.algorithm, self.goal, self.compiler = algorithm, ir.goal, Compiler(ir, limits)
        self.translations = ir.header.translations
        self.narrow = partial(Compiler, ir.copy(), limits, ("more-channels",))
        self.first = math.inf

    def is_of(self, algorithm: Algorithm, common: CommonChunk) -> bool:
        """Return True if this lowering is of that algorithm with those cells."""
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
        """Return the best program for messages of min_bytes to max_bytes.

        Args:
            protocol: Protocol of the program.
            min_bytes: Smallest message, in bytes.
            max_bytes: Largest message, in bytes; 0 for no limit.
            narrow: Whether the program takes as few channels as possible.
            until: Time (of `synth.model.deadline.now`) after which the search ends with the best program so far, or the
                first.

        Raises:
            InputError: Every program exceeds the target's limits or deadlocks.
        """
        problem = self.algorithm.problem
        sizes = _comparison_sizes(self.algorithm, min_bytes, max_bytes)
        timer = _timer(problem.topology, problem.ranks, sizes)
        enough = tuple(cut_time_us(self.algorithm, self.common, size) for size in sizes)
        header = {"protocol": protocol, "min_bytes": min_bytes, "max_bytes": max_bytes}
        compiler = self.narrow() if narrow else self.compiler
        compiled = compiler.best(timer, enough, until, **header)
        self.first = min(self.first, compiled.first)
        return compiled.program


def lower(
    algorithm: Algorithm,
    name: str,
    protocol: str = "Simple",
    *,
    min_bytes: int = 0,
    max_bytes: int = 0,
    limits: Limits = USUAL_LIMITS,
    inplace: bool | None = None,
    common: CommonChunk | None = None,
) -> tuple[Program, Goal | None]:
    """Lower an algorithm to a program for messages of min_bytes to max_bytes.

    Args:
        algorithm: The algorithm.
        name: Name of the program.
        protocol: Protocol of the program.
        min_bytes: Smallest message, in bytes.
        max_bytes: Largest message, in bytes; 0 for no limit.
        limits: Limits that the program keeps.
        inplace: Form of the program, as in `lower_to_instructions`.
        common: Cells of the chunks, as in `lower_to_instructions`.

    Returns:
        The program, and its goal if the collective's name does not define it, else None.

    Raises:
        InputError: More steps than threadblocks and channels can hold, only programs that deadlock, or a form that the
            collective does not have; or as `lower_to_instructions` raises it.
    """
    lowering = Lowering(algorithm, name, limits, inplace=inplace, common=common)
    return lowering.program(protocol, min_bytes=min_bytes, max_bytes=max_bytes), lowering.goal


def _comparison_sizes(algorithm: Algorithm, min_bytes: int, max_bytes: int) -> list[float]:
    """Return message sizes of a range at which programs are compared, the largest first.

    They include the size at which bytes cost the algorithm as much as its latency, and an eighth of that size: below
    it, an algorithm of fewer chunks or steps is faster, so that nobody uses this one.
    """
    low, high = float(max(min_bytes, SMALLEST)), float(max_bytes or LARGEST)
    least_us = algorithm.time_us(SMALLEST)
    us_per_byte = max((algorithm.time_us(LARGEST) - least_us) / (LARGEST - SMALLEST), _LEAST_US_PER_BYTE)
    balanced_bytes = least_us / us_per_byte
    return sorted({high, *(min(max(size, low), high) for size in (balanced_bytes, balanced_bytes / 8))}, reverse=True)


def timer_for(topology: Topology, ranks: Sequence[int], min_bytes: int, max_bytes: int) -> Timer:
    """Return a timer of programs, in µs, at the smallest and then the largest of their message sizes.

    Args:
        topology: The topology.
        ranks: Ranks of the topology that the program uses.
        min_bytes: Smallest message, in bytes.
        max_bytes: Largest message, in bytes; 0 for no limit.
    """
    return _timer(topology, ranks, sorted({float(max(min_bytes, SMALLEST)), float(max_bytes or LARGEST)}))


def _timer(topology: Topology, ranks: Sequence[int], sizes: Sequence[float]) -> Timer:
    """Return a timer of programs, in µs, at these message sizes."""

    def times_us(program: Program, columns: Columns | None = None) -> Iterator[float]:
        """Return the program's times at all sizes, computed one after another."""
        return map(Predictor(program, topology, ranks, columns=columns).time_us, sizes)

    return times_us


def program_collective(problem: Problem) -> str:
    """Return the name of the collective in programs; "custom" if programs have no name for it, or if ranks relay."""
    name = problem.collective.name
    return name if name in COLLECTIVES and problem.collective.kind.by_name and not problem.relays else CUSTOM


def forms(problem: Problem) -> tuple[bool, ...]:
    """Return for each form of a problem's programs whether it is in place, first the form that file formats expect.

    There are two forms, or only False where a program cannot be in place.
    """
    kind = problem.collective.kind
    if not kind.whole or program_collective(problem) == CUSTOM:
        return (False,)
    return bool(kind.inplace), not kind.inplace


def lower_to_instructions(
    algorithm: Algorithm,
    name: str,
    protocol: str = "Simple",
    *,
    inplace: bool | None = None,
    common: CommonChunk | None = None,
    by_images: bool = False,
) -> Instructions:
    """Lower an algorithm's schedule to instructions, with a goal if the collective's name does not define it.

    Args:
        algorithm: The algorithm.
        name: Name of the program.
        protocol: Protocol of the program.
        inplace: Whether input and output are one memory; None: if the file formats expect it for this collective
            (allreduce, allgather, reducescatter).
        common: Cells of the chunks; None for those of `common_chunk`: one cell each if the chunks have one size.
        by_images: Whether the instructions may be those of a few ranks, whose images the others are (`emit.images`).

    Raises:
        InputError: No program can keep the order of sends, sends go through switches that multicast or reduce, the
            collective has no form such as `inplace` says, or the problem is a quotient whose instructions may have no
            images.
    """
    problem, schedule = algorithm.problem, algorithm.schedule
    if not ordinary(problem.network, algorithm.schedule.link):
        raise InputError(f"{name}: sends through switches that multicast or reduce; no program can express them")
    common = common or common_chunk(problem.collective)
    translations = translations_of(algorithm) if by_images else ()
    if translations and not _keeps_cells(problem, common):
        translations = ()
    if problem.quotient is not None:
        if not translations:
            raise InputError(f"{name}: a program of all {problem.nranks} ranks would be too large")
        common = _cells_of_whole(problem, common)
        problem, schedule = expand(problem, schedule)
    collective, name_in_program = common.cells, program_collective(problem)
    has_name = name_in_program != CUSTOM
    if inplace is None:
        inplace = forms(problem)[0]
    if inplace not in forms(problem):
        raise InputError(f"{collective.name}: has no form in place; it must be out of place")
    sends = _Sends(problem, schedule, translations)
    ranks = {rank: _Rank(common, rank, inplace) for rank in checking_deadline(sends.ranks)}
    sizes = [Gpu(*ranks[rank].sizes, 0, ()) for rank in sends.representative.tolist()]
    per_loop = named_chunks_per_loop(collective) if has_name else max(max((g.i_chunks, g.o_chunks)) for g in sizes)
    header = Program(
        name=name,
        collective=name_in_program,
        protocol=protocol,
        nranks=problem.nranks,
        nchunks_per_loop=per_loop,
        inplace=inplace,
        outofplace=not inplace,
        gpus=sizes,
        root=collective.root if has_name else 0,
        translations=translations,
    )
    goal = None if has_name else Goal.from_arrays(problem.nranks, **goal_columns(_stated(collective)))
    ir = Instructions(header, goal)
    return in_time(ir, *_fill(ir, sends, ranks, common.count.tolist()))


def named_chunks_per_loop(cells: Collective) -> int:
    """Return `Program.nchunks_per_loop` of a program whose collective's name says what it does.

    Args:
        cells: The collective with one chunk for each cell of the program.
    """
    if cells.is_one_shot or cells.kind.blocks_at_root:
        return cells.chunks
    return cells.nchunks // cells.nranks if cells.kind.unit == PAIR else cells.nchunks


def _stated(collective: Collective) -> Collective:
    """Return the collective that a goal is derived from: for a direct all-reduce, the named collective."""
    if not collective.is_one_shot:
        return collective
    return named_collective(collective.name, collective.nranks, collective.chunks)


def goal_columns(collective: Collective) -> dict[str, Any]:
    """Return the arguments `initial` and `required` of `Goal.from_arrays` for any pattern, out of place.

    Relays have no buffers.
    """
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
    """The memory cells of one rank's chunks during the lowering.

    Attributes:
        rank: The rank.
        count: Number of cells of each chunk.
        home: First cell of each chunk's present content, by chunk.
        goal: First cell of each chunk's result, by chunk.
        sizes: Cells of the input and the output buffer.
        works_in_input: Whether chunks that are relayed or summed stay in the in-place buffer.
        goal_is_input: Whether results replace the input in place while sums of other ranks still need the input.
        scratch: First scratch cell of each chunk that the rank only relays, by chunk.
    """

    def __init__(self, common: CommonChunk, rank: int, inplace: bool) -> None:
        self.rank, self.count, collective = rank, common.count, common.cells
        first = common.first.tolist()
        pre = collective.pre[:, 0] == rank
        post = collective.post[:, 0] == rank
        cells = dict(zip(collective.pre[pre, 1].tolist(), collective.in_index[pre].tolist(), strict=True))
        input_of_chunk = {c: cells[cell] for c, cell in enumerate(first) if cell in cells}
        input_cells = max(cells.values(), default=-1) + 1
        cells = dict(zip(collective.post[post, 1].tolist(), collective.out_index[post].tolist(), strict=True))
        output_of_chunk = {c: cells[cell] for c, cell in enumerate(first) if cell in cells}
        output_cells = max(cells.values(), default=-1) + 1
        self.home: dict[int, int] = {}
        self.goal: dict[int, int] = {}
        if inplace:
            # In place, a chunk has one cell only, in the buffer that holds all blocks.
            side = BUFFER if collective.kind.whole == "o" else 0
            shared = collective.is_one_shot  # All sums begin with the content of the same cell.
            self.home = dict(input_of_chunk) if shared else {c: side + first[c] for c in input_of_chunk}
            self.goal = dict(output_of_chunk) if shared else {c: side + first[c] for c in output_of_chunk}
            count = collective.chunks if shared else collective.nchunks
            self.sizes = (0, count) if side else (count, 0)
        else:
            self.home = dict(input_of_chunk)
            self.goal = {c: BUFFER + at for c, at in output_of_chunk.items()}
            self.sizes = (input_cells, output_cells)
            kind = collective.kind
            if kind.unit in (BUFFER_UNIT, PAIR) and not kind.in_shares:
                # Readers give every rank both buffers for these collectives.
                full_size = collective.nchunks if kind.rooted else max(self.sizes)
                self.sizes = (full_size, full_size)
        # In a rooted collective, a rank other than the root has no output, and keeps its input.
        self.works_in_input = inplace and not collective.kind.rooted and not collective.is_one_shot
        self.goal_is_input = inplace and collective.is_one_shot
        self.scratch: dict[int, int] = {}

    def place(self, leaves: Mapping[int, int]) -> None:
        """Assign scratch cells to every chunk of `leaves` that the rank only relays.

        Chunks that go to the same rank are adjacent, in the order of chunks, so that they can go as one message.

        Args:
            leaves: The rank to which each chunk is first sent on, by chunk.
        """
        relayed = [c for c in leaves if self.goal_is_input or c not in self.goal]
        at = SCRATCH
        for c in sorted(relayed, key=lambda c: (leaves[c], c)):
            if not (self.works_in_input and c in self.home):
                self.scratch[c] = at
                at += int(self.count[c])

    def target(self, chunk: int) -> int:
        """Return the first cell in which an arriving chunk is put: its final cell, its in-place cell, or scratch."""
        if chunk in self.goal and not self.goal_is_input:
            return self.goal[chunk]
        home = self.home.get(chunk)
        if home is not None and (self.works_in_input or home >= SCRATCH):
            return home
        return self.scratch[chunk]


def translations_of(algorithm: Algorithm) -> Translations:
    """Return the translations by which an algorithm's instructions are images of those of few ranks; () for none."""
    problem = algorithm.problem
    if program_collective(problem) == CUSTOM or problem.nranks < _IMAGES_FROM:
        return ()
    if problem.quotient is not None:
        return problem.quotient.translations
    if not ordinary(problem.network, algorithm.schedule.link):  # Translations carry links, not what switches do.
        return ()
    translations = invariant_under(problem, algorithm.schedule)
    if translations and translations[0][0] == 1 and _sends_neighbours(problem, algorithm.schedule):
        return translations[1:]
    return translations


def _keeps_cells(problem: Problem, common: CommonChunk) -> bool:
    """Return True if the blocks of all ranks are cut into cells in the same way."""
    collective = problem.collective
    parts = collective.chunks // collective.nranks if collective.kind.in_shares else collective.chunks
    return bool((common.count.reshape(-1, parts) == common.count[:parts]).all())


def _cells_of_whole(problem: Problem, common: CommonChunk) -> CommonChunk:
    """Return the cells of a quotient problem's whole, whose blocks are cut like those of the quotient."""
    whole = whole_problem(problem).collective
    if (common.count == 1).all():
        return common_chunk(whole)
    parts = whole.chunks // whole.nranks if whole.kind.in_shares else whole.chunks
    return cut_blocks(whole, np.tile(common.count[:parts], whole.chunks // parts).tolist())


def _sends_neighbours(problem: Problem, schedule: Schedule) -> bool:
    """Return True if neighbouring blocks go over a link in one step, so that they may become one message.

    Translations that move each block by itself would prevent that.
    """
    collective = problem.collective
    parts = collective.chunks // collective.nranks if collective.kind.in_shares else collective.chunks
    block = schedule.chunk // parts
    destinations = collective.nranks if collective.kind.unit == PAIR else 1
    owner, destination = np.divmod(block, destinations)
    sent_at = schedule.link * (schedule.nsteps + 1) + schedule.step
    for own, other in ((owner, destination), (destination, owner)):
        key = (sent_at * (collective.nranks + 1) + other) * (collective.nranks + 1) + own
        if np.isin(key + 1, key).any():
            return True
    return False


class _Sends:
    """The sends of a schedule that leave or reach the ranks for which instructions are built.

    All columns have one entry for each send. Without translations these are all sends and all ranks.

    Attributes:
        translations: Translations that keep the schedule.
        ranks: The ranks for which instructions are built.
        representative: The rank of `ranks` whose image each rank is, int, shape (nranks,).
        schedule: The sends.
        src: Rank that each send leaves.
        dst: Rank that each send reaches.
        leaves: Whether each send leaves one of `ranks`.
        arrives: Whether each send reaches one of `ranks`.
        message: The send that leaves one of `ranks` and whose image each send is.
        arrival_us: Time at which the chunk can be used at the other end, in µs.
    """

    def __init__(self, problem: Problem, schedule: Schedule, translations: Translations) -> None:
        """Choose the sends; without translations all of them."""
        net = problem.network
        self.translations = translations
        every = np.arange(net.nranks)
        images = images_of(translations, net.nranks) if translations else None
        self.representative: Ints = every if images is None else images.representative
        self.ranks: list[int] = np.unique(self.representative).tolist()
        is_own = self.representative == every
        rows = np.flatnonzero(is_own[net.src[schedule.link]] | is_own[net.dst[schedule.link]])
        self.schedule = schedule = schedule.take(rows)
        self.src, self.dst = net.src[schedule.link], net.dst[schedule.link]
        self.leaves, self.arrives = is_own[self.src], is_own[self.dst]
        self.message: Ints = np.arange(len(schedule))
        if images is not None:
            back = [-digit for digit in digits(translations, self.src)]
            chunk = image_of_chunks(problem, translations, schedule.chunk, back)
            link = translate_links(net, translations, schedule.link, back)
            own = np.flatnonzero(self.leaves)
            at = schedule.step * problem.collective.nchunks  # A chunk may cross a link again in a later step.
            key = (at[own] + schedule.chunk[own]) * net.nlinks + schedule.link[own]
            order = np.argsort(key, kind="stable")
            self.message = own[order[np.searchsorted(key[order], (at + chunk) * net.nlinks + link)]]
        # An image has the times of its representative, apart from rounding.
        self.arrival_us: Floats = (schedule.end_us + net.alpha_us[schedule.link])[self.message]


def _fill(
    ir: Instructions, sends: _Sends, ranks: Mapping[int, _Rank], count: list[int]
) -> tuple[list[float], list[int]]:
    """Add the instructions of a schedule step by step.

    Args:
        ir: Instructions, to which the new ones are added.
        sends: The sends of the schedule.
        ranks: Memory cells of each rank for which instructions are built.
        count: Number of cells of each chunk.

    Returns:
        For each instruction the time when it is due, in µs, and its row of the schedule (−1 for a local copy).
    """
    schedule, nranks = sends.schedule, len(sends.representative)
    start, arrival = schedule.start_us[sends.message].tolist(), sends.arrival_us.tolist()
    src, dst = sends.src.tolist(), sends.dst.tolist()
    chunk, adds, message = schedule.chunk.tolist(), schedule.reduces.tolist(), sends.message.tolist()
    nrows = len(schedule)
    leaves: dict[int, dict[int, int]] = {rank: {} for rank in ranks}
    for row in np.flatnonzero(sends.arrives).tolist():  # Chunks that are not sent on come last.
        leaves[dst[row]].setdefault(chunk[row], nranks)
    for row in sorted(np.flatnonzero(sends.leaves).tolist(), key=start.__getitem__, reverse=True):
        if chunk[row] in leaves[src[row]]:
            leaves[src[row]][chunk[row]] = dst[row]
    for number, rank_leaves in leaves.items():
        ranks[number].place(rank_leaves)
    # The sends of a step come before its arrivals; sums that may arrive in any order come when they are due.
    step_of_event = np.concatenate([schedule.step, _last_steps(schedule, src, dst)])
    of_events = np.concatenate([np.zeros(nrows), arrival]), np.arange(2 * nrows) >= nrows, step_of_event
    events = np.lexsort((np.tile(sends.message, 2), *of_events))
    is_built = np.concatenate([sends.leaves, sends.arrives])
    sent = [NONE] * nrows
    due: list[float] = []
    rows: list[int] = []
    for event in checking_deadline(events[is_built[events]].tolist(), every=1024):
        row = event % nrows
        c = chunk[row]
        rows.append(message[row])
        if event < nrows:
            out = dst[row] if sends.translations else NONE
            sent[row] = ir.add(src[row], "s", ranks[src[row]].home[c], NONE, count[c], out=out)
            due.append(start[row])
            continue
        rank = ranks[dst[row]]
        cell, home = rank.target(c), rank.home.get(c)
        if not adds[row] or home is None:
            ir.add(rank.rank, "r", NONE, cell, count[c], sent[message[row]])
        else:
            ir.add(rank.rank, "rrc", home, cell, count[c], sent[message[row]])
        due.append(arrival[row])
        rank.home[c] = cell
    for rank in checking_deadline(ranks.values()):
        for c, cell in rank.goal.items():
            home = rank.home.get(c)
            if home is not None and home != cell:
                ir.add(rank.rank, "cpy", home, cell, count[c])
                due.append(np.inf)
                rows.append(NONE)
    return due, rows


def _last_steps(schedule: Schedule, src: list[int], dst: list[int]) -> Ints:
    """Return for every row of the schedule the last step in which it may arrive.

    It is the row's own step; for a sum it is the step before the chunk next leaves the rank or is replaced there.
    """
    last = schedule.step.copy()
    chunk, step, adds = schedule.chunk.tolist(), schedule.step.tolist(), schedule.reduces.tolist()
    deadlines: dict[tuple[int, int], list[int]] = defaultdict(list)  # by rank and chunk
    for row in np.argsort(schedule.step, kind="stable").tolist():
        deadlines[src[row], chunk[row]].append(step[row] - 1)
        if not adds[row]:
            deadlines[dst[row], chunk[row]].append(step[row] - 1)
    for row in np.flatnonzero(schedule.reduces).tolist():
        last_before = deadlines.get((dst[row], chunk[row]), [])
        at = bisect_left(last_before, step[row])
        last[row] = last_before[at] if at < len(last_before) else schedule.nsteps
    return last
