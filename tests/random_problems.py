"""Random topologies, problems and schedules, each drawn from a random.Random, so that a seed reproduces it."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from synth.engines.route import quick_schedule
from synth.model.collective import Collective, uneven
from synth.model.pattern import read_pattern
from synth.model.problem import Problem, make_problem
from synth.model.schedule import Schedule
from synth.phases.prune import prune_copies
from synth.phases.reversal import reverse, reversible, unreverse
from synth.phases.split import join, split
from topologies.errors import InputError
from topologies.load import load
from topologies.topology import Limit, Topology

SPECS = (
    "ring:5", "ring:2", "line:4", "full:4", "mesh:2x3", "torus:3x3", "hypercube:3", "star:4", "fattree:3x2x2",
    "dragonfly:3x2x2", "dgx1", "ndv2", "mi250", "ndv2:2",
)  # fmt: skip


# Names that the registry must hold; draws from a seed depend on their order.
NAMED = (
    "allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce", "scatter", "gather", "sendrecv",
    "alltonext",
)  # fmt: skip
UNEVEN = ("allgatherv", "reducescatterv", "gatherv", "scatterv")
NAMES = (*NAMED, "alltoallv", *UNEVEN)
ROOTED = ("broadcast", "reduce", "scatter", "gather", "gatherv", "scatterv")
TRANSLATABLE = ("allgather", "alltoall", "reducescatter", "allreduce")


def random_topology(rng: random.Random, most: int = 6) -> Topology:
    """Return ranks and switches on a directed ring in random order, with chords and with limits over some links."""
    nranks = rng.randint(2, most)
    nswitches = rng.choice((0, 0, 0, 1, 2))
    order = list(range(nranks + nswitches))
    rng.shuffle(order)
    pairs = set(zip(order, order[1:] + order[:1], strict=True))
    for _ in range(rng.randint(0, 2 * len(order))):
        u, v = rng.sample(order, 2)
        pairs.add((u, v))
        if rng.random() < 0.5:
            pairs.add((v, u))
    src, dst = np.array(sorted(pairs)).T
    gbs = np.array([rng.choice((1.0, 10.0, 12.5, 25.0, 50.0, 50.0, 300.0)) for _ in src])
    alpha = np.array([rng.choice((0.0, 0.1, 0.7, 0.7, 3.0)) for _ in src])
    limits = []
    for i in range(rng.choice((0, 0, 1, 2, 3))):
        limited_links = np.array(sorted(rng.sample(range(len(src)), rng.randint(1, len(src)))))
        limits.append(
            Limit(f"limit{i}", limited_links, float(gbs[limited_links].sum()) * rng.choice((0.2, 0.4, 0.7, 1.0)))
        )
    nodes = np.array([rng.randrange(min(2, nranks)) for _ in range(nranks)])
    names = tuple(f"s{i}" for i in range(nswitches))
    return Topology("random", nranks, names, src, dst, alpha, gbs, tuple(limits), nodes=nodes)


def random_pattern_text(rng: random.Random, nranks: int) -> str:
    """Return the text of a random pattern file."""
    lines = ['name = "mine"', f"ranks = {nranks}"]
    for i in range(rng.randint(1, 4)):
        holders = rng.sample(range(nranks), rng.randint(1, nranks))
        goals = rng.sample(range(nranks), rng.randint(1, nranks))
        reduces = rng.random() < 0.5
        lines += ["[[chunk]]", f"from = {holders}", f"to = {goals}", f"reduce = {str(reduces).lower()}"]
        if reduces and rng.random() < 0.4:
            lines.append(f"of = {rng.sample(holders, rng.randint(1, len(holders)))}")
        if i == 0:  # At least one chunk moves.
            lines[2:] = ["[[chunk]]", f"from = [{holders[0]}]", f"to = [{(holders[0] + 1) % nranks}]"]
        if rng.random() < 0.5:
            lines.append(f"weight = {rng.choice((1, 2, 0.5, 7))}")
        if rng.random() < 0.5:
            lines.append(f"count = {rng.randint(1, 3)}")
    return "\n".join(lines) + "\n"


def random_collective(rng: random.Random, nranks: int, folder: Path | None) -> str | Collective:
    """Return a name of a collective, one with blocks of random sizes, or a pattern written into the folder."""
    if folder is not None and rng.random() < 0.2:
        path = folder / "pattern.toml"
        path.write_text(random_pattern_text(rng, nranks))
        return read_pattern(path)
    name = rng.choice(NAMES)
    if name in UNEVEN:
        blocks = [rng.choice((0, 1, 5, 1000)) for _ in range(nranks)]
        blocks[1] = 7
        return uneven(name, blocks)
    if name != "alltoallv":
        return name
    sizes = [[rng.choice((0, 1, 5, 1000)) for _ in range(nranks)] for _ in range(nranks)]
    sizes[0][1] = 7
    return uneven("alltoallv", sizes)


def random_problem(rng: random.Random, folder: Path | None = None, name: str | None = None) -> Problem:
    """Return a problem of a collective over a random group, with the relays that it needs and perhaps more.

    Args:
        rng: Draws the problem.
        folder: Folder for a pattern file; None: no patterns.
        name: Name of the collective; None: a random one.
    """
    topology = load(rng.choice(SPECS)) if rng.random() < 0.4 else random_topology(rng)
    members = rng.sample(range(topology.nranks), rng.randint(2, min(topology.nranks, 6)))
    collective = name if name is not None else random_collective(rng, len(members), folder)
    other_ranks = [r for r in range(topology.nranks) if r not in members]
    # A sum that several ranks want is formed at one of them, so they must reach one another.
    relays = (
        other_ranks if isinstance(collective, Collective) else rng.sample(other_ranks, rng.randint(0, len(other_ranks)))
    )
    root = rng.choice(members) if collective in ROOTED else None
    chunks = rng.choice((1, 1, 2, 3)) if len(members) < 6 else 1
    try:
        return make_problem(topology, collective, members, relays, chunks, root)
    except InputError:
        return make_problem(topology, collective, members, other_ranks, chunks, root)


def random_symmetric(rng: random.Random) -> Topology:
    """Return a ring and a few orbits of links under a rotation, with limits that may be too small over some."""
    n = rng.choice((4, 6, 8, 9))
    unit = rng.choice([d for d in range(1, n) if n % d == 0])
    rates = {(r, (r + 1) % n): 20.0 for r in range(n)}
    orbits = []
    for _ in range(rng.randint(1, 3)):
        u, v = rng.sample(range(n), 2)
        orbits.append([((u + unit * i) % n, (v + unit * i) % n) for i in range(n // unit)])
        rates.update(dict.fromkeys(orbits[-1], rng.choice((10.0, 20.0, 300.0))))
    pairs = sorted(rates)
    limits = [
        Limit(
            f"limit{i}",
            np.array(sorted({pairs.index(p) for p in orbit})),
            rng.choice((10.0, 20.0, 40.0, 90.0)),
        )
        for i, orbit in enumerate(orbits)
        if rng.random() < 0.5
    ]
    src, dst = np.array(pairs).T
    gbs = np.array([rates[p] for p in pairs])
    alpha = np.full(len(pairs), rng.choice((0.0, 0.7)))
    return Topology("random", n, (), src, dst, alpha, gbs, tuple(limits), nodes=np.zeros(n, dtype=np.int64))


def random_large(rng: random.Random, folder: Path) -> Problem:
    """Return a problem of up to nine ranks and five chunks a block; half of them are random patterns."""
    topology = load(rng.choice(SPECS)) if rng.random() < 0.3 else random_topology(rng, 9)
    members = rng.sample(range(topology.nranks), rng.randint(2, min(topology.nranks, 9)))
    other_ranks = [r for r in range(topology.nranks) if r not in members]
    chunks = rng.randint(1, 5) if len(members) < 7 else rng.randint(1, 2)
    if rng.random() < 0.5:
        path = folder / "pattern.toml"
        path.write_text(random_pattern_text(rng, len(members)))
        return make_problem(topology, read_pattern(path), members, other_ranks).with_chunks(chunks)
    collective = random_collective(rng, len(members), None)
    if isinstance(collective, Collective):
        return make_problem(topology, collective, members, other_ranks).with_chunks(chunks)
    root = rng.choice(members) if collective in ROOTED else None
    relays = rng.sample(other_ranks, rng.randint(0, len(other_ranks)))
    try:
        return make_problem(topology, collective, members, relays, chunks, root)
    except InputError:
        return make_problem(topology, collective, members, other_ranks, chunks, root)


def answered(problem: Problem, size_bytes: float) -> Schedule:
    """Return the constructive engine's schedule, from both phases where the collective reduces."""
    if not problem.collective.reducing:
        return quick_schedule(problem, size_bytes)
    if reversible(problem.collective):
        return unreverse(problem, quick_schedule(reverse(problem), size_bytes))
    gathering, spreading = split(problem)
    first = unreverse(gathering, quick_schedule(reverse(gathering), size_bytes))
    return join(first, prune_copies(spreading, quick_schedule(spreading, size_bytes)))


def shares_nothing(problem: Problem) -> bool:
    """Return whether no link shares a port or limit, and no pair of ranks has two links."""
    net = problem.network
    pairs = net.src * net.nranks + net.dst
    return bool(np.bincount(net.uses_idx).max() == 1) and len(np.unique(pairs)) == net.nlinks
