"""The engine `milp`: the best schedule by time slots for one message size and number of chunks, and its dual bound.

It states a copying problem with different α and bandwidths as a mixed-integer program over time slots (after TE-CCL): a
send is a variable for the slot in which it starts. Rounding always favours the program: every schedule in continuous
time is possible in it. So its dual bound holds for every schedule with these chunks. Its best order of sends gets its
time from the simulator, which is compared with that bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from synth.engines.edge_colouring import slotted
from synth.engines.request import Candidate, Options, Outcome, Progress, Request, SlotClaim
from synth.engines.route import quick_schedule
from synth.model.collective import Bools, Floats, Ints
from synth.model.deadline import now
from synth.model.problem import Problem, least_latency
from synth.model.schedule import Schedule, untimed
from synth.model.text import format_count
from synth.phases.prune import prune_copies
from synth.phases.split import Phase, phases
from synth.solvers.linear_program import LinearProgram, ProgramBuilder
from synth.timing.simulate import US_PER_BYTE_AT_1_GBS, predict_us
from topologies.arrays import positions

NAME = "milp"
_TERMS_OF_SEND = 1000  # terms of a program for each send that it may have; usual programs have up to 50


@dataclass(frozen=True)
class TimeSlotTuning:
    """Limits on the size of a program and on its time.

    Attributes:
        most_ranks: Most ranks for which the engine is tried.
        slots: Least number of slots in the time of the best known schedule. More slots resolve α better, and make the
            program larger.
        most_variables: Most variables (sends × slots) that solvers finish in seconds.
        chunks: Numbers of chunks a block that are tried where none is pinned.
        near: Ratio time / bound up to which a size is not tried, unless the engine is named.
        share: Part of the remaining time for one program.
        share_by_name: The same where the engine is named.
    """

    most_ranks: int = 32
    slots: int = 16
    most_variables: int = 4000
    chunks: tuple[int, ...] = (1, 2)
    near: float = 1.01
    share: float = 0.2
    share_by_name: float = 0.9


def accepts(problem: Problem, options: Options) -> str:
    """Return why the engine refuses a problem, empty for few ranks and one phase.

    Under `auto` it also refuses a pinned shape, and links with one α, for which steps say as much.
    """
    if (
        problem.nranks > TimeSlotTuning.most_ranks
        or problem.quotient is not None
        or problem.allowed_holders is not None
    ):
        return f"milp is for one group of {TimeSlotTuning.most_ranks} ranks at most; this problem has {problem.nranks}"
    if len(phases(problem)) > 1:
        return f"milp is for collectives that copy, or that sum for one rank each; {problem.collective.name} does both"
    if options.engine != "milp":
        if options.pinned:
            return "milp takes no pinned shape; leave --chunks, --steps and --rounds out, or name --engine milp"
        if np.ptp(problem.network.alpha_us) == 0:
            return "milp gains nothing over ksync where all links have one α; name it with --engine milp to run it"
    return ""


def solve(problem: Problem, request: Request, tuning: TimeSlotTuning = TimeSlotTuning()) -> Iterator[Outcome]:
    """Yield a schedule and a claim for each size that answers are shown at, and each number of chunks.

    Nothing but progress comes of a program that is too large or that the solver does not finish. A size at its bound
    is left out, unless the engine is named.
    """
    options, best_so_far = request.options, request.knowledge
    is_named = options.engine == "milp"
    (phase,) = phases(problem)
    for size in [options.size] if options.size is not None else best_so_far.shown_bytes():
        if not is_named and best_so_far.best_us(size) <= request.bound.at(size)[0] * tuning.near:
            continue
        for chunks in tuning.chunks if options.chunks is None else (options.chunks,):
            yield Progress(f"time slots: {format_count(chunks, 'chunk')}")
            remaining_s = request.deadline - now()
            budget_s = remaining_s * (tuning.share_by_name if is_named else tuning.share)
            answer = _in_slots(phase, chunks, size, request, budget_s, tuning)
            if answer is not None:
                schedule, claim = answer
                finer = problem.with_chunks(claim.chunks)
                yield Candidate(finer, slotted(finer, schedule), NAME, size)
                yield claim


def _in_slots(
    phase: Phase, chunks: int, size: int, request: Request, budget_s: float, tuning: TimeSlotTuning
) -> tuple[Schedule, SlotClaim] | None:
    """Return the best schedule found for the question's problem (through its phase), and the claim for all schedules.

    Args:
        phase: The only phase of the question's problem.
        chunks: Chunks a block of the phase.
        size: Message size in bytes.
        request: The request.
        budget_s: Time for the solver in seconds.
        tuning: Settings of the engine.

    Returns:
        None where the program is too large, or the solver failed or had no time.
    """
    copying = phase.apply(chunks)
    cells = copying.network.nlinks * copying.collective.nchunks * tuning.slots
    if cells > 10 * tuning.most_variables or budget_s <= 0.05:
        return None
    best = min(
        (quick_schedule(copying, size, depth) for depth in (0.0, 0.5, 1.0)), key=lambda s: predict_us(copying, s, size)
    )
    ceiling_us = predict_us(copying, best, size)
    if ceiling_us <= 0:  # No rank sends.
        return None
    model = slot_model(copying, size, ceiling_us, tuning.slots, tuning.most_variables)
    if model is None:
        return None
    until = now() + budget_s * 1.5 + 2
    result = request.workers.answer(until, "linear", model.program, budget_s, False, request.options.seed)
    if result is None:
        return None
    bound_us = ceiling_us  # An infeasible program proves that nothing beats the best schedule.
    if result.status != "infeasible":
        bound_us = min(result.dual_bound, ceiling_us)
    if result.solution is not None:
        schedule = read_schedule(copying, model, np.flatnonzero(result.solution.values[:-1] > 0.5))
        if predict_us(copying, schedule, size) < ceiling_us:
            best = schedule
    claim = SlotClaim(size, phase.whole_chunks(chunks), bound_us, result.solver)
    return phase.invert(chunks, best), claim


@dataclass(frozen=True)
class SlotModel:
    """A program, and the meaning of its variables: one a send, then the time at which everything has arrived.

    Attributes:
        program: The mixed-integer program.
        sends: Rows (chunk, link, slot) of the program's binary variables 0..n-1, int, shape (n, 3).
    """

    program: LinearProgram
    sends: Ints


def slot_model(
    problem: Problem, size_bytes: float, ceiling_us: float, slots: int, most: int | None = None
) -> SlotModel | None:
    """Return the program for messages of `size_bytes`; None where it would have too many sends or terms.

    Its optimum in µs is at most the time of every schedule that ends within `ceiling_us`. It is infeasible only where
    there is no such schedule.

    Args:
        problem: A copying problem.
        size_bytes: Message size in bytes.
        ceiling_us: A time that can be reached, in µs, more than 0; the slots divide it.
        slots: The least number of time slots.
        most: The most sends (chunk, link, slot), counted before any is built; None for any number. A program may have
            `_TERMS_OF_SEND` times as many terms.
    """
    net, collective = problem.network, problem.collective
    hold = collective.chunk_bytes(size_bytes) * US_PER_BYTE_AT_1_GBS
    send_us = hold[:, None] / net.bandwidth_gbs + net.alpha_us
    # No slot is longer than a send, else two sends of one slot could each pretend to feed the other.
    slots = max(slots, math.ceil(ceiling_us / float(send_us.min())))
    slot = ceiling_us / slots
    starts = [_starts(problem, c, send_us[c], slot, ceiling_us) for c in range(collective.nchunks)]
    if most is not None and sum(float(count.sum()) for _, count in starts) > most:
        return None
    sends = np.concatenate([_sends(c, *starts[c]) for c in range(collective.nchunks)])
    chunk, link, start = sends.T
    if most is not None and _count_terms(problem, link, start) > _TERMS_OF_SEND * most:
        return None
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
    initial_holders = {(c, r) for r, c in collective.pre.tolist()}
    ready = (start + np.floor(send_us[chunk, link] / slot * (1 + 1e-12))).tolist()
    for variable, (c, u, begin) in enumerate(zip(chunk.tolist(), net.src[link].tolist(), start.tolist(), strict=True)):
        if (c, u) not in initial_holders:
            bring = [w for w in into.get((c, u), ()) if ready[w] <= begin]
            _add_row(program, [variable, *bring], [1.0] + [-1.0] * len(bring), 0.0)
    _add_windows(program, problem, sends, hold, slot)
    arrives_us = start * slot + send_us[chunk, link]
    for c in range(collective.nchunks):
        for v in _goals(problem, c).tolist():
            variables = into.get((c, v), [])
            _add_row(program, [*variables, end], [*arrives_us[variables].tolist(), -1.0], 0.0)
    return SlotModel(program.build(), sends)


def _add_row(
    program: ProgramBuilder, columns: list[int], values: list[float], most: float, least: float = -math.inf
) -> None:
    """Add one row to the program: `least` ≤ sum of `values` × variables ≤ `most`."""
    row = np.zeros(len(columns), dtype=np.int64), np.array(columns, dtype=np.int64), np.array(values)
    program.add_rows(np.array([least]), row, most=most)


def _starts(problem: Problem, chunk: int, takes_us: Floats, slot: float, ceiling_us: float) -> tuple[Floats, Floats]:
    """Return for each link the first slot in which a chunk may be sent, and the number of slots from there on.

    Both have the shape (links,). The number is 0 where the chunk cannot come over the link in time, or is held already.

    Args:
        problem: A copying problem.
        chunk: The chunk.
        takes_us: Time of the chunk over each link in µs, shape (links,).
        slot: Length of a slot in µs.
        ceiling_us: A time that can be reached, in µs.
    """
    net = problem.network
    path_us = least_latency(net.nranks, net.src, net.dst, takes_us)
    earliest_us = path_us[problem.collective.holds[chunk].nonzero()[0]].min(axis=0, initial=np.inf)
    onward = path_us[:, _goals(problem, chunk)].min(axis=1, initial=np.inf)
    soonest = np.floor(earliest_us[net.src] / slot * (1 + 1e-12))
    latest = np.floor((ceiling_us - takes_us - onward[net.dst]) / slot * (1 + 1e-12) + 1e-9)
    return soonest, np.where(earliest_us[net.dst] > 0, np.maximum(latest - soonest + 1, 0), 0)


def _sends(chunk: int, soonest: Floats, slots: Floats) -> Ints:
    """Return the possible sends of a chunk, rows (chunk, link, slot), ordered by link, then slot.

    Args:
        chunk: The chunk.
        soonest: The first slot in which a send can begin, per link.
        slots: The number of slots from there on in which a send can begin, per link; 0 for none.
    """
    count = slots.astype(np.int64)
    link = np.repeat(np.arange(len(count)), count)
    return np.column_stack(
        [np.full(len(link), chunk), link, np.repeat(soonest, count).astype(np.int64) + positions(count)]
    )


def _goals(problem: Problem, chunk: int) -> Ints:
    """Return the ranks that want a chunk and do not hold it."""
    missing: Bools = problem.collective.wants[chunk] & ~problem.collective.holds[chunk]
    return np.flatnonzero(missing)


def _add_windows(program: ProgramBuilder, problem: Problem, sends: Ints, hold: Floats, slot: float) -> None:
    """Add the rows that limit the use of each resource.

    Sends that start in a window take no more of a resource than the window and the overhang of the last send. All sends
    through one resource end before the end of the schedule, and none arrives sooner than α after its resource is free
    again.

    Args:
        program: The program, whose first variables are the sends, followed by the end of the schedule.
        problem: A copying problem.
        sends: Rows (chunk, link, slot), shape (sends, 3).
        hold: Time of each chunk over a link of 1 GB/s in µs, shape (chunks,).
        slot: Length of a slot in µs.
    """
    net = problem.network
    chunk, link, start = sends.T
    users: dict[int, list[int]] = {}
    for variable, carrier in enumerate(link.tolist()):
        for r in net.uses(carrier).tolist():
            users.setdefault(r, []).append(variable)
    totals = []
    for r, variables in sorted(users.items()):
        use_us = dict(zip(variables, (hold[chunk[variables]] / net.capacity_gbs[r]).tolist(), strict=True))
        over = float((hold[chunk[variables]] / net.bandwidth_gbs[link[variables]]).max())
        totals.append((variables, list(use_us.values())))
        by_slot: dict[int, list[int]] = {}
        for v in variables:
            by_slot.setdefault(int(start[v]), []).append(v)
        slots = sorted(by_slot)
        for i, a in enumerate(slots):
            inside, inside_us = list[int](), list[float]()
            for b in slots[i:]:
                inside += by_slot[b]
                inside_us += [use_us[v] for v in by_slot[b]]
                most = (b - a + 1) * slot + over
                if sum(inside_us) > most:
                    _add_row(program, inside, inside_us, most)
    for variables, times in totals:
        _add_row(program, [*variables, len(sends)], [*times, -1.0], -float(net.alpha_us.min()))


def _count_terms(problem: Problem, link: Ints, start: Ints) -> int:
    """Return the most terms of the rows that `_add_windows` adds.

    Among k slots in which sends start, the sends of the i-th are in i (k - i + 1) windows: a cubic number of terms.

    Args:
        problem: A copying problem.
        link: Link of each send, shape (sends,).
        start: Slot of each send.
    """
    net, terms = problem.network, 0
    for resource in range(net.nresources):
        uses = np.isin(link, net.link_of_use[net.uses_idx == resource])
        _, sends_of_slot = np.unique(start[uses], return_counts=True)
        place = np.arange(1, len(sends_of_slot) + 1, dtype=np.int64)
        terms += int((sends_of_slot * place * place[::-1]).sum())
    return terms


def read_schedule(problem: Problem, model: SlotModel, chosen: Ints) -> Schedule:
    """Return the untimed schedule of the chosen sends in the order of their slots, without those that nobody needs.

    The step of a send is its depth in its chunk's tree.

    Args:
        problem: The copying problem of the program.
        model: The program.
        chosen: Rows of `model.sends`, int, shape (sends,).
    """
    rows = model.sends[chosen]
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0], rows[:, 2]))]
    chunks, links = rows[:, :2].T
    src, dst = problem.network.src[links].tolist(), problem.network.dst[links].tolist()
    depth = {(chunk, rank): 0 for rank, chunk in problem.collective.pre.tolist()}
    steps = []
    for chunk, source, goal in zip(chunks.tolist(), src, dst, strict=True):
        steps.append(depth[chunk, source])
        depth.setdefault((chunk, goal), steps[-1] + 1)
    return prune_copies(problem, untimed(chunks, links, np.array(steps)))
