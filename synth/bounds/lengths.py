"""Link lengths that prove much, for the metric bound: uniform ones, ones from a routing's loads, and optimal ones.

In the linear program of which lengths are the dual, only what is busiest in a best routing has a price. So the
loads of a good routing say where prices belong; how high they are is tried out, and improved by mirror ascent
(multiplicative weights, as in Young, 1995): shortest paths under the prices tell what should cost more.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from synth.bounds.kind import Search
from synth.bounds.metric import fewer_ends
from synth.bounds.relaxation import dual_prices, steady, variables
from synth.bounds.witness import Witness, countable, lengths_limit, lengths_us_per_byte
from synth.model.collective import Collective, Floats, Ints
from synth.model.problem import Problem
from synth.model.requirements import find_requirements
from synth.symmetry.relabelling import free_symmetry

_NOTHING = 1e-12  # of the highest price: not worth a place in the witness


@dataclass(frozen=True)
class LoadTuning:
    """How prices are drawn from loads: more of each find little more, and take as much longer."""

    # shares of the highest load from which on all resources get the same price
    near_full: tuple[float, ...] = (0.999, 0.99, 0.98, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5)
    # the price is exp(steepness · load / highest load)
    steepness: tuple[float, ...] = (5.0, 10.0, 20.0, 50.0, 100.0, 200.0)
    sampled_ranks: int = 96  # whose chunks tell good prices from bad ones, where there are more
    step_ranks: int = 64  # whose chunks one step of mirror ascent looks at
    tried: int = 3  # candidates, on all chunks


def find_uniform(search: Search) -> Iterator[Witness]:
    """All resources cost the same by the byte, or by the µs that they are busy: the average path needs capacity."""
    capacity = search.problem.network.capacity_gbs
    yield _claim(np.ones(len(capacity)), "link lengths, every resource alike")
    if np.ptp(capacity) > 1e-9 * capacity.max():
        yield _claim(capacity.max() / capacity, "link lengths, every resource alike by its time")


def find_by_loads(search: Search) -> Iterator[Witness]:
    """Prices from the loads of the routing that the search knows, improved by mirror ascent."""
    if search.loads_us is not None:
        yield _claim(_prices_from_loads(search.problem, search.loads_us, search.tuning.mirror_rounds))


def find_by_linear_program(search: Search) -> Iterator[Witness]:
    """Dual prices of the flow relaxation, for problems that copy each chunk to one rank."""
    problem, tuning = search.problem, search.tuning
    collective = problem.collective
    if collective.reducing or problem.quotient is not None or search.workers is None:
        return
    if collective.nchunks * collective.nranks > tuning.program_cells:
        return
    symmetry = free_symmetry(problem)
    if variables(problem, 1, symmetry) > tuning.program_variables:
        return
    relaxation = steady(problem, symmetry)
    if relaxation is None:
        return
    until = time.monotonic() + search.budget_s
    result = search.workers.answer(until, "linear", relaxation.program, search.budget_s)
    if result is None or result.solution is None:
        return
    (prices,) = dual_prices(problem, relaxation, result.solution.dual_prices, symmetry)
    text = f"link lengths, {len(prices)} loaded resources"
    yield Witness("lengths", text=text, prices=tuple(sorted(prices.items())))


def from_prices(problem: Problem, prices: Floats, text: str = "") -> Witness:
    """The witness of some prices, with the numbers that it proves.

    prices: ≥ 0, shape (nresources,) or, with those of every link's own bandwidth, (nresources + nlinks,).
    """
    claim = _claim(prices, text)
    base, per_byte, _ = lengths_limit(countable(problem), claim)
    return replace(claim, base_us=base, per_byte_us=per_byte)


def from_loads(problem: Problem, loads_us: Floats, rounds: int = 0) -> Witness:
    """The best lengths found with the loads of a routing as a hint; any loads give a true bound.

    Args:
        problem: the problem, or a quotient problem; best with one chunk a block.
        loads_us: how long each resource is busy, shape (nresources,), in any unit (see `resource_loads_us`).
        rounds: of mirror ascent from the best candidate; each looks for the shortest paths once.
    """
    return from_prices(problem, _prices_from_loads(countable(problem), loads_us, rounds))


def _claim(prices: Floats, text: str = "") -> Witness:
    """The claim of some prices, without what is next to nothing."""
    loaded = np.flatnonzero(prices > _NOTHING * prices.max(initial=0.0))
    rows = tuple(zip(loaded.tolist(), prices[loaded].tolist(), strict=True))
    return Witness("lengths", text=text or f"link lengths, {len(loaded)} loaded resources", prices=rows)


def _prices_from_loads(problem: Problem, loads_us: Floats, rounds: int, tuning: LoadTuning = LoadTuning()) -> Floats:
    load = np.maximum(np.nan_to_num(np.asarray(loads_us, dtype=np.float64)), 0.0)
    small = sampled(problem, tuning.sampled_ranks)
    best, value = _best(problem, small, [np.ones(len(load)), *_weights(load, tuning)], tuning)
    if rounds > 0:
        from synth.bounds.mirror_ascent import ascend  # brings SciPy, which starts slowly

        better, loads = ascend(shared_out(problem, tuning.step_ranks), best, rounds)
        further = [better, *_weights(better, tuning, steep=False), *_weights(loads, tuning)]
        better, proved = _best(problem, small, further, tuning)
        best = better if proved > value else best
    return best / problem.network.capacity_gbs


def _weights(load: Floats, tuning: LoadTuning, steep: bool = True) -> list[Floats]:
    """Weight 1 for whatever is nearly as busy as the busiest, and weights that grow steeply with the load."""
    highest = float(load.max(initial=0.0))
    if highest <= 0:
        return []
    flat = [(load >= near * highest).astype(np.float64) for near in tuning.near_full]
    return flat + [np.exp(one * (load / highest - 1.0)) for one in (tuning.steepness if steep else ())]


def _best(problem: Problem, small: Problem, weights: list[Floats], tuning: LoadTuning) -> tuple[Floats, float]:
    """Of several weights those that prove most, and what they prove; the first ones told apart by `small`."""
    capacity = problem.network.capacity_gbs
    weights = list({w.tobytes(): w for w in weights}.values())
    values = [_value(small, w / capacity) for w in weights]
    if small is not problem:
        order = np.argsort(-np.array(values), kind="stable")[: tuning.tried]
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
    return (
        [problem]
        if len(parts) < 2
        else [replace(problem, collective=_only(problem.collective, chunks)) for chunks in parts]
    )


def _drawn(problem: Problem, ranks: int) -> list[Ints]:
    """Chunks that move, in parts of those that belong to `ranks` ranks each."""
    collective = problem.collective
    (ptr, ends), _ = fewer_ends(collective)
    some = np.flatnonzero((np.diff(ptr) > 0) & (find_requirements(collective).ngoal > 0))
    anchor = ends[ptr[some]]
    distinct = np.random.default_rng(0).permutation(np.unique(anchor))
    count = max(1, round(len(distinct) / ranks))
    part = np.zeros(collective.nranks, dtype=np.int64)
    part[distinct] = np.arange(len(distinct)) % count
    return [some[part[anchor] == i] for i in range(count)]


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
