"""Lower a schedule to Instructions: place the chunks in memory, and order the instructions that move them.

The chunks that a rank sends in a step of the schedule are read before the chunks that arrive in that step are written.
Apart from that, the order is the schedule's order in time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from emit.columns import Columns
from emit.compiler.compile import Compiler
from emit.compiler.cuts import cut_time_us
from emit.compiler.from_schedule import RankCells, RankSends, add_sends
from emit.compiler.in_time import in_time
from emit.compiler.instances import cut_parts
from emit.compiler.ir import NONE, Instructions
from emit.compiler.passes.liveness import limit_scratch
from emit.compiler.prepared import Lanes
from emit.compiler.search import Timer
from emit.compiler.tuning import TUNING
from emit.goal import Goal
from emit.program import COLLECTIVES, CUSTOM, Gpu, Program
from emit.targets import USUAL_LIMITS, Limits
from emit.timing.predict import Predictor
from synth.model.collective import Collective, Ints
from synth.model.collective import named as named_collective
from synth.model.common_chunk import CommonChunk, common_chunk, cut_blocks
from synth.model.deadline import checking_deadline
from synth.model.pairs import ordinary
from synth.model.problem import LARGEST, SMALLEST, Problem
from synth.model.registry import PAIR
from synth.model.schedule import Schedule
from synth.symmetry.invariance import invariant_under
from synth.symmetry.quotient import expand, whole_problem
from synth.verify.algorithm import Algorithm
from topologies.arrays import ranges, row_entries
from topologies.errors import InputError
from topologies.network import Network
from topologies.symmetry.translations import Translations, least_powers, translate
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
        most_scratch: int | None = None,
    ) -> None:
        """Lower the algorithm to instructions.

        Args:
            algorithm: The algorithm.
            name: Name of the programs.
            limits: Limits that programs keep.
            inplace: Form of the programs, as in `lower_to_instructions`.
            common: Cells of the chunks, as in `lower_to_instructions`.
            by_images: Whether programs may have translations, as in `lower_to_instructions`.
            most_scratch: Scratch chunks of a rank to which programs are limited where possible, even if instructions
                then wait for others; None for no limit.

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
        if most_scratch is not None:
            ir = limit_scratch(ir, most_scratch)
        lanes = lanes_of(net if problem.quotient is None else problem.quotient.whole)
        self.common = common or common_chunk(problem.collective)
        self._instructions, self._make_compiler = ir.copy(), partial(Compiler, limits=limits, lanes=lanes)
        self.algorithm, self.goal, self.compiler = algorithm, ir.goal, self._make_compiler(ir)
        self.translations = ir.header.translations
        self.first, self._slots = math.inf, limits.slots

    def is_of(self, algorithm: Algorithm, common: CommonChunk) -> bool:
        """Return True if this lowering is of the same Algorithm object, with as many cells for each chunk."""
        return self.algorithm is algorithm and np.array_equal(self.common.count, common.count)

    def program(
        self,
        protocol: str = "Simple",
        *,
        min_bytes: int = 0,
        max_bytes: int = 0,
        narrow: bool = False,
        parts: int = 1,
        until: float = math.inf,
    ) -> Program:
        """Return the best program for messages of min_bytes to max_bytes.

        Attribute `first` becomes the time of the first program that was made, if that is earlier.

        Args:
            protocol: Protocol of the program.
            min_bytes: Smallest message, in bytes.
            max_bytes: Largest message, in bytes; 0 for no limit.
            narrow: Whether the program takes as few channels as possible.
            parts: Number of channels over which messages on links without a gap are spread; with more than one, the
                program's chunks are so many times as fine.
            until: Time (of `synth.model.deadline.now`) after which the search ends with the best program so far, or the
                first.

        Raises:
            InputError: Every program exceeds the target's limits or deadlocks.
        """
        problem = self.algorithm.problem
        sizes = _comparison_sizes(self.algorithm, min_bytes, max_bytes)
        timer = _timer(problem.topology, problem.ranks, sizes, self._slots)
        enough = tuple(cut_time_us(self.algorithm, self.common, size) for size in sizes)
        header = {"protocol": protocol, "min_bytes": min_bytes, "max_bytes": max_bytes}
        compiler = self.compiler
        if narrow:
            compiler = self._make_compiler(self._instructions.copy(), without=("more-channels",))
        elif parts > 1:
            compiler = self._make_compiler(self._divided(parts))
        compiled = compiler.best(timer, enough, until, **header)
        self.first = min(self.first, compiled.first)
        return compiled.program

    def _divided(self, parts: int) -> Instructions:
        """Return the instructions with each message on a link without a gap divided into parts on different channels.

        Ranks of a node that a network joins too send each other their messages over the link without a gap. Chunks
        become `parts` times as fine.
        """
        ir, net = self._instructions, self.algorithm.problem.network
        gapless = net.gap_us == 0
        without_gap = set(zip(net.src[gapless].tolist(), net.dst[gapless].tolist(), strict=True))
        parts_of = [1] * len(ir)
        for n, target in enumerate(ir.target):
            if target != NONE:
                receiver = ir.rank[target] if ir.out[n] == NONE else ir.out[n]
                parts_of[n] = parts_of[target] = parts if (ir.rank[n], receiver) in without_gap else 1
        return cut_parts(ir, parts_of, parts)


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
    """Return one to three message sizes in bytes of a range, at which programs are compared, the largest first.

    They are the largest size (LARGEST if max_bytes is 0), the size at which bytes cost the algorithm as much as its
    latency, and an eighth of that size: below it, an algorithm of fewer chunks or steps is faster, so that nobody uses
    this one. The last two are clipped to the range, which begins at SMALLEST or above.
    """
    low, high = float(max(min_bytes, SMALLEST)), float(max_bytes or LARGEST)
    least_us = algorithm.time_us(SMALLEST)
    us_per_byte = max((algorithm.time_us(LARGEST) - least_us) / (LARGEST - SMALLEST), _LEAST_US_PER_BYTE)
    balanced_bytes = least_us / us_per_byte
    return sorted({high, *(min(max(size, low), high) for size in (balanced_bytes, balanced_bytes / 8))}, reverse=True)


def timer_for(topology: Topology, ranks: Sequence[int], min_bytes: int, max_bytes: int) -> Timer:
    """Return a timer of programs, in µs, at the smallest and then the largest of their message sizes.

    There is one size if the two are equal.

    Args:
        topology: The topology.
        ranks: Ranks of the topology that the program uses.
        min_bytes: Smallest message, in bytes; SMALLEST if it is below that.
        max_bytes: Largest message, in bytes; 0 for no limit, which is timed at LARGEST.
    """
    return _timer(topology, ranks, sorted({float(max(min_bytes, SMALLEST)), float(max_bytes or LARGEST)}))


@lru_cache(maxsize=4)
def lanes_of(net: Network) -> Lanes:
    """Return the lane of each pair of ranks that only links with a gap join: a resource that their messages share.

    Of the resources that the pair's link uses, it is the one that most links of such pairs use, and of those the one
    with the smallest number. Keys are (source, destination), local ranks; values are numbers of resources. Pairs whose
    links use no resource are missing; without gaps the result is empty. The results for the last four networks are
    kept.
    """
    if not len(net.gap_us):
        return {}
    pair = net.src.astype(np.int64) * net.nranks + net.dst
    chosen = np.flatnonzero(~np.isin(pair, pair[net.gap_us == 0]) & (np.diff(net.uses_ptr) > 0))
    counts = np.diff(net.uses_ptr)[chosen]
    resource, place = net.uses_idx[row_entries(net.uses_ptr, chosen)], np.repeat(np.arange(len(chosen)), counts)
    users = np.bincount(resource, minlength=net.nresources)
    order = np.lexsort((-resource, users[resource], place))
    ends = zip(net.src[chosen].tolist(), net.dst[chosen].tolist(), strict=True)
    return dict(zip(ends, resource[order[np.cumsum(counts) - 1]].tolist(), strict=True))


def _timer(topology: Topology, ranks: Sequence[int], sizes: Sequence[float], slots: int | None = None) -> Timer:
    """Return a timer of programs, in µs, at these message sizes in bytes, in this order.

    A connection has so many FIFO slots; None for as many as the protocol has.
    """

    def times_us(program: Program, columns: Columns | None = None) -> Iterator[float]:
        """Return an iterator over the program's times in µs at all sizes, each computed when it is asked for."""
        return map(Predictor(program, topology, ranks, columns=columns, fifo_depth=slots).time_us, sizes)

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
    translations = keeping_cells(problem, translations_of(algorithm), common, in_equal_groups=True) if by_images else ()
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
    sends = RankSends(problem, schedule, translations)
    ranks = {rank: RankCells(common, rank, inplace) for rank in checking_deadline(sends.ranks)}
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
    return in_time(ir, *add_sends(ir, sends, ranks, common.count.tolist()))


def named_chunks_per_loop(cells: Collective) -> int:
    """Return `Program.nchunks_per_loop` of a program whose collective's name says what it does.

    It is the number of cells of a block for gather, scatter and a direct all-reduce, of a rank's whole buffer for
    alltoall and its like, and of all blocks for the other collectives.

    Args:
        cells: The collective with one chunk for each cell of the program.
    """
    if cells.is_one_shot or cells.kind.blocks_at_root:
        return cells.chunks
    return cells.nchunks // cells.nranks if cells.kind.unit == PAIR else cells.nchunks


def _stated(collective: Collective) -> Collective:
    """Return the collective that a goal is derived from: the named one for a direct all-reduce, else the argument."""
    if not collective.is_one_shot:
        return collective
    return named_collective(collective.name, collective.nranks, collective.chunks)


def goal_columns(collective: Collective) -> dict[str, Any]:
    """Return the arguments `initial` and `required` of `Goal.from_arrays` for any pattern, out of place.

    The keys are these two names. Each value is a list of columns: rank, buffer, index, source and chunk. A contribution
    to a sum has its holder as source, a plain value its first holder. Relays have no buffers.
    """
    (rank, chunk), (goal_rank, goal_chunk) = collective.pre.T, collective.post.T
    ptr, holders = collective.holders
    # What is no sum comes from its first holder.
    source = np.where(collective.reduces[chunk], rank, holders[ptr[chunk]])
    count = np.where(collective.reduces[goal_chunk], np.diff(ptr)[goal_chunk], 1)
    goal_source = holders[ranges(ptr[goal_chunk], count)]
    goal_rank, out_index, goal_chunk = (np.repeat(x, count) for x in (goal_rank, collective.out_index, goal_chunk))
    return {
        "initial": _goal_rows(rank, "i", collective.in_index, source, chunk),
        "required": _goal_rows(goal_rank, "o", out_index, goal_source, goal_chunk),
    }


def _goal_rows(rank: Ints, buffer: str, index: Ints, source: Ints, chunk: Ints) -> list[list[Any]]:
    """Return rows of a goal as `Goal.from_arrays` takes them: the columns rank, buffer, index, source and chunk."""
    return [rank.tolist(), [buffer] * len(rank), index.tolist(), source.tolist(), chunk.tolist()]


def may_have_images(problem: Problem) -> bool:
    """Return whether programs of a problem may be built for few ranks, whose images the others are.

    That is so for a collective that programs name and at least 16 ranks; whether there are translations is not looked
    at.
    """
    return program_collective(problem) != CUSTOM and problem.nranks >= _IMAGES_FROM


def translations_of(algorithm: Algorithm) -> Translations:
    """Return the translations by which an algorithm's instructions are images of those of few ranks; () for none.

    They are () too if `may_have_images` is False, or if sends go through switches that multicast or reduce. A
    translation by one rank is left out if neighbouring blocks go over a link in one step, because they could not become
    one message.
    """
    problem = algorithm.problem
    if not may_have_images(problem):
        return ()
    if problem.quotient is not None:
        return problem.quotient.translations
    if not ordinary(problem.network, algorithm.schedule.link):  # Translations carry links, not what switches do.
        return ()
    translations = invariant_under(problem, algorithm.schedule)
    if translations and translations[0][0] == 1 and _sends_neighbours(problem, algorithm.schedule):
        return translations[1:]
    return translations


def keeping_cells(
    problem: Problem, translations: Translations, common: CommonChunk, *, in_equal_groups: bool
) -> Translations:
    """Return the translations that carry blocks only to blocks that are cut into as many cells.

    Each translation is replaced by its least power of which that is true, or left out. All blocks of a quotient problem
    are cut alike, so that it keeps its translations, or has none left.

    Args:
        problem: The problem.
        translations: (stride, extent) of translations of its ranks.
        common: Cells of its chunks.
        in_equal_groups: Whether all groups of ranks that a translation moves together must also have as many cells, as
            in programs of few ranks whose images the others are (`emit.images`).
    """
    if not translations:
        return ()
    collective = problem.collective
    parts = collective.chunks // collective.nranks if collective.kind.in_shares else collective.chunks
    rows = common.count.reshape(-1, parts)
    if (rows == rows[0]).all():
        return translations
    if problem.quotient is not None or len(rows) != problem.nranks:
        return ()
    ranks = np.arange(problem.nranks)

    def keeps_cells(edge: tuple[int, int]) -> bool:
        """Return True if a translation maps blocks to equal ones, and groups of ranks are equal if they must be."""
        cells_of_group = rows.reshape(problem.nranks // edge[0], -1).sum(axis=1)
        are_equal = not in_equal_groups or np.ptp(cells_of_group) == 0
        return bool(are_equal) and np.array_equal(rows[translate((edge,), ranks, (1,))], rows)

    return least_powers(translations, keeps_cells)


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
    for own, peer in ((owner, destination), (destination, owner)):
        key = (sent_at * (collective.nranks + 1) + peer) * (collective.nranks + 1) + own
        if np.isin(key + 1, key).any():
            return True
    return False
