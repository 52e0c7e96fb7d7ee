"""Measure how near the optimum answers are on questions that nobody tuned for, drawn by a seed.

    python -m results.scripts.census [--count N] [--seed N] [--every N] [--only NUMBER …] [--budget S] [--dgx1-groups]

makes census.md. The questions are about machines, clusters of two nodes, tori, meshes, hypercubes and random irregular
networks; random groups, half of them with all other ranks as relays; six collectives and five sizes. `--dgx1-groups`
asks instead for all groups of a DGX-1 up to its symmetry, with relays (census-dgx1.md). With `--every 4` that takes
some ten minutes.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from results.measuring.measure import TABLES, grid, page, save, write
from synth.app.synthesis import synthesize
from synth.engines.registry import AUTO, processes
from synth.model.problem import make_problem
from synth.model.text import format_size
from synth.search.statement import next_minute
from synth.solvers.workers import Workers
from topologies.errors import InputError
from topologies.load import load
from topologies.network import network
from topologies.symmetry.automorphism import automorphisms
from topologies.topology import Topology

COLLECTIVES = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce")
SIZES = (1 << 10, 64 << 10, 1 << 20, 16 << 20, 1 << 30)
MACHINES = ("dgx1", "dgx-a100", "dgx-h100", "ndv2", "mi250", "mi300x", "z52", "gaudi3")
CLUSTERS = ("dgx-a100:2", "dgx-h100:2", "ndv2:2", "mi250:2")
GRIDS = ("torus:3x3", "torus:4x4", "torus:2x3x2", "mesh:3x3", "mesh:3x4", "mesh:2x5", "mesh:4x4", "ring:7", "fattree:4")
CUBES = ("hypercube:3", "hypercube:4")
RANDOM = "random"  # The network is drawn by the number of the question.
_MOST_RANKS = 12  # Largest group.
_NEAR = 1.05


@dataclass(frozen=True)
class Question:
    """A question of the census.

    Attributes:
        number: Number of the question.
        seed: Seed of all questions.
        spec: Topology as for `--topo`, or "random": a random network of the question's number.
        group: Ranks of the process group.
        relay: "none", or "all" if all other ranks may relay.
        collective: Name of the collective.
        size: Message size in bytes.
    """

    number: int
    seed: int
    spec: str
    group: tuple[int, ...]
    relay: str
    collective: str
    size: int

    @property
    def topology(self) -> Topology:
        """Return the topology of the question."""
        return random_network(self.seed, self.number) if self.spec == RANDOM else load(self.spec)

    @property
    def name(self) -> str:
        """Return the topology, group and relays in words: `dgx1 {0,3,5} + relays`."""
        relays = " + relays" if self.relay == "all" else ""
        return f"{self.spec} {{{','.join(map(str, self.group))}}}{relays}"


@dataclass(frozen=True)
class Answered:
    """The answer to a question.

    Attributes:
        question: The question.
        gap: Time / bound.
        engine: Engine that found the algorithm.
        proof: Kind of bound that proves the gap.
        seconds: Wall time of the search in seconds.
        moved: What improved last (algorithm or bound), as `next_minute` names it.
    """

    question: Question
    gap: float
    engine: str
    proof: str
    seconds: float
    moved: str


def random_network(seed: int, number: int) -> Topology:
    """Return 6 to 12 ranks, joined both ways by a random tree and up to as many further links.

    Bandwidths and latencies differ.
    """
    rng = random.Random(f"{seed} network {number}")
    ranks = rng.randint(6, 12)
    pairs = {(rng.randrange(i), i) for i in range(1, ranks)}
    while len(pairs) < 2 * ranks - 2 and len(pairs) < ranks * (ranks - 1) // 2:
        a, b = sorted(rng.sample(range(ranks), 2))
        pairs.add((a, b))
    ends = np.array(sorted(pairs)).T
    gbs = np.array([rng.choice((12.5, 25.0, 50.0, 100.0)) for _ in range(ends.shape[1])])
    alpha = np.array([rng.choice((0.5, 0.7, 1.0, 2.0)) for _ in range(ends.shape[1])])
    src, dst = np.concatenate([ends, ends[::-1]], axis=1)
    return Topology(f"random-{seed}-{number}", ranks, (), src, dst, np.tile(alpha, 2), np.tile(gbs, 2))


def question(seed: int, number: int) -> Question:
    """Return the question of a number; sizes and collectives rotate with the number, all else is random."""
    rng = random.Random(f"{seed} question {number}")
    kinds: tuple[tuple[str, ...], ...] = (MACHINES, CLUSTERS, GRIDS, CUBES, (RANDOM,), (RANDOM,))
    spec = rng.choice(rng.choice(kinds))
    drawn = Question(number, seed, spec, (), "none", COLLECTIVES[number // len(SIZES) % len(COLLECTIVES)],
                     SIZES[number % len(SIZES)])  # fmt: skip
    topology = drawn.topology
    size = rng.randint(min(3, topology.nranks), min(topology.nranks, _MOST_RANKS))
    group = tuple(sorted(rng.sample(range(topology.nranks), size)))
    relay = rng.choice(("none", "all")) if size < topology.nranks else "none"
    try:
        make_problem(topology, drawn.collective, group, () if relay == "none" else _others(topology, group))
    except InputError:
        relay = "all"  # The group is not connected without relays.
    return Question(number, seed, spec, group, relay, drawn.collective, drawn.size)


def _others(topology: Topology, group: Sequence[int]) -> list[int]:
    return [rank for rank in range(topology.nranks) if rank not in group]


def groups_up_to_symmetry(topo: str, least: int = 2) -> list[tuple[int, ...]]:
    """Return one process group of each kind, where a symmetry of the machine maps groups of one kind to each other."""
    topology = load(topo)
    ranks = tuple(range(topology.nranks))
    symmetries = [p.tolist() for p in automorphisms(network(topology, ranks), [ranks])]
    representatives: list[tuple[int, ...]] = []
    for size in range(least, topology.nranks + 1):
        images: set[tuple[int, ...]] = set()
        for group in combinations(ranks, size):
            if group not in images:
                images.update(tuple(sorted(symmetry[rank] for rank in group)) for symmetry in symmetries)
                representatives.append(group)
    return representatives


def dgx1_questions() -> list[Question]:
    """Return all groups of a DGX-1 up to its symmetry, with relays and at every size; the collectives rotate.

    The list is shuffled. In order, each fourth question would be of every second collective only.
    """
    groups = groups_up_to_symmetry("dgx1")
    groups_and_sizes = [(group, size) for group in groups for size in SIZES]
    questions = [
        Question(number, 0, "dgx1", group, "all" if len(group) < 8 else "none", COLLECTIVES[number % 6], size)
        for number, (group, size) in enumerate(groups_and_sizes)
    ]
    random.Random(0).shuffle(questions)
    return questions


def answered(question: Question, budget_s: float, workers: Workers) -> Answered:
    """Return the answer to a question; an error is a defect and ends the script."""
    begun = time.monotonic()
    answer = synthesize(
        question.collective,
        question.topology,
        question.group,
        relay=question.relay,
        size=question.size,
        budget=budget_s,
        workers=workers,
    )
    result = answer.result
    (served,) = result.ranges
    row = answer.algorithms[0]
    proof, moved = result.bound.at(question.size)[1].kind, next_minute(result, answer.algorithms)["moved"]
    return Answered(question, row["gap"], served.algorithm.engine, proof, time.monotonic() - begun, moved)


def summary(name: str, answers: Sequence[Answered]) -> tuple[str, ...]:
    """Return a row: median, p90, p95 and largest gap, and the share of gaps near 1."""
    gaps = sorted(a.gap for a in answers)

    def part(share: float) -> str:
        """Return the gap that a share of the answers does not exceed."""
        return f"{gaps[min(len(gaps) - 1, int(share * len(gaps)))]:.3f}"

    near = sum(gap <= _NEAR for gap in gaps) / len(gaps)
    return (
        name,
        str(len(gaps)),
        f"{statistics.median(gaps):.3f}",
        part(0.9),
        part(0.95),
        f"{gaps[-1]:.3f}",
        f"{near:.0%}",
    )


def table(answers: Sequence[Answered], key: Callable[[Answered], str], title: str) -> str:
    """Return the table of summaries of the answers by a key; the last row is of all answers."""
    groups: dict[str, list[Answered]] = {}
    for answered in answers:
        groups.setdefault(key(answered), []).append(answered)
    rows = [summary(name, members) for name, members in groups.items()]
    titles = (title, "questions", "median gap", "p90", "p95", "largest", f"within {_NEAR:g}")
    return grid(titles, [*rows, summary("all", answers)])


def worst(answers: Sequence[Answered], count: int = 10) -> str:
    """Return the table of the largest gaps, with the algorithm and the bound of each."""
    first = sorted(answers, key=lambda a: -a.gap)[:count]
    titles = ("number", "question", "collective", "size", "gap", "engine", "bound", "improved last")
    return grid(titles, [
        (a.question.number, a.question.name, a.question.collective, format_size(a.question.size), f"{a.gap:.3f}",
         a.engine, a.proof, a.moved) for a in first
    ])  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Ask all questions, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--count", type=int, default=240, help="number of random questions")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each N-th question only")
    parser.add_argument("--only", type=int, nargs="+", metavar="NUMBER")
    parser.add_argument("--budget", type=float, default=8.0, help="seconds for each question")
    parser.add_argument("--dgx1-groups", action="store_true", help="all groups of a DGX-1 instead")
    parser.add_argument("--dry", action="store_true", help="write no table")
    options = parser.parse_args(arguments)
    questions = (
        dgx1_questions() if options.dgx1_groups else [question(options.seed, number) for number in range(options.count)]
    )
    chosen = [q for q in questions[:: options.every] if not options.only or q.number in options.only]
    answers: list[Answered] = []
    with Workers(processes(AUTO)) as workers:
        for query in chosen:
            answers.append(a := answered(query, options.budget, workers))
            print(f"{query.number:4d} {a.gap:.3f} {a.seconds:5.1f} s {query.collective} {format_size(query.size)}"
                  f" {query.name}: {a.engine}, {a.proof} {a.moved}", flush=True)  # fmt: skip
    kind = "groups of a DGX-1 up to its symmetry" if options.dgx1_groups else f"questions of seed {options.seed}"
    over = sum(a.seconds > options.budget * _NEAR for a in answers)
    parts = [
        f"{len(answers)} of {len(questions)} {kind}, with a budget of {options.budget:g} s each. A gap is time /"
        f" proved bound. {over} answers took more than {_NEAR:g} × the budget.",
        table(answers, lambda a: format_size(a.question.size), "size"),
        table(sorted(answers, key=lambda a: a.question.collective), lambda a: a.question.collective, "collective"),
        table(answers, lambda a: "with relays" if a.question.relay == "all" else "without relays", "relays"),
        "The largest gaps:",
        worst(answers),
    ]
    text = page(__file__, "Gaps on questions drawn by a seed", parts)
    if options.dry:
        print(text)
    elif options.dgx1_groups:
        save(TABLES / "census-dgx1.md", text)
    else:
        write(__file__, text)


if __name__ == "__main__":
    main()
