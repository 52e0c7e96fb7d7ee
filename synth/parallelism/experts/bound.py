"""Find the prices that prove how fast a placement of experts can be at best (see `witness`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from synth.model.deadline import now
from synth.parallelism.experts.parts import NODES, RANKS, parts_of
from synth.parallelism.experts.traffic import ExpertRouting
from synth.parallelism.experts.witness import GroupParts, Prices
from synth.solvers.linear_program import LinearProgram, ProgramBuilder
from synth.solvers.workers import Workers

_MOST_CELLS = 8192  # Parts × experts up to which a linear program improves prices.
_PROGRAM_S = 10.0  # Time for one linear program.


@dataclass(frozen=True, eq=False)
class LayerBound:
    """A proved bound on the time of a layer.

    Attributes:
        time_us: Time of dispatch and combine in µs that no placement beats whose ranks have at most `rank_load`.
        rank_load: Load of a rank in copies.
        of: What the prices are for: NODES or RANKS; "" in a layer without copies, which has no prices.
        prices: The witness; None in such a layer.
        parts: What it is a witness for: `prices.limit(parts)` is `time_us`; None in such a layer.
    """

    time_us: float
    rank_load: float
    of: str
    prices: Prices | None
    parts: GroupParts | None


def prove(
    routing: ExpertRouting, layer: int, slots: int, rank_load: float, workers: Workers, until: float = np.inf
) -> LayerBound:
    """Return the best bound on the time of a layer that the search finds.

    Args:
        routing: What is to be routed.
        layer: The layer.
        slots: Slots of each rank.
        rank_load: Largest load of a rank in copies of the placements that the bound is for; may be infinite.
        workers: The pool of solver processes.
        until: When the search for prices ends, a reading of `now`; prices that need no solver are found anyway.

    Raises:
        TimeUp: The time of the work around is over.
    """
    best = LayerBound(0.0, rank_load, "", None, None)
    if not routing.copies[layer].any():
        return best
    has_nodes = routing.shape.nnodes > 1
    for of in (NODES, RANKS) if has_nodes else (RANKS,):
        for parts in parts_of(routing, layer, slots, of):
            candidates = [even_prices(parts, rank_load)]
            if not _are_equal(parts) and parts.copies.size <= _MOST_CELLS and (of == NODES or not has_nodes):
                candidates += _solved_prices(parts, rank_load, workers, until)
            for prices in candidates:
                time_us = prices.limit(parts)
                if time_us >= best.time_us:
                    best = LayerBound(time_us, rank_load, of, prices, parts)
    return best


def _are_equal(parts: GroupParts) -> bool:
    """Return whether all parts are equal and want the same, so that `even_prices` are best."""
    columns = parts.copies, parts.ranks, parts.out_us, parts.in_us
    return all(np.allclose(column, column[:1], rtol=1e-12, atol=0.0) for column in columns)


def even_prices(parts: GroupParts, rank_load: float) -> Prices:
    """Return prices that are best where all parts are equal and want the same, and right for all others.

    All parts count equally. A slot is worth what the expert at the margin gains by it, when slots go to the experts
    that gain most; an expert that gains less gets the difference as its price, so that it has as many replicas as it
    needs.
    """
    inside, overall = parts.needed(rank_load)
    speed = np.divide(1.0, parts.out_us, out=np.zeros(len(parts.out_us)), where=parts.out_us > 0)
    weight = speed / speed.sum()
    gain = (weight * parts.out_us) @ parts.leaving / len(parts.ranks)
    size = inside.mean(axis=0)
    ratio = gain / size
    order = np.argsort(-ratio, kind="stable")
    # All experts have the replicas that they need; the rest of the slots go to those that gain most.
    further = np.maximum(size * len(parts.ranks) - overall, 0)[order]
    free = float(parts.ranks.sum() * parts.slots - overall.sum())
    margin = int(np.searchsorted(np.cumsum(further), free, side="right"))
    slot_price = float(ratio[order][margin]) if margin < len(order) else 0.0
    return Prices(weight, np.maximum(slot_price - ratio, 0.0), rank_load)


def _program(parts: GroupParts, rank_load: float) -> tuple[LinearProgram, int, int]:
    """Return the linear relaxation of the best placement, and the first rows of the parts' times and of the needs.

    Its variables are the time, and x and n of every part and expert (see `witness`). An expert that needs one replica
    anywhere has no n: x takes its place.
    """
    nparts = len(parts.copies)
    inside, overall = parts.needed(rank_load)
    part, expert = (column.reshape(-1) for column in np.indices(parts.copies.shape))
    size, kept_us = inside.reshape(-1), (parts.out_us[:, None] * parts.leaving).reshape(-1) / _unit(parts)
    program = ProgramBuilder()
    longest = program.add_variables(1, 1.0, cost=1.0)
    x = program.add_variables(len(part), np.where(size <= parts.ranks[part], 1.0, 0.0))
    many = np.flatnonzero(overall[expert] > 1)
    replicas = x.copy()
    replicas[many] = program.add_variables(len(many), parts.ranks[part[many]].astype(float)) if len(many) else x[many]
    each_part = np.arange(nparts)
    all_us = parts.out_us * parts.leaving.sum(axis=1) / _unit(parts)
    times = program.add_rows(all_us, (each_part, np.repeat(longest, nparts), 1.0), (part, x, kept_us))
    needs = program.add_rows(overall.astype(float), (expert, replicas, 1.0))
    program.add_rows(-(parts.ranks * parts.slots).astype(float), (part, replicas, -1.0))
    row = np.arange(len(many))
    program.add_rows(np.zeros(len(many)), (row, replicas[many], 1.0), (row, x[many], -size[many].astype(float)))
    return program.build(), times, needs


def _unit(parts: GroupParts) -> float:
    """Return the time in µs, for copies of one byte, that counts as 1 in the linear program."""
    return float((parts.out_us * parts.leaving.sum(axis=1)).max())


def _solved_prices(parts: GroupParts, rank_load: float, workers: Workers, until: float) -> list[Prices]:
    """Return the best prices, which are dual prices of the linear program; an empty list if the solver has no answer.

    Args:
        parts: What is known of the parts of the group.
        rank_load: Largest load of a rank, in copies, of the placements that the bound is for.
        workers: Solver processes.
        until: Time on the clock of `now` at which the solver stops; it has `_PROGRAM_S` seconds at most.
    """
    seconds = min(_PROGRAM_S, until - now())
    if seconds <= 0:
        return []
    program, times, needs = _program(parts, rank_load)
    reply = workers.answer(now() + seconds, "linear", program, seconds)
    if reply is None or reply.solution is None:
        return []
    nparts, nexperts = parts.copies.shape
    dual = np.maximum(reply.solution.dual_prices, 0.0)
    weight, price = dual[times : times + nparts], dual[needs : needs + nexperts] * _unit(parts)
    total = float(weight.sum())
    return [Prices(weight / total, price / total, rank_load)] if total > 0 else []
