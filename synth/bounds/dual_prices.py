"""Link lengths that prove much: candidates from how busy each resource is when traffic is well spread, and ascent.

In the linear program of which lengths are the dual, only what is busiest in a best routing has a price. So the
loads of a good routing say where prices belong; how high they are is tried out, and improved by mirror ascent
(multiplicative weights, as in Young, 1995): shortest ways under the prices tell what should cost more.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from synth.bounds.metric import fewer_ends
from synth.bounds.mirror_ascent import ascend
from synth.bounds.witness import Witness, lengths_us_per_byte, recompute
from synth.model.collective import Collective, Floats, Ints
from synth.model.problem import Problem
from synth.model.requirements import needs, summed
from synth.model.schedule import Schedule

_NEVER = float("inf")
_NEAR_FULL = (0.999, 0.99, 0.98, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5)  # of the busiest: all of these cost the same
_STEEPNESS = (5.0, 10.0, 20.0, 50.0, 100.0, 200.0)  # the price is exp(steepness · load / highest load)
_SAMPLED = 96  # ranks whose chunks tell good prices from bad ones, where there are more
_AT_A_TIME = 64  # ranks whose chunks one step of ascent looks at
_TRIED = 3  # of the candidates, on all chunks
_NOTHING = 1e-12  # of the highest price: not worth a place in the witness


def lengths_of_prices(problem: Problem, prices: Floats, text: str = "") -> Witness:
    """The witness that prices make: what they prove is worked out as a check does it.

    Args:
        problem: the problem, a quotient or not.
        prices: ≥ 0, shape (nresources,) or, with those of every link's own bandwidth, (nresources + nlinks,).
        text: for the reader.
    """
    loaded = np.flatnonzero(prices > _NOTHING * prices.max(initial=0.0))
    pairs = tuple(zip(loaded.tolist(), prices[loaded].tolist(), strict=True))
    words = text or f"link lengths, {len(pairs)} loaded resources"
    claim = Witness("lengths", (), (), (), 0.0, 0.0, _NEVER, words, pairs)
    base, per_byte, _ = recompute(problem, claim)
    return replace(claim, base_us=base, per_byte_us=per_byte)


def loads(problem: Problem, schedule: Schedule) -> Floats:
    """How long a schedule keeps every resource busy, µs a byte of message, shape (nresources,)."""
    net = problem.network
    carried = summed(schedule.link, problem.collective.fraction[schedule.chunk], net.nlinks)
    busy: Floats = summed(net.uses_idx, carried[net.link_of_use], net.nresources) / net.capacity_gbs / 1e3
    return busy


def uniform(problem: Problem) -> list[Witness]:
    """All resources cost the same by the byte, or by the µs that they are busy: the average way has to find room."""
    capacity = problem.network.capacity_gbs
    found = [lengths_of_prices(problem, np.ones(len(capacity)), "link lengths, every resource alike")]
    if np.ptp(capacity) > 1e-9 * capacity.max():
        by_time = capacity.max() / capacity
        found.append(lengths_of_prices(problem, by_time, "link lengths, every resource alike by its time"))
    return found


def from_loads(problem: Problem, load_us: Floats, rounds: int = 0) -> Witness:
    """The best lengths found with the loads of a routing as a hint; any loads give a true bound.

    Args:
        problem: the problem, a quotient or not; best with one chunk a block.
        load_us: how long each resource is busy, shape (nresources,), in any unit (see `loads`).
        rounds: steps of ascent from the best candidate; each looks for the shortest ways once.
    """
    capacity = problem.network.capacity_gbs
    load = np.maximum(np.nan_to_num(np.asarray(load_us, dtype=np.float64)), 0.0)
    small = sampled(problem, _SAMPLED)
    best, value = _best(problem, small, [np.ones(len(load)), *_near_full(load), *_steep(load)])
    if rounds > 0:
        better, loads = ascend(shared_out(problem, _AT_A_TIME), best, rounds)
        further = [better, *_near_full(better), *_near_full(loads), *_steep(loads)]
        better, proved = _best(problem, small, further)
        best = better if proved > value else best
    return lengths_of_prices(problem, best / capacity)


def _near_full(load: Floats) -> list[Floats]:
    """Weight 1 for whatever is nearly as busy as the busiest."""
    highest = float(load.max(initial=0.0))
    return [(load >= near * highest).astype(np.float64) for near in _NEAR_FULL] if highest > 0 else []


def _steep(load: Floats) -> list[Floats]:
    highest = float(load.max(initial=0.0))
    return [np.exp(steep * (load / highest - 1.0)) for steep in _STEEPNESS] if highest > 0 else []


def _best(problem: Problem, small: Problem, weights: list[Floats]) -> tuple[Floats, float]:
    """Of several weights those that prove most, and what they prove; the first ones told apart by `small`."""
    capacity = problem.network.capacity_gbs
    weights = list({w.tobytes(): w for w in weights}.values())
    values = [_value(small, w / capacity) for w in weights]
    if small is not problem:
        order = np.argsort(-np.array(values), kind="stable")[:_TRIED]
        weights = [weights[i] for i in order]
        values = [_value(problem, w / capacity) for w in weights]
    best = int(np.argmax(values))
    return weights[best], values[best]


def _value(problem: Problem, price: Floats) -> float:
    return lengths_us_per_byte(problem, np.concatenate([price, np.zeros(problem.network.nlinks)]))


def sampled(problem: Problem, ranks: int) -> Problem:
    """The problem with the chunks of some ranks only (drawn at random, the same at every call); itself if small."""
    parts = _drawn(problem, ranks)
    return problem if len(parts) < 3 else replace(problem, collective=_only(problem.collective, parts[0]))


def shared_out(problem: Problem, ranks: int) -> list[Problem]:
    """The problem's chunks shared out among problems with those of so many ranks each, drawn at random."""
    parts = _drawn(problem, ranks)
    if len(parts) < 2:
        return [problem]
    return [replace(problem, collective=_only(problem.collective, chunks)) for chunks in parts]


def _drawn(problem: Problem, ranks: int) -> list[Ints]:
    """Chunks that move, in parts of those that belong to `ranks` ranks each."""
    collective = problem.collective
    (ptr, ends), _ = fewer_ends(collective)
    some = np.flatnonzero((np.diff(ptr) > 0) & (needs(collective).ngoal > 0))
    anchor = ends[ptr[some]]
    distinct = np.random.default_rng(0).permutation(np.unique(anchor))
    count = max(1, round(len(distinct) / ranks))
    turn = np.zeros(collective.nranks, dtype=np.int64)
    turn[distinct] = np.arange(len(distinct)) % count
    return [some[turn[anchor] == part] for part in range(count)]


def _only(collective: Collective, chunks: Ints) -> Collective:
    """The collective without all other chunks."""
    number = np.full(collective.nchunks, -1, dtype=np.int64)
    number[chunks] = np.arange(len(chunks))
    before, after = number[collective.pre[:, 1]] >= 0, number[collective.post[:, 1]] >= 0
    pre, post = collective.pre[before], collective.post[after]
    return replace(
        collective,
        nchunks=len(chunks),
        reduces=collective.reduces[chunks],
        fraction=collective.fraction[chunks],
        pre=np.column_stack([pre[:, 0], number[pre[:, 1]]]),
        post=np.column_stack([post[:, 0], number[post[:, 1]]]),
        in_index=collective.in_index[before],
        out_index=collective.out_index[after],
    )
