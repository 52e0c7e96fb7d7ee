"""The engine `rails`: schedules for clusters whose nodes are not alike, such as those with lost GPUs or slow ports.

Nodes with doors on common rails exchange their data slot by slot (`synth.engines.rails.plan`). A node with fewer or
slower doors than others gets and sends its messages over them in proportion to their rates, and owns fewer sums or
none, since all that an owner gets and sends crosses its doors. In an all-reduce, the sums of a piece come together
while those of another are copied (`synth.engines.rails.pace`). No symmetry is needed, so the schedules are whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from synth.baselines.fifo import waits
from synth.engines.flow.csr_network import csr_network
from synth.engines.flow.ordering import OrderedSends, busiest_us
from synth.engines.flow.tree_sends import Sends
from synth.engines.rails.doors import RailDoors, find_doors
from synth.engines.rails.pace import paced
from synth.engines.rails.plan import exchange, in_slots, spread
from synth.engines.rails.tuning import TUNING, RailsTuning
from synth.engines.request import Candidate, Options, Outcome, Progress, Request
from synth.model.collective import Ints
from synth.model.compiled import choose_runner
from synth.model.deadline import now
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.model.text import format_count
from synth.phases.reversal import backwards, reverse
from synth.phases.split import join
from synth.timing.simulate import predict_us
from topologies.errors import InputError

NAME = "rails"
_KINDS = ("allgather", "reducescatter", "allreduce", "alltoall")
_ALIKE = 0.999  # Bandwidth of a node / largest bandwidth from which on it counts as one with most bandwidth.
_FEW_NODES = 32  # Up to so many nodes a node with less bandwidth may own sums too.


def accepts(problem: Problem, options: Options) -> str:
    """Return why the engine refuses a problem, empty for four collectives of a group on nodes that are not alike.

    Steps and rounds cannot be pinned.
    """
    if options.steps is not None or options.rounds is not None:
        return "rails takes no steps or rounds; leave --steps and --rounds out"
    if problem.quotient is not None or problem.allowed_holders is not None or problem.relays:
        return "rails takes one group without relays, and no quotient problems"
    if problem.collective.name not in _KINDS or problem.collective.chunks != 1:
        return f"rails is for {', '.join(_KINDS)} with one chunk a block"
    if problem.nranks > TUNING.most_ranks:
        return f"rails is for {TUNING.most_ranks} ranks or fewer"
    try:
        doors = find_doors(problem)
    except InputError as error:
        return str(error)
    return "rails is for nodes that are not alike; these are" if doors.are_alike else ""


def solve(problem: Problem, request: Request, tuning: RailsTuning = TUNING) -> Iterator[Outcome]:
    """Yield for each size better and better schedules: more chunks, as long as that gains.

    Sends stand in the order of their slots first, and then, where that does not take long, in that of a list schedule,
    in which sends pass others that wait. Of an all-reduce, sums also come together in a node with less bandwidth, and
    both phases are list scheduled as one. More chunks gain at most half of what an answer lies above the bound.
    """
    doors = find_doors(problem)
    choices = _owner_choices(doors) if problem.collective.kind.in_shares else [None]
    for size in request.sizes:
        counts = _counts(problem, doors, choices[0], request, tuning)
        enough_us, best_us, before_us = request.bound.at(size)[0] * tuning.near, np.inf, np.inf
        for count in counts:
            for cut, schedule in _schedules(problem, count, size, choices, tuning):
                time_us = predict_us(cut, schedule, size)
                if time_us < best_us * (1 - tuning.worth / 2):
                    best_us = time_us
                    yield Candidate(cut, schedule, NAME, size, supersedes=True)
                yield Progress(
                    f"rails: {format_count(count, 'chunk')}, {time_us / request.bound.at(size)[0]:.3f} × the bound"
                )
                if best_us <= enough_us or now() >= request.deadline:
                    break
            most = min(tuning.most_sends, request.most_sends or tuning.most_sends)
            most_us = request.bound.at(size)[0] * (1 + 2 * tuning.worth if len(schedule) > tuning.most_listed else 1)
            is_idle = best_us > before_us * (1 - tuning.worth) or best_us <= most_us
            if best_us <= enough_us or now() >= request.deadline or is_idle or 2 * len(schedule) > most:
                break
            before_us = best_us


def _counts(
    problem: Problem, doors: RailDoors, owners: Ints | None, request: Request, tuning: RailsTuning
) -> Iterator[int]:
    """Yield the numbers of chunks a block or share to try.

    Of an all-reduce with many sends these are one, so that there is an answer, and one more number: the pieces from
    which on the first and the last, in which the others wait for the slowest node, cost little, or fewer if their sends
    are too many or, as the first answer took, take longer than half of the time left.

    Args:
        problem: The problem, with one chunk a block.
        doors: The nodes and rails.
        owners: Owners of the sums of an all-reduce, one chunk each; None for other collectives.
        request: The request to the engine.
        tuning: Settings of the engine.
    """
    if request.options.chunks is not None:
        yield request.options.chunks
        return
    nsends = 0 if owners is None else 2 * len(owners) * (problem.nranks - 1)
    if nsends <= tuning.most_listed:
        yield from tuning.parts
        return
    begun = now()
    yield 1
    most = min(tuning.most_sends, request.most_sends or tuning.most_sends) / nsends
    in_time = (request.deadline - now()) / 2 / max(1e-3, now() - begun)
    pieces = int(min((doors.slowness - 1) / (2 * tuning.worth) + 1, most, in_time))
    if pieces > 1:
        yield pieces


def _schedules(
    problem: Problem, count: int, size_bytes: int, choices: Sequence[Ints | None], tuning: RailsTuning
) -> Iterator[tuple[Problem, Schedule]]:
    """Yield the problem in so many chunks a block or share, with its sends in several orders, without times.

    Args:
        problem: The problem, with one chunk a block.
        count: Number of chunks.
        size_bytes: Message size in bytes for which sends are list scheduled.
        choices: Owners of the sums of an all-reduce to try, as for `_in_slots`; None for other collectives.
        tuning: Settings of the engine.
    """
    for owners in choices:
        cut, schedule = _in_slots(problem, count, size_bytes, owners)
        yield cut, schedule
        if len(schedule) > tuning.most_listed:
            continue
        cut, schedule = _list_scheduled(problem, count, size_bytes, owners)
        yield cut, schedule
        if owners is not None and len(schedule) <= tuning.most_joint_sends:
            yield cut, _as_one(cut, schedule, size_bytes, len(owners), tuning)


def _as_one(problem: Problem, schedule: Schedule, size_bytes: int, owners: int, tuning: RailsTuning) -> Schedule:
    """Return both phases of an all-reduce in the order of a list schedule, in which early chunks overtake late ones.

    Args:
        problem: The problem with its chunks, of which each owner has the first ones before it has the next.
        schedule: The sends, without times.
        size_bytes: Message size in bytes.
        owners: Number of owners.
        tuning: Settings of the engine.
    """
    longest_us = busiest_us(problem, schedule, size_bytes)
    ordered_sends = _ordered_sends(problem, schedule, size_bytes)
    part = schedule.chunk // owners / (problem.collective.nchunks / owners)
    turn = np.arange(len(schedule)) / len(schedule)
    chains_us = ordered_sends.chains_us()
    urgencies = (
        chains_us - longest_us * (spread * part + ordered_sends.tuning.turns[0] * turn)
        for spread in ordered_sends.tuning.spreads
    )
    _, rows, _ = ordered_sends.listed(urgencies, 0.0, tuning.orders)
    return schedule.take(rows)


def _in_slots(problem: Problem, count: int, size_bytes: int, owners: Ints | None) -> tuple[Problem, Schedule]:
    """Return the problem in so many chunks a block or share, and its sends in the order of their slots, without times.

    Args:
        problem: The problem, with one chunk a block.
        count: Number of chunks.
        size_bytes: Message size in bytes.
        owners: Ranks at which the sums of an all-reduce come together, one chunk each; None for other collectives.
    """
    whole = problem.with_chunks(count if owners is None else count * len(owners))
    doors, collective = find_doors(whole), whole.collective
    if owners is not None:
        return whole, paced(whole, doors, spread(doors, owners), count, size_bytes)
    if collective.reducing:
        copying = reverse(whole)
        copies = spread(find_doors(copying), copying.collective.holders[1])
        return whole, backwards(whole, paced(copying, find_doors(copying), copies, 1, size_bytes))
    if problem.collective.name == "allgather":
        return whole, paced(whole, doors, spread(doors, collective.holders[1]), 1, size_bytes)
    return whole, exchange(doors, collective.holders[1], collective.goals[1])


def _list_scheduled(problem: Problem, count: int, size_bytes: int, owners: Ints | None) -> tuple[Problem, Schedule]:
    """Return the problem and its sends as `_in_slots`, but in the order of a list schedule of each phase."""
    if owners is not None:
        owners = np.tile(owners, count)
        whole = problem.with_chunks(len(owners))
        cells = np.column_stack([owners, np.arange(len(owners))])
        cells = cells[np.lexsort(cells.T[::-1])]
        allreduce, plain = whole.collective, np.zeros(len(owners), dtype=bool)
        summing = replace(allreduce, name="allreduce, reducing phase", post=cells, out_index=cells[:, 1])
        copying = replace(allreduce, name="allreduce, copying phase", reduces=plain, pre=cells, in_index=cells[:, 1])
        sums = _gather(replace(whole, collective=summing), size_bytes)
        return whole, join(sums, _spread(replace(whole, collective=copying), size_bytes))
    whole = problem.with_chunks(count)
    if whole.collective.reducing:
        return whole, _gather(whole, size_bytes)
    if problem.collective.name == "allgather":
        return whole, _spread(whole, size_bytes)
    sends = exchange(find_doors(whole), whole.collective.holders[1], whole.collective.goals[1])
    return whole, _listed(whole, sends, size_bytes)


def _owner_choices(doors: RailDoors) -> list[Ints]:
    """Return choices of the doors at which sums come together: those of the nodes with most bandwidth, or of all.

    A node that owns the share s of the sums sends 1 - s of the message to other owners and s of it to each other node,
    as does what it gets. In the second choice s grows with a node's bandwidth, such that all are busy for as long; it
    is 0 for a node that can hardly send its own addends. With many nodes that makes no difference.
    """
    gbs, is_door = np.minimum(doors.rate_in, doors.rate_out).sum(axis=1), doors.door >= 0
    ndoors = is_door.sum(axis=1)
    counts = [np.where(gbs >= _ALIKE * gbs.max(), ndoors, 0)]
    share = (2 * doors.nnodes - 2) * gbs / gbs.sum() - 1
    if doors.nnodes <= _FEW_NODES and share.max() > 0:
        counts.append(np.clip(np.rint(ndoors.max() * share / share.max()), 0, ndoors).astype(np.int64))
    owns = [is_door & (is_door.cumsum(axis=1) <= count[:, None]) for count in counts]
    return [np.asarray(doors.door.T[own.T]) for own in owns]


def _spread(problem: Problem, size_bytes: int, reverses: bool = False) -> Schedule:
    """Return the sends of a copying problem in which each chunk has one holder and all ranks want it.

    They stand in the order of the starts in a list schedule for a message size in bytes; with `reverses` in the order
    of their arrivals there, which is that of the starts of the reversed schedule backwards.
    """
    doors = find_doors(problem)
    return _listed(problem, in_slots(doors, spread(doors, problem.collective.holders[1])), size_bytes, reverses)


def _gather(problem: Problem, size_bytes: int) -> Schedule:
    """Return the sends of a problem in which all ranks contribute to each chunk and one wants it."""
    return backwards(problem, _spread(reverse(problem), size_bytes, reverses=True))


def _listed(problem: Problem, sends: Schedule, size_bytes: int, reverses: bool = False) -> Schedule:
    """Return copies in the order of a list schedule that prefers sends which come first, see `_spread`."""
    ordered_sends = _ordered_sends(problem, sends, size_bytes)
    _, rows, start_us = ordered_sends.listed(iter([-np.arange(len(sends), dtype=np.float64)]), 0.0, 1)
    if reverses:
        rows = rows[np.argsort(start_us + ordered_sends.lasts_us[rows], kind="stable")]
    return sends.take(rows)


def _ordered_sends(problem: Problem, sends: Schedule, size_bytes: int) -> OrderedSends:
    """Return sends and what they wait for, ready for list schedules at a message size in bytes."""
    columns = Sends(sends.chunk, sends.link, sends.step, sends.reduces, *waits(problem, sends))
    run = choose_runner(1e-5 * len(sends))
    return OrderedSends(problem, size_bytes, columns, run, csr_network(problem.network), 0.0)
