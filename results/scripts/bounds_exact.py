"""Check every bound against random small problems that another model solves exactly: is any claim refuted?

    python -m results.scripts.bounds_exact [--count 20000] [--seed 0] [--minutes M] [--processes N] [--one NUMBER]
                                           [--plant KIND]

makes bounds_exact.md. Problems have 2 to 5 ranks and are drawn by seed and number: directed rings through ranks and
switches with links across, limits over some links, and groups with relays. They cover all collectives and random
patterns, 1 to 3 chunks a block, and message sizes that are ruled by latency or by bandwidth. Some have an executor's
costs, and some a switch that multicasts and reduces. Each refuted claim is printed with the number of its problem;
`--one` solves that problem again.
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
from synth.bounds.registry import BOUND_KINDS
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

CHUNK_US = 12.0  # The smallest chunk holds a link of 1 GB/s for so long; every rate below divides it.
RATES = (1.0, 2.0, 3.0, 4.0, 6.0, 12.0)
MOST_SENDS = 160  # Chunks × carriers; twice as many for reducing collectives.
ROUND_OFF = 1 + 1e-9
PLANTED = 1.01  # A planted claim is raised by this factor, to see it refuted.
COARSE = replace(DEFAULT, window_slots=(8, 20), window_tries=2)  # A fault shows with few slots too.
SEARCH_S = 5.0
PRETENDED = 1.1  # Windows of time search below the exact time × this factor, to provoke claims that are too high.
ONE_OF = 2  # One problem in so many is bounded by windows of time too, which take longer than all other methods.
OTHER_SIZES = (0.01, 0.3, 5.0, 1000.0)  # Multiples of the message size at which claims are compared too.


@dataclass(frozen=True)
class Drawn:
    """A problem with one chunk a block, as it was drawn.

    Attributes:
        problem: The problem.
        chunks: Number of chunks a block that its schedules have.
        size_bytes: Message size in bytes.
        sort: How it was drawn: plain, relays, pattern, costs or switch ops.
    """

    problem: Problem
    chunks: int
    size_bytes: float
    sort: str


@dataclass
class Count:
    """The results of a number of problems.

    Attributes:
        sorts: Number of problems of each sort.
        claims: Number of claims of each kind of bound at the solved size.
        met: Number of claims of each kind that the best schedule meets.
        seen: Number of claims of each kind that would be refuted if they were 1 % higher.
        gaps: Time / bound at the solved size.
        slopes: Number of bounds on very large messages that were checked.
        slopes_met: Number of them that a packing of trees meets.
        proved: Problems for which the solver proved that no schedule of these chunks is faster.
        refuted: One line for each refuted claim.
        skipped: Problems that were too large or not in whole units.
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

    def add(self, addend: Count) -> None:
        """Add the results of another count."""
        for name, value in vars(addend).items():
            own = getattr(self, name)
            if isinstance(own, Counter):
                own.update(value)
            else:
                setattr(self, name, own + value)


def drawn(seed: int, number: int) -> Drawn | None:
    """Return the problem of a number; None if it is invalid or too large."""
    rng = random.Random(f"{seed} {number}")
    sort = rng.choices(("plain", "relays", "pattern", "costs", "switch ops"), (4, 3, 2, 2, 2))[0]
    topology = _star(rng) if sort == "switch ops" else _network(rng)
    if sort == "costs":
        topology = with_costs(topology, _costs(rng))
    most_members = topology.nranks if sort != "relays" else max(2, topology.nranks - 1)
    members = rng.sample(
        range(topology.nranks), rng.randint(2, most_members) if sort in ("relays", "costs") else most_members
    )
    outsiders = [r for r in range(topology.nranks) if r not in members]
    relays = rng.sample(outsiders, rng.randint(0, len(outsiders)))
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
    """Return a random network: a directed ring through ranks and switches, more links across, and limits over some."""
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
        limited_links = np.array(sorted(rng.sample(range(len(src)), rng.randint(1, len(src)))))
        limits.append(
            Limit(
                f"limit{i}",
                limited_links,
                max(1.0, round(float(gbs[limited_links].sum()) * rng.choice((0.3, 0.5, 0.8)))),
            )
        )
    names = tuple(f"s{i}" for i in range(nswitches))
    nodes = np.array([rng.randrange(min(2, nranks)) for _ in range(nranks)])
    return Topology("random", nranks, names, src, dst, alpha, gbs, tuple(limits), nodes=nodes)


def _star(rng: random.Random) -> Topology:
    """Return ranks on a switch that multicasts and reduces; some pairs have direct links."""
    ranks = rng.randint(3, 4)
    pairs = [(r, ranks) for r in range(ranks)] + [(ranks, r) for r in range(ranks)]
    pairs += [(a, b) for a in range(ranks) for b in range(ranks) if a != b and rng.random() < 0.2]
    src, dst = np.array(pairs).T
    gbs = np.array([rng.choice(rng.choice(((2.0,), (1.0, 2.0, 4.0)))) for _ in pairs])
    alpha = np.array([float(rng.choice((0, 1, 5))) for _ in pairs])
    ops = SwitchOps("w", rng.choice((0.5, 1.0, 1.0)), rng.choice((0.5, 1.0, 1.0)))
    return Topology("star", ranks, ("w",), src, dst, alpha, gbs, switch_ops=(ops,))


def _costs(rng: random.Random) -> Costs:
    """Return two protocols: one with low latency for small messages, and one that uses the whole bandwidth."""
    quick = Protocol(float(rng.choice((0, 3))), latency_us={"other": 1.0}, efficiency={"other": 0.5})
    whole = Protocol(
        float(rng.choice((0, 6))), latency_us={"other": 4.0}, gap_us={"other": float(rng.choice((0, 1, 3)))}
    )
    return Costs({"LL": quick, "Simple": whole}, "drawn at random")


def bounded(case: Drawn, best: Exact, algorithm: Algorithm, workers: Workers, *, windows: bool) -> Bound:
    """Return the bound of a problem under one protocol, with the witnesses of all methods that find bounds.

    Args:
        case: The drawn problem.
        best: Its exact solution.
        algorithm: The best schedule.
        workers: Processes of the solvers.
        windows: If True, also search for witnesses by windows of time.
    """
    problem, size = case.problem, case.size_bytes
    bound = prove(problem)
    loads = partial(resource_loads_us, algorithm.problem, timed(algorithm.problem, algorithm.schedule, size))
    for better in tighten(
        problem, bound, loads, size, np.inf, workers, now() + SEARCH_S, effort=TighteningEffort()
    ):  # fmt: skip
        bound = better
    if windows:
        # Pretend that the best known time is longer, so that a faulty search would claim too much.
        for better in refute(problem, bound, size, best.time_us * PRETENDED, workers, now() + SEARCH_S, COARSE):
            bound = better
    return bound


def solved(seed: int, number: int, workers: Workers, planted: str = "") -> Count:
    """Solve one problem exactly and count which claims of its bounds hold.

    Args:
        seed: Seed of all problems.
        number: Number of the problem.
        workers: Processes of the solvers.
        planted: Kind of bound whose claims are raised by 1 %, to see that they are refuted.
    """
    count, case = Count(), drawn(seed, number)
    if case is None:
        count.skipped = 1
        return count
    times: list[float] = []
    names = case.problem.protocols or [""]
    for name in names:
        under_protocol = replace(case, problem=case.problem.under(name)) if name else case
        try:
            refined = under_protocol.problem.with_chunks(under_protocol.chunks)
            best = exact(refined, under_protocol.size_bytes)
        except NotWhole:
            best = None
        if best is None or (not len(best.schedule)):
            count.skipped = 1
            return count
        algorithm = Algorithm(refined, best.schedule, "exact")
        replayed = algorithm.time_us(under_protocol.size_bytes)
        if replayed > best.time_us * (1 + 1e-9) or (best.proved and replayed < best.time_us * (1 - 1e-9)):
            count.refuted.append(f"{number}: the replay takes {replayed:.6g} µs, the exact model {best.time_us:.6g} µs")
        bound = bounded(under_protocol, best, algorithm, workers, windows=number % ONE_OF == 0)
        _compare(count, number, under_protocol, bound, algorithm, planted)
        times.append(best.time_us)
        count.proved += best.proved and name == names[0]
    claim = prove(case.problem).at(case.size_bytes)[0]
    if claim > min(times) * ROUND_OFF:
        count.refuted.append(
            f"{number}: the claim over all protocols is {claim:.6g} µs, a schedule takes {min(times):.6g} µs"
        )
    count.sorts[case.sort] += 1
    return count


def _compare(count: Count, number: int, case: Drawn, bound: Bound, algorithm: Algorithm, planted: str) -> None:
    """Check every witness against the schedule at every size, and the bound for large messages against packed trees."""
    factors = dict.fromkeys(BOUND_KINDS, 1.0) | ({planted: PLANTED} if planted else {})
    for size in (case.size_bytes, *(case.size_bytes * part for part in OTHER_SIZES)):
        time_us = algorithm.time_us(size)
        for kind, factor in factors.items():
            claimed = max((w.at(size) * factor for w in bound.witnesses if w.kind == kind), default=None)
            if claimed is None:
                continue
            if claimed > time_us * ROUND_OFF:
                question = (
                    f"{case.problem.collective.name}, {case.problem.nranks} ranks, {size:.6g} bytes ({case.sort})"
                )
                count.refuted.append(
                    f"{number}: {kind} claims {claimed:.8g} µs, a schedule takes {time_us:.8g} µs: {question}"
                )
            if size == case.size_bytes:
                count.claims[kind] += 1
                count.met[kind] += claimed * ROUND_OFF**1000 >= time_us
                count.seen[kind] += claimed * PLANTED > time_us * ROUND_OFF
        if size == case.size_bytes:
            count.gaps.append(time_us / bound.at(size)[0])
    packed = packed_us_per_byte(case.problem)
    if packed is not None:
        claimed = bound.per_byte_us
        count.slopes += 1
        count.slopes_met += claimed * (1 + 1e-6) >= packed
        if claimed > packed * (1 + 1e-7):
            count.refuted.append(
                f"{number}: {claimed:.8g} µs a byte claimed of large messages, a packing of trees takes {packed:.8g} µs"
            )


_process_workers: list[Workers] = []  # The solvers' processes, shared by all problems of this process.


def _count_range(numbers: range, seed: int, planted: str, until: float) -> Count:
    """Count the results of a range of problems in this process."""
    if not _process_workers:
        _process_workers.append(Workers())
    count = Count()
    for number in numbers:
        if time.time() < until:
            count.add(solved(seed, number, _process_workers[0], planted))
    return count


def counts(count: int, seed: int, until: float, processes: int, planted: str = "") -> Iterator[Count]:
    """Yield the counts of all problems, in parts of 20 that separate processes solve."""
    parts = [range(first, min(first + 20, count)) for first in range(0, count, 20)]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(partial(_count_range, seed=seed, planted=planted, until=until), parts)


def text(total: Count, seed: int) -> str:
    """Return the page."""
    nproblems, gaps = sum(total.sorts.values()), np.sort(total.gaps)
    sorts = ", ".join(f"{total.sorts[sort]} {sort}" for sort in sorted(total.sorts))
    refuted = f"**{len(total.refuted)} claims refuted**" if total.refuted else "No claim refuted"
    about = (
        f"{nproblems} random problems of 2 to 5 ranks (seed {seed}; {sorts}). Constraint programming over the sends"
        f" solves each one; it shares no code with bounds or engines. For {total.proved} of them the solver proved"
        " that no schedule of these chunks is faster. Each schedule is replayed, and our timing agrees with the"
        " solver's. Every claim is compared with the schedule's time at the solved size and at four other sizes. On"
        " networks whose links share nothing, the bound for large messages is compared with the least time that a"
        f" packing of trees takes ({total.slopes} problems). One problem of {ONE_OF} is bounded by windows of time too."
    )
    figure = f"{refuted}. Time / bound has the median {gaps[len(gaps) // 2]:.3f} and the minimum {gaps[0]:.9f}."
    rows = [[kind, total.claims[kind], total.met[kind], total.seen[kind]] for kind in BOUND_KINDS if total.claims[kind]]
    rows.append(["µs a byte of large messages", total.slopes, total.slopes_met, total.slopes_met])
    titles = ("kind of bound", "claims", "met by a schedule", "refuted if 1 % higher")
    parts = [about, figure, grid(titles, rows), *(f"- {line}" for line in total.refuted)]
    return page(__file__, "Bounds against small problems solved exactly", parts)


def main() -> None:
    """Solve the problems, and write the table; exit with 1 if a claim is refuted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--count", type=int, default=20_000, help="number of random problems")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=120.0, help="time limit; no problem is begun after it")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--one", type=int, metavar="NUMBER", help="solve this problem only, and write no table")
    parser.add_argument(
        "--plant", choices=list(BOUND_KINDS), help="raise the claims of this kind by 1 %%, to see them refuted"
    )
    options = parser.parse_args()
    total, until = Count(), time.time() + 60 * options.minutes
    if options.one is not None:
        with Workers() as workers:
            total = solved(options.seed, options.one, workers, options.plant or "")
        print(drawn(options.seed, options.one), *total.refuted, sep="\n")
        raise SystemExit(bool(total.refuted))
    for count in counts(options.count, options.seed, until, options.processes, options.plant or ""):
        total.add(count)
        for line in count.refuted:
            print(line, flush=True)
    if options.plant:
        print(
            f"{options.plant} raised by 1 %: {len(total.refuted)} claims refuted in"
            f" {sum(total.sorts.values())} problems"
        )
    else:
        write(__file__, text(total, options.seed))
    if total.refuted:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
