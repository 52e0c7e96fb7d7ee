"""The Python face of the product: ask, look, save. Like the command line it sees all rooms; nothing imports it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synth.algorithm import Algorithm
from synth.collective import Collective
from synth.engines.workers import Workers
from synth.problem import Problem, make_problem
from synth.search import ENGINES, WARM, Found, Options, Progress, search
from synth.statement import fastest, statement
from synth.table import table
from topologies.errors import InputError
from topologies.load import load
from topologies.topology import Topology

_SEEDS = 2**31  # what all solvers take


@dataclass(frozen=True, eq=False)
class Synthesis:
    """The answer to a question: algorithms by size, each replayed and right, with bounds."""

    found: Found

    @property
    def algorithms(self) -> list[dict[str, Any]]:
        """One object an algorithm, as documented at `statement.row`."""
        return list(statement(self.found)["algorithms"])

    @property
    def gap(self) -> float:
        """The largest time / bound over the algorithms, each at the size it is shown for."""
        return max(float(row["gap"]) for row in self.algorithms)

    def algorithm(self, size_bytes: int) -> Algorithm:
        """The algorithm that serves a message size."""
        return fastest(self.found, size_bytes)

    def table(self) -> str:
        """What the command line prints."""
        return table(self.found)

    def save(self, folder: str | Path, target: str = "auto") -> list[Path]:
        """Write one MSCCL XML an algorithm and the index; returns the paths.

        Raises:
            InputError: the target cannot express it, or the folder cannot be written.
        """
        from emit.library_files import save

        return save(self.found, folder, target)


def ask(
    collective: str | Collective,
    topo: str | Path | Topology,
    group: Sequence[int] | None = None,
    *,
    relay: Sequence[int] | str = "none",
    root: int | None = None,
    size: int | None = None,
    chunks: int | None = None,
    steps: int | None = None,
    rounds: int | None = None,
    engine: str = "auto",
    budget: float = 30.0,
    seed: int = 0,
) -> tuple[Problem, Options]:
    """State a question without answering it; arguments and errors as those of `synthesize`."""
    for name, value in (("size", size), ("chunks", chunks), ("steps", steps), ("rounds", rounds)):
        if value is not None and value < 1:
            raise InputError(f"{name}: {value} is not possible; it must be 1 or more")
    if not 0 < budget < 1e7:
        raise InputError(f"budget: {budget:g} s is not possible; it must be more than 0 seconds")
    if not 0 <= seed < _SEEDS:
        raise InputError(f"seed: {seed} is not possible; it must be in 0..{_SEEDS - 1}")
    if engine not in ENGINES:
        raise InputError(f"engine: {engine!r} is not known; it is one of {', '.join(ENGINES)}")
    topology = topo if isinstance(topo, Topology) else load(topo)
    members = list(range(topology.nranks)) if group is None else list(group)
    if isinstance(relay, str):
        if relay not in ("none", "all"):
            raise InputError(f"relay: {relay!r} is not known; it is none, all or ranks")
        outsiders = [r for r in range(topology.nranks) if r not in set(members)] if relay == "all" else []
    else:
        outsiders = list(relay)
    problem = make_problem(topology, collective, members, outsiders, root=root)
    if chunks is not None:
        problem.with_chunks(chunks)  # whether so many are possible is said now
    return problem, Options(size, chunks, steps, rounds, engine, budget, seed)


def synthesize(
    collective: str | Collective,
    topo: str | Path | Topology,
    group: Sequence[int] | None = None,
    *,
    progress: Progress | None = None,
    workers: Workers | None = None,
    **options: Any,
) -> Synthesis:
    """Search for algorithms.

    Args:
        collective: a name (torch's spellings too) or a Collective.
        topo: a machine, a family, a file, or a Topology.
        group: ranks that take part, in order; all when None.
        progress: called with what is tried and the best so far.
        workers: solver processes to use again.
        options: relay: outsiders that may forward, "none", "all" or ranks. root: rank of the root for rooted
            collectives; the group's first when None. size: bytes; with it the one best algorithm, without it the
            frontier over all sizes. chunks, steps, rounds: pin the shape (k-synchronous model). engine: one of auto,
            route, cpsat, smt, milp. budget: seconds. seed: of the solvers.

    Raises:
        InputError: anything that cannot be, in one line.
    """
    problem, chosen = ask(collective, topo, group, **options)
    if workers is not None:
        return Synthesis(search(problem, chosen, workers, progress))
    with Workers(WARM if chosen.engine != "route" else ()) as own:
        return Synthesis(search(problem, chosen, own, progress))
