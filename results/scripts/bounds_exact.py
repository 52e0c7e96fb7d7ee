"""Every bound we claim against random small problems solved exactly by a model of their own: is any refuted?

    python -m results.scripts.bounds_exact [--count 20000] [--seed 0] [--minutes M] [--processes N] [--one NUMBER]
                                           [--plant KIND]

makes bounds_exact.md. Problems have 2 to 5 ranks and are drawn by seed and number: directed rings through ranks and
switches with links across, limits over some, groups with relays; all collectives and random patterns; 1 to 3 chunks a
block; message sizes from those that latencies decide to those that bytes decide; some with an executor's costs, some
with a switch that multicasts and reduces. What is refuted is printed with its number; `--one` solves that again.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from results.measuring.measure import grid, page, write
from synth.bounds.prove import Bound, TighteningEffort, prove, refute, tighten
from synth.bounds.registry import KINDS
from synth.bounds.search import DEFAULT
from synth.model.deadline import now
from synth.model.pattern import read_pattern
from synth.model.problem import Problem, make_problem
from synth.solvers.workers import Workers
from synth.timing.simulate import resource_loads_us, timed
from synth.verify.algorithm import Algorithm
from tests.oracles.exact_times import Exact, NotWhole, exact
from tests.oracles.tree_packing import packed_us_per_byte
from tests.random_problems import NAMED, ROOTED, random_pattern_text
from topologies.costed import with_costs
from topologies.costs import Costs, Protocol
from topologies.errors import InputError
from topologies.topology import Limit, SwitchOps, Topology

CHUNK_US = 12.0  # that the smallest chunk holds a link of 1 GB/s: every rate below divides it
RATES = (1.0, 2.0, 3.0, 4.0, 6.0, 12.0)
MOST_SENDS = 160  # chunks × carriers, with sums' second halves
ROUND_OFF = 1 + 1e-9
PLANTED = 1.01  # of a claim that is raised to see it refuted
COARSE = replace(DEFAULT, window_slots=(8, 20), window_tries=2)  # a fault shows with few slots too
SEARCH_S = 5.0
PRETENDED = 1.1
ONE_OF = 2  # problems for which windows of time are looked for: they take longer than all others
OTHER_SIZES = (0.01, 0.3, 5.0, 1000.0)  # of the message size, at which the schedule's time counts too


@dataclass(frozen=True)
class Drawn:
    """A problem of one chunk a block, the chunks that its schedules are to have, and the message size in bytes."""

    problem: Problem
    chunks: int
    size_bytes: float
    sort: str


@dataclass
class Count:
    """What came of some problems.

    Attributes:
        sorts: problems by sort. claims: by kind of bound, what it claims at the size that was solved.
        met: where the best schedule takes that long. seen: where 1 % more would have been refuted.
        slopes, slopes_met: likewise of the bounds on very large messages.
        proved: problems of which the solver proved that no schedule of these chunks is faster.
        refuted: one line each. skipped: drawn, but too large or not in whole units.
    """

    sorts: Counter[str] = field(default_factory=Counter)
    claims: Counter[str] = field(default_factory=Counter)
    met: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    gaps: list[float] = field(default_factory=list)
    slopes: int = 0
    slopes_met: int = 0
    proved: int = 0
    refuted: list[str] = field(default_factory=list)
    skipped: int = 0

    def add(self, other: Count) -> None:
        """Those of another count too."""
        for name, value in vars(other).items():
            own = getattr(self, name)
            if isinstance(own, Counter):
                own.update(value)
            else:
                setattr(self, name, own + value)


def drawn(seed: int, number: int) -> Drawn | None:
    """The problem of a number; None where it cannot be, or is too large."""
    rng = random.Random(f"{seed} {number}")
    sort = rng.choices(("plain", "relays", "pattern", "costs", "switch ops"), (4, 3, 2, 2, 2))[0]
    topology = _star(rng) if sort == "switch ops" else _network(rng)
    if sort == "costs":
        topology = with_costs(topology, _costs(rng))
    most = topology.nranks if sort != "relays" else max(2, topology.nranks - 1)
    members = rng.sample(range(topology.nranks), rng.randint(2, most) if sort in ("relays", "costs") else most)
    others = [r for r in range(topology.nranks) if r not in members]
    relays = rng.sample(others, rng.randint(0, len(others)))
    try:
        if sort == "pattern":
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "pattern.toml")
                path.write_text(random_pattern_text(rng, len(members)), encoding="utf-8")
                problem = make_problem(topology, read_pattern(path), members, relays)
        else:
            name = rng.choice(NAMED)
            problem = make_problem(
                topology, name, members, relays, root=rng.choice(members) if name in ROOTED else None
            )
    except InputError:
        return None
    sends = problem.collective.nchunks * problem.network.ncarriers * (1 + problem.collective.reducing)
    chunks = rng.choice([c for c in (1, 1, 2, 3) if c == 1 or c * sends <= MOST_SENDS])
    fraction = problem.collective.fraction.min() / chunks
    size_bytes = float(round(CHUNK_US * 1e3 * rng.choice((1, 1, 5, 50)) / fraction))
    return Drawn(problem, chunks, size_bytes, sort) if sends <= MOST_SENDS else None


def _network(rng: random.Random) -> Topology:
    """Ranks and switches on a directed ring in random order, more links across, limits over some of them."""
    nranks, nswitches = rng.randint(2, 5), rng.choice((0, 0, 1, 2))
    order = list(range(nranks + nswitches))
    rng.shuffle(order)
    pairs = set(zip(order, order[1:] + order[:1], strict=True))
    for _ in range(rng.randint(0, 2 * len(order))):
        u, v = rng.sample(order, 2)
        pairs |= {(u, v), (v, u)} if rng.random() < 0.6 else {(u, v)}
    src, dst = np.array(sorted(pairs)).T
    rates, alphas = rng.choice(((1.0,), (2.0, 4.0), RATES)), rng.choice(((0,), (1,), (1, 2, 5)))
    gbs = np.array([rng.choice(rates) for _ in src])
    alpha = np.array([float(rng.choice(alphas)) for _ in src]) * rng.choice((1, 10, 100))
    limits = []
    for i in range(rng.choice((0, 0, 1, 2))):
        held = np.array(sorted(rng.sample(range(len(src)), rng.randint(1, len(src)))))
        limits.append(Limit(f"limit{i}", held, max(1.0, round(float(gbs[held].sum()) * rng.choice((0.3, 0.5, 0.8))))))
    names = tuple(f"s{i}" for i in range(nswitches))
    nodes = np.array([rng.randrange(min(2, nranks)) for _ in range(nranks)])
    return Topology("random", nranks, names, src, dst, alpha, gbs, tuple(limits), nodes=nodes)


def _star(rng: random.Random) -> Topology:
    """Ranks on a switch that multicasts and reduces, some pairs with links of their own."""
    ranks = rng.randint(3, 4)
    pairs = [(r, ranks) for r in range(ranks)] + [(ranks, r) for r in range(ranks)]
    pairs += [(a, b) for a in range(ranks) for b in range(ranks) if a != b and rng.random() < 0.2]
    src, dst = np.array(pairs).T
    gbs = np.array([rng.choice(rng.choice(((2.0,), (1.0, 2.0, 4.0)))) for _ in pairs])
    alpha = np.array([float(rng.choice((0, 1, 5))) for _ in pairs])
    ops = SwitchOps("w", rng.choice((0.5, 1.0, 1.0)), rng.choice((0.5, 1.0, 1.0)))
    return Topology("star", ranks, ("w",), src, dst, alpha, gbs, switch_ops=(ops,))


def _costs(rng: random.Random) -> Costs:
    """Two protocols: a quick one for small messages, and one that uses the whole bandwidth."""
    quick = Protocol(float(rng.choice((0, 3))), latency_us={"other": 1.0}, efficiency={"other": 0.5})
    whole = Protocol(
        float(rng.choice((0, 6))), latency_us={"other": 4.0}, gap_us={"other": float(rng.choice((0, 1, 3)))}
    )
    return Costs({"LL": quick, "Simple": whole}, "drawn at random")


def bounded(one: Drawn, best: Exact, algorithm: Algorithm, workers: Workers, *, windows: bool) -> Bound:
    """Everything that is claimed of a problem of one protocol, by all that finds bounds."""
    problem, size = one.problem, one.size_bytes
    bound = prove(problem)
    loads = partial(resource_loads_us, algorithm.problem, timed(algorithm.problem, algorithm.schedule, size))
    for better in tighten(
        problem, bound, loads, size, np.inf, workers, now() + SEARCH_S, effort=TighteningEffort()
    ):  # fmt: skip
        bound = better
    if windows:
        # as if more time were reached, so that it is tried to claim too much
        for better in refute(problem, bound, size, best.time_us * PRETENDED, workers, now() + SEARCH_S, COARSE):
            bound = better
    return bound


def solved(seed: int, number: int, workers: Workers, planted: str = "") -> Count:
    """One problem, and what of its bounds is refuted; planted: a kind of bound whose claims are raised by 1 %."""
    count, one = Count(), drawn(seed, number)
    if one is None:
        count.skipped = 1
        return count
    times: list[float] = []
    names = one.problem.protocols or [""]
    for name in names:
        each = replace(one, problem=one.problem.under(name)) if name else one
        try:
            refined = each.problem.with_chunks(each.chunks)
            best = exact(refined, each.size_bytes)
        except NotWhole:
            best = None
        if best is None or (not len(best.schedule)):
            count.skipped = 1
            return count
        algorithm = Algorithm(refined, best.schedule, "exact")
        replayed = algorithm.time_us(each.size_bytes)
        if replayed > best.time_us * (1 + 1e-9) or (best.proved and replayed < best.time_us * (1 - 1e-9)):
            count.refuted.append(f"{number}: the replay takes {replayed:.6g} µs, the model says {best.time_us:.6g}")
        bound = bounded(each, best, algorithm, workers, windows=number % ONE_OF == 0)
        _compare(count, number, each, bound, algorithm, planted)
        times.append(best.time_us)
        count.proved += best.proved and name == names[0]
    claim = prove(one.problem).at(one.size_bytes)[0]
    if claim > min(times) * ROUND_OFF:
        count.refuted.append(f"{number}: over all protocols {claim:.6g} µs, a schedule takes {min(times):.6g}")
    count.sorts[one.sort] += 1
    return count


def _compare(count: Count, number: int, one: Drawn, bound: Bound, algorithm: Algorithm, planted: str) -> None:
    """Every witness at every size, and the slope for large messages."""
    factors = dict.fromkeys(KINDS, 1.0) | ({planted: PLANTED} if planted else {})
    for size in (one.size_bytes, *(one.size_bytes * part for part in OTHER_SIZES)):
        time_us = algorithm.time_us(size)
        for kind, factor in factors.items():
            claimed = max((w.at(size) * factor for w in bound.witnesses if w.kind == kind), default=None)
            if claimed is None:
                continue
            if claimed > time_us * ROUND_OFF:
                what = f"{one.problem.collective.name}, {one.problem.nranks} ranks, {size:.6g} bytes ({one.sort})"
                count.refuted.append(
                    f"{number}: {kind} claims {claimed:.8g} µs, a schedule takes {time_us:.8g}: {what}"
                )
            if size == one.size_bytes:
                count.claims[kind] += 1
                count.met[kind] += claimed * ROUND_OFF**1000 >= time_us
                count.seen[kind] += claimed * PLANTED > time_us * ROUND_OFF
        if size == one.size_bytes:
            count.gaps.append(time_us / bound.at(size)[0])
    packed = packed_us_per_byte(one.problem)
    if packed is not None:
        claimed = bound.per_byte_us
        count.slopes += 1
        count.slopes_met += claimed * (1 + 1e-6) >= packed
        if claimed > packed * (1 + 1e-7):
            count.refuted.append(
                f"{number}: {claimed:.8g} µs a byte claimed of large messages, trees take {packed:.8g}"
            )


_kept: list[Workers] = []  # of a process, for all its problems


def _some(numbers: range, seed: int, planted: str, until: float) -> Count:
    """The problems of some numbers, in a process of its own."""
    if not _kept:
        _kept.append(Workers())
    count = Count()
    for number in numbers:
        if time.time() < until:
            count.add(solved(seed, number, _kept[0], planted))
    return count


def counts(count: int, seed: int, until: float, processes: int, planted: str = "") -> Iterator[Count]:
    """What came of so many problems, some at a time."""
    parts = [range(first, min(first + 20, count)) for first in range(0, count, 20)]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(partial(_some, seed=seed, planted=planted, until=until), parts)


def text(total: Count, seed: int) -> str:
    """The page."""
    done, gaps = sum(total.sorts.values()), np.sort(total.gaps)
    sorts = ", ".join(f"{total.sorts[sort]} {sort}" for sort in sorted(total.sorts))
    refuted = f"**{len(total.refuted)} claims refuted**" if total.refuted else "No claim refuted"
    about = (
        f"{done} random problems of 2 to 5 ranks (seed {seed}; {sorts}), each solved by constraint programming over its"
        f" sends, which shares no code with bounds or engines; of {total.proved} the solver proved that no schedule of"
        " these chunks is faster. Each schedule is replayed and timed by our clock, which agreed. Besides at the size"
        " that was solved, every claim is held against the schedule's time at four others. Of networks whose links"
        " share nothing the bound for large messages is held against the least that a packing of trees takes"
        f" ({total.slopes}). Windows of time are looked for in one problem of {ONE_OF}."
    )
    figure = f"{refuted}. Time / bound: median {gaps[len(gaps) // 2]:.3f}, least {gaps[0]:.9f}."
    rows = [[kind, total.claims[kind], total.met[kind], total.seen[kind]] for kind in KINDS if total.claims[kind]]
    rows.append(["µs a byte of large messages", total.slopes, total.slopes_met, total.slopes_met])
    titles = ("kind of bound", "claims", "met by a schedule", "refuted if they were 1 % higher")
    parts = [about, figure, grid(titles, rows), *(f"- {line}" for line in total.refuted)]
    return page(__file__, "Bounds against small problems solved exactly", parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--count", type=int, default=20_000, help="problems that are drawn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=120.0, help="after which no further one is begun")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--one", type=int, metavar="NUMBER", help="this problem only, and no table")
    parser.add_argument("--plant", choices=list(KINDS), help="raise this kind's claims by 1 %%, and see them refuted")
    asked = parser.parse_args()
    total, until = Count(), time.time() + 60 * asked.minutes
    if asked.one is not None:
        with Workers() as workers:
            total = solved(asked.seed, asked.one, workers, asked.plant or "")
        print(drawn(asked.seed, asked.one), *total.refuted, sep="\n")
        raise SystemExit(bool(total.refuted))
    for count in counts(asked.count, asked.seed, until, asked.processes, asked.plant or ""):
        total.add(count)
        for line in count.refuted:
            print(line, flush=True)
    if asked.plant:
        print(
            f"{asked.plant} raised by 1 %: {len(total.refuted)} claims refuted of {sum(total.sorts.values())} problems"
        )
    else:
        write(__file__, text(total, asked.seed))
    if total.refuted:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
