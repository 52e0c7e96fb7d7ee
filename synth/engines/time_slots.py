"""The engine `milp`: the best schedule by time slots for one message size and number of chunks, and its dual bound.

Copying problems with unlike α and bandwidths as a mixed-integer program over time slots (after TE-CCL): a send is a
variable for the slot in which it starts. Rounding is always in the favour of the program: what is possible in
continuous time is possible in it. So its dual bound holds for every schedule with these chunks, and its best order of
sends, timed by the simulator, is compared with that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from synth.engines.edge_colouring import slotted
from synth.engines.greedy import route
from synth.engines.request import Candidate, Options, Outcome, Progress, Request, SlotClaim
from synth.model.collective import Bools, Floats, Ints
from synth.model.deadline import now
from synth.model.problem import Problem, least_latency
from synth.model.schedule import Schedule
from synth.phases.prune import prune_copies
from synth.phases.split import Phase, phases
from synth.solvers.linear_program import LinearProgram, ProgramBuilder
from synth.timing.simulate import US_PER_BYTE_AT_1_GBS, predict_us
from topologies.arrays import positions

NAME = "milp"


@dataclass(frozen=True)
class Tuning:
    """How large a program may be, and how long it may take.

    Attributes:
        most_ranks: up to which it is tried at all.
        slots: in the time of the best known schedule: more resolve α better, and make the program larger.
        most_variables: sends × slots that solvers finish in seconds.
        chunks: numbers of chunks a block that are tried where none is pinned.
        near: time / bound from which on it is not asked for a size, unless by name.
        share, share_by_name: of the time left, for one program.
    """

    most_ranks: int = 32
    slots: int = 16
    most_variables: int = 4000
    chunks: tuple[int, ...] = (1, 2)
    near: float = 1.01
    share: float = 0.2
    share_by_name: float = 0.9


def accepts(problem: Problem, options: Options) -> str:
    """Few ranks, one phase; unasked only where no one step suits all links."""
    if problem.nranks > Tuning.most_ranks or problem.quotient is not None or problem.allowed is not None:
        return f"milp is for one group of {Tuning.most_ranks} ranks at most; this problem has {problem.nranks}"
    if len(phases(problem)) > 1:
        return f"milp is for collectives that copy, or that sum for one rank each; {problem.collective.name} does both"
    if options.engine != "milp":
        if options.pinned:
            return "a shape is asked for"
        if np.ptp(problem.network.alpha_us) == 0:
            return "where all links have one α, steps say as much"
    return ""


def solve(problem: Problem, request: Request, tuning: Tuning = Tuning()) -> Iterator[Outcome]:
    """A schedule and a claim for every size that answers are shown at and that is not at its bound yet."""
    options, known = request.options, request.known
    asked = options.engine == "milp"
    (phase,) = phases(problem)
    for size in [options.size] if options.size is not None else known.shown_bytes():
        if not asked and known.best_us(size) <= request.bound.at(size)[0] * tuning.near:
            continue
        for chunks in tuning.chunks if options.chunks is None else (options.chunks,):
            yield Progress(f"time slots: {chunks} chunks")
            left_s = request.deadline - now()
            budget_s = left_s * (tuning.share_by_name if asked else tuning.share)
            found = _in_slots(phase, chunks, size, request, budget_s, tuning)
            if found is not None:
                schedule, claim = found
                finer = problem.with_chunks(claim.chunks)
                yield Candidate(finer, slotted(finer, schedule), NAME, size)
                yield claim


def _in_slots(
    phase: Phase, chunks: int, size: int, request: Request, budget_s: float, tuning: Tuning
) -> tuple[Schedule, SlotClaim] | None:
    """The best schedule of the asked problem (by way of its phase) that is found, and what is proved of all.

    None where the program is too large, or the solver failed or had no time.
    """
    copying = phase.apply(chunks)
    cells = copying.network.nlinks * copying.collective.nchunks * tuning.slots
    if cells > 10 * tuning.most_variables or budget_s <= 0.05:
        return None
    known = min(
        (route.solve(copying, size, depth) for depth in (0.0, 0.5, 1.0)), key=lambda s: predict_us(copying, s, size)
    )
    ceiling_us = predict_us(copying, known, size)
    if ceiling_us <= 0:  # nothing is sent
        return None
    model = slot_model(copying, size, ceiling_us, tuning.slots, tuning.most_variables)
    if model is None:
        return None
    until = now() + budget_s * 1.5 + 2
    result = request.workers.answer(until, "milp", model.program, budget_s, request.options.seed)
    if result is None:
        return None
    bound_us = ceiling_us  # where nothing beats the schedule that is known
    if result.status != "infeasible":
        bound_us = min(result.dual_bound, ceiling_us)
    if result.solution is not None:
        found = read_schedule(copying, model, np.flatnonzero(result.solution.values[:-1] > 0.5))
        if predict_us(copying, found, size) < ceiling_us:
            known = found
    claim = SlotClaim(size, phase.asked_chunks(chunks), bound_us, result.solver)
    return phase.invert(chunks, known), claim


@dataclass(frozen=True)
class SlotModel:
    """A program, and what its variables mean: one a send, and the time at which all is done after them.

    sends: shape (n, 3), rows (chunk, link, slot) of the program's binary variables 0..n-1.
    """

    program: LinearProgram
    sends: Ints


def slot_model(
    problem: Problem, size_bytes: float, ceiling_us: float, slots: int, most: int | None = None
) -> SlotModel | None:
    """Return the program for messages of `size_bytes`; None where it would have more than `most` sends.

    Args:
        ceiling_us: A time that can be reached, in µs.
        slots: The least number of time slots.
        most: The most sends (chunk, link, slot), counted before any is made; None for any number.
    """
    net, collective = problem.network, problem.collective
    hold = collective.chunk_bytes(size_bytes) * US_PER_BYTE_AT_1_GBS
    takes = hold[:, None] / net.bandwidth_gbs + net.alpha_us
    # a slot no longer than any send, else two sends of one slot could each pretend to feed the other
    slots = max(slots, math.ceil(ceiling_us / float(takes.min())))
    slot = ceiling_us / slots
    starts = [_starts(problem, c, takes[c], slot, ceiling_us) for c in range(collective.nchunks)]
    if most is not None and sum(float(count.sum()) for _, count in starts) > most:
        return None
    sends = np.concatenate([_sends(c, *starts[c]) for c in range(collective.nchunks)])
    chunk, link, start = sends.T
    n = end = len(sends)
    program = ProgramBuilder()
    program.add_variables(n, 1.0, binary=True)
    program.add_variables(1, ceiling_us, cost=1.0)
    into: dict[tuple[int, int], list[int]] = {}
    for variable, cell in enumerate(zip(chunk.tolist(), net.dst[link].tolist(), strict=True)):
        into.setdefault(cell, []).append(variable)
    for (c, v), variables in into.items():
        exactly = v < collective.nranks and bool(collective.wants[c, v])
        _add_row(program, variables, [1.0] * len(variables), 1.0, 1.0 if exactly else -math.inf)
    held = {(c, r) for r, c in collective.pre.tolist()}
    ready = (start + np.floor(takes[chunk, link] / slot * (1 + 1e-12))).tolist()
    for variable, (c, u, begin) in enumerate(zip(chunk.tolist(), net.src[link].tolist(), start.tolist(), strict=True)):
        if (c, u) not in held:
            bring = [w for w in into.get((c, u), ()) if ready[w] <= begin]
            _add_row(program, [variable, *bring], [1.0] + [-1.0] * len(bring), 0.0)
    _add_windows(program, problem, sends, hold, slot)
    arrives_us = start * slot + takes[chunk, link]
    for c in range(collective.nchunks):
        for v in _goals(problem, c).tolist():
            variables = into.get((c, v), [])
            _add_row(program, [*variables, end], [*arrives_us[variables].tolist(), -1.0], 0.0)
    return SlotModel(program.build(), sends)


def _add_row(
    program: ProgramBuilder, columns: list[int], values: list[float], most: float, least: float = -math.inf
) -> None:
    row = np.zeros(len(columns), dtype=np.int64), np.array(columns, dtype=np.int64), np.array(values)
    program.add_rows(np.array([least]), row, most=most)


def _starts(problem: Problem, chunk: int, takes_us: Floats, slot: float, ceiling_us: float) -> tuple[Floats, Floats]:
    """Return for each link the first slot in which a chunk may be sent, and the number of slots from there on.

    Args:
        takes_us: Time of the chunk over each link in µs, shape (links,).
    """
    net = problem.network
    away = least_latency(net.nranks, net.src, net.dst, takes_us)
    here = away[problem.collective.holds[chunk].nonzero()[0]].min(axis=0, initial=np.inf)
    onward = away[:, _goals(problem, chunk)].min(axis=1, initial=np.inf)
    soonest = np.floor(here[net.src] / slot * (1 + 1e-12))
    latest = np.floor((ceiling_us - takes_us - onward[net.dst]) / slot * (1 + 1e-12) + 1e-9)
    return soonest, np.where(here[net.dst] > 0, np.maximum(latest - soonest + 1, 0), 0)


def _sends(chunk: int, soonest: Floats, slots: Floats) -> Ints:
    """A chunk's possible sends, rows (chunk, link, slot)."""
    count = slots.astype(np.int64)
    link = np.repeat(np.arange(len(count)), count)
    return np.column_stack(
        [np.full(len(link), chunk), link, np.repeat(soonest, count).astype(np.int64) + positions(count)]
    )


def _goals(problem: Problem, chunk: int) -> Ints:
    missing: Bools = problem.collective.wants[chunk] & ~problem.collective.holds[chunk]
    return np.flatnonzero(missing)


def _add_windows(program: ProgramBuilder, problem: Problem, sends: Ints, hold: Floats, slot: float) -> None:
    """Sends that start in a window take no more of a resource than the window and the last one's overhang.

    All that go through one resource end by the end, and none ends sooner than α after its resource is free again.
    """
    net = problem.network
    chunk, link, start = sends.T
    users: dict[int, list[int]] = {}
    for variable, used in enumerate(link.tolist()):
        for r in net.uses(used).tolist():
            users.setdefault(r, []).append(variable)
    totals = []
    for r, variables in sorted(users.items()):
        each = dict(zip(variables, (hold[chunk[variables]] / net.capacity_gbs[r]).tolist(), strict=True))
        over = float((hold[chunk[variables]] / net.bandwidth_gbs[link[variables]]).max())
        totals.append((variables, list(each.values())))
        by_slot: dict[int, list[int]] = {}
        for v in variables:
            by_slot.setdefault(int(start[v]), []).append(v)
        for a in sorted(by_slot):
            inside: list[int] = []
            for b in sorted(by_slot):
                if b < a:
                    continue
                inside = inside + by_slot[b]
                most = (b - a + 1) * slot + over
                if sum(each[v] for v in inside) > most:
                    _add_row(program, inside, [each[v] for v in inside], most)
    for variables, times in totals:
        _add_row(program, [*variables, len(sends)], [*times, -1.0], -float(net.alpha_us.min()))


def read_schedule(problem: Problem, model: SlotModel, chosen: Ints) -> Schedule:
    """The chosen sends in the order of their slots; a send's step is its depth in its chunk's tree."""
    rows = model.sends[chosen]
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0], rows[:, 2]))]
    return prune_copies(problem, route.along_trees(problem, rows[:, :2].tolist()))
