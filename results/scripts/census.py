"""Measure how near the optimum answers are on questions that nobody tuned for, drawn by a seed.

    python -m results.scripts.census [--count N] [--seed N] [--every N] [--only NUMBER …] [--budget S]
                                     [--clusters | --dgx1-groups | --uneven] [--costs NAME] [--busy]

makes census.md. Each question is a whole command in a fresh process with the default target and costs, and its
gap is that of the file that the command wrote. The questions are about machines, clusters of two nodes, tori, meshes,
hypercubes and random irregular networks; random groups, half of them with all other ranks as relays; six collectives
and five sizes. `--clusters` asks instead about machines of 2 to 16 nodes and racks of 72, in which every first, second,
fourth or eighth rank takes part (census-clusters.md). `--dgx1-groups` asks for all groups of a DGX-1 up to its
symmetry, with relays (census-dgx1.md). `--uneven` asks for uneven all-gathers and reduce-scatters of parameters that
one rank each owns (census-uneven.md). `--busy` keeps one core busy with another process meanwhile (a table with
`-busy` in its name). The table says how many of the questions were asked.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from results.measuring.layouts import owner_shards
from results.measuring.measure import TABLES, geometric_mean, grid, page, run, save, synth
from synth.baselines.vendors import LIBRARIES
from synth.model.problem import make_problem
from synth.model.text import format_size
from topologies.arrays import strongly_connected
from topologies.errors import InputError
from topologies.load import load
from topologies.network import network
from topologies.symmetry.automorphism import automorphisms
from topologies.text.writer import to_toml
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
# Clusters, whose groups are every first, second, fourth or eighth rank.
NODES = ("dgx-a100", "dgx-h100", "dgx2", "ndv2", "mi300x", "p4d.24xlarge", "p5.48xlarge", "dgx-b200")
NODE_COUNTS = (2, 3, 4, 6, 8, 12, 16)
RACKS = ("gb200-nvl72", "gb300-nvl72")
STRIDES = (1, 2, 4, 8)
CLUSTER_COLLECTIVES = COLLECTIVES[:5]
CLUSTER_SIZES = (8 << 10, 64 << 10, 512 << 10, 4 << 20, 32 << 20, 256 << 20)
UNEVEN_TOPOLOGIES = ("dgx-h100", "dgx-h100:4", "torus:4x4", "dgx1")
UNEVEN_COLLECTIVES = ("allgatherv", "reducescatterv")
_SPARE_S = 60.0  # Seconds after the budget when a command counts as one without an answer.


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
        sizes: Bytes of the block of each rank; empty where blocks are equal.
        layout: What the sizes are, in words.
    """

    number: int
    seed: int
    spec: str
    group: tuple[int, ...]
    relay: str
    collective: str
    size: int
    sizes: tuple[int, ...] = ()
    layout: str = ""

    @property
    def topology(self) -> Topology:
        """Return the topology of the question."""
        return random_network(self.seed, self.number) if self.spec == RANDOM else load(self.spec)

    @property
    def name(self) -> str:
        """Return the topology, group and relays in words: `dgx1 {0,3,5} + relays`; or the topology and the layout."""
        if self.layout:
            return f"{self.spec}, {self.layout}"
        relays = " + relays" if self.relay == "all" else ""
        return f"{self.spec} {{{','.join(map(str, self.group))}}}{relays}"


@dataclass(frozen=True)
class Answered:
    """The answer to a question.

    Attributes:
        question: The question.
        gap: Time of the file's program / bound; of the schedule where there is no file; inf without an answer.
        vs_nccl: NCCL's own time / ours; None where its model does not cover the question.
        engine: Engine that found the algorithm.
        proof: What proves the bound, in words.
        seconds: Wall time of the command in seconds.
        moved: What improved last (algorithm or bound).
        why_no_file: Why there is no file; "" if there is one.
    """

    question: Question
    gap: float
    vs_nccl: float | None
    engine: str
    proof: str
    seconds: float
    moved: str
    why_no_file: str


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


def cluster_question(seed: int, number: int) -> Question:
    """Return the cluster question of a number; sizes and collectives rotate with the number, all else is random."""
    rng = random.Random(f"{seed} cluster question {number}")
    spec = rng.choice(RACKS) if rng.random() < 1 / 5 else f"{rng.choice(NODES)}:{rng.choice(NODE_COUNTS)}"
    stride = rng.choice(STRIDES)
    topology = load(spec)
    group = tuple(range(rng.randrange(stride), topology.nranks, stride))
    collective = CLUSTER_COLLECTIVES[number // len(CLUSTER_SIZES) % len(CLUSTER_COLLECTIVES)]
    net = network(topology, group)
    relay = "none" if strongly_connected(net.nranks, net.src, net.dst) else "all"
    return Question(number, seed, spec, group, relay, collective, CLUSTER_SIZES[number % len(CLUSTER_SIZES)])


def uneven_question(seed: int, number: int) -> Question:
    """Return the uneven question of a number; topologies and collectives rotate with it, the layout is random."""
    spec = UNEVEN_TOPOLOGIES[number % len(UNEVEN_TOPOLOGIES)]
    collective = UNEVEN_COLLECTIVES[number // len(UNEVEN_TOPOLOGIES) % len(UNEVEN_COLLECTIVES)]
    nranks = load(spec).nranks
    layout, sizes = owner_shards(nranks, seed, number)
    return Question(number, seed, spec, tuple(range(nranks)), "none", collective, sum(sizes), sizes, layout)


def answered(question: Question, budget_s: float, costs: str) -> Answered:
    """Return the answer of one command; the script ends if the command fails in any way but by its time."""
    with tempfile.TemporaryDirectory() as folder:
        spec = question.spec
        if spec == RANDOM:
            spec = str(Path(folder) / "network.toml")
            Path(spec).write_text(to_toml(question.topology))
        group = ",".join(map(str, question.group))
        command = synth(
            question.collective, "--topo", spec, "--group", group, "--relay", question.relay, "--size", question.size,
            "--budget", budget_s, "--costs", costs, "--out", Path(folder) / "out", "--cache", "none", "--json",
            *(["--sizes", ",".join(map(str, question.sizes))] if question.sizes else []),
        )  # fmt: skip
        ended = run(command, budget_s + _SPARE_S)
        if ended.code is None:
            return Answered(question, float("inf"), None, "–", "–", ended.seconds, "", "no answer in time")
        if not ended.out:
            sys.exit(f"{question}: exit code {ended.code}\n{ended.err}")
        document = json.loads(ended.out)
        row = next(iter(document["algorithms"]), None)
        if row is None:
            return Answered(question, float("inf"), None, "–", "–", ended.seconds, "", "no algorithm")
        has_file = any(Path(folder, "out").glob("m*/*"))
        why = "" if has_file else str(row["refused"] or document["unsaved"] or "not said")
        vs_nccl = row["libraries"].get("NCCL", {}).get("vs")
        moved = document["next_minute"]["moved"]
        return Answered(question, row["gap"], vs_nccl, row["engine"], row["proof"], ended.seconds, moved, why)


@contextmanager
def busy_core(is_busy: bool) -> Iterator[None]:
    """Keep one core busy with another process for as long as the block runs, if asked to."""
    if not is_busy:
        yield
        return
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


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


def worst(answers: Sequence[Answered], count: int = 12) -> str:
    """Return the table of the largest gaps, with the algorithm and the bound of each."""
    first = sorted(answers, key=lambda a: -a.gap)[:count]
    titles = ("number", "question", "collective", "size", "gap", "engine", "bound", "improved last", "no file")
    return grid(titles, [
        (a.question.number, a.question.name, a.question.collective, format_size(a.question.size), f"{a.gap:.3f}",
         a.engine, a.proof, a.moved, a.why_no_file) for a in first
    ])  # fmt: skip


def _size_class(answer: Answered) -> str:
    """Return the size of the question in words; of an uneven one only whether it has 16 MiB."""
    if not answer.question.sizes:
        return format_size(answer.question.size)
    return "from 16 MiB" if answer.question.size >= 16 << 20 else "below 16 MiB"


def against_nccl(answers: Sequence[Answered]) -> str:
    """Return a sentence on NCCL's times by its own model against ours."""
    ratios = [a.vs_nccl for a in answers if a.vs_nccl is not None]
    if not ratios:
        return "NCCL's model covers none of the questions under these costs."
    slower = [a for a in answers if a.vs_nccl is not None and a.vs_nccl < 1]
    return (
        f"NCCL's own model covers {len(ratios)} questions. Its time / ours is {geometric_mean(ratios):.2f} in the"
        f" geometric mean and {min(ratios):.2f} at least; it is below 1 in {len(slower)} questions."
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Ask all questions, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--count", type=int, help="number of questions; default: 90, 45 of clusters, 40 of uneven")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="one of N questions only, drawn by the seed")
    parser.add_argument("--only", type=int, nargs="+", metavar="NUMBER")
    parser.add_argument("--budget", type=float, help="seconds for each question; default: 8, or 15 (clusters, uneven)")
    parser.add_argument("--costs", default="auto", help="as --costs of synth; default: auto")
    parser.add_argument("--clusters", action="store_true", help="ask about clusters instead")
    parser.add_argument("--dgx1-groups", action="store_true", help="ask about all groups of a DGX-1 instead")
    parser.add_argument("--uneven", action="store_true", help="ask for uneven collectives instead")
    parser.add_argument("--busy", action="store_true", help="keep one core busy meanwhile")
    parser.add_argument("--dry", action="store_true", help="write no table")
    options = parser.parse_args(arguments)
    count = options.count or (45 if options.clusters else 40 if options.uneven else 90)
    budget_s = options.budget or (15.0 if options.clusters or options.uneven else 8.0)
    draw = cluster_question if options.clusters else uneven_question if options.uneven else question
    questions = dgx1_questions() if options.dgx1_groups else [draw(options.seed, number) for number in range(count)]
    # Sizes and collectives rotate, so that each N-th question would be of a few of them.
    drawn = random.Random(options.seed).sample(questions, -(-len(questions) // options.every))
    chosen = [q for q in questions if q in drawn and (not options.only or q.number in options.only)]
    answers: list[Answered] = []
    with busy_core(options.busy):
        for query in chosen:
            answers.append(a := answered(query, budget_s, options.costs))
            asked = f"{query.collective} {format_size(query.size)} {query.name[:60]}"
            no_file = f", no file: {a.why_no_file}" if a.why_no_file else ""
            figures = f"{query.number:4d} {a.gap:.3f} {a.vs_nccl or 0:.2f} {a.seconds:5.1f} s"
            print(f"{figures} {asked}: {a.engine}, {a.proof} {a.moved}{no_file}", flush=True)
    kind = "groups of a DGX-1 up to its symmetry" if options.dgx1_groups else f"questions of seed {options.seed}"
    over = sum(a.seconds > 1.1 * budget_s + 0.5 for a in answers)
    files = sum(not a.why_no_file for a in answers)
    left = sum(a.engine in LIBRARIES for a in answers)
    beside = ", beside a process that keeps one core busy" if options.busy else ""
    parts = [
        f"{len(answers)} of {len(questions)} {kind}, one command each, with a budget of {budget_s:g} s and"
        f" `--costs {options.costs}`{beside}. A gap is the time of the file's program / the proved bound."
        f" {files} have a file, {left} are left to a library whose own algorithm is faster; their gap is the library's."
        f" {over} commands took more than 1.1 × the budget and 0.5 s.",
        against_nccl(answers),
        table(answers, _size_class, "size"),
        table(sorted(answers, key=lambda a: a.question.collective), lambda a: a.question.collective, "collective"),
        table(answers, lambda a: "with relays" if a.question.relay == "all" else "without relays", "relays"),
        "The largest gaps:",
        worst(answers),
    ]
    text = page(__file__, "Gaps on questions drawn by a seed", parts)
    subject = next((f"-{name}" for name in ("dgx1_groups", "clusters", "uneven") if getattr(options, name)), "")
    subject = subject.removesuffix("_groups")
    print(text)
    if not options.dry:
        save(TABLES / f"census{subject}{'-busy' if options.busy else ''}.md", text)


if __name__ == "__main__":
    main()
