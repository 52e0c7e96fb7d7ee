"""Programs as several commands take them: where one comes from, where it runs, what it answers, where it goes."""

from __future__ import annotations

from pathlib import Path

from emit.findings import Verdict
from emit.formats import format_of, verify_program
from emit.goal import Goal
from emit.library.lookup import goal_beside
from emit.program import Program
from synth.model.problem import Problem, make_problem, parse_ranks
from synth.model.registry import find_kind
from synth.model.sizes import parse_size
from synth.storage.columns import replaced
from topologies.errors import InputError
from topologies.load import load
from topologies.topology import Topology

Place = tuple[Topology, list[int]]  # a topology, and its rank of each of the program's


def read_program(file: str | Path, depth: int | None = None) -> tuple[Program, Goal | None, Verdict]:
    """The program in a file, what an index beside it says that it must achieve, and whether it does.

    depth: FIFO slots; None: its protocol's. Raises InputError where there is no program in it.
    """
    check_depth(file, depth)
    goal = goal_beside(file)
    verdict = verify_program(file, goal, depth)
    if verdict.program is None:
        raise InputError(f"not readable: {'; '.join(verdict.lines)}")
    return verdict.program, goal, verdict


def check_depth(file: str | Path, depth: int | None) -> None:
    """Raise InputError for FIFO slots that cannot be, or that the file's format does not have."""
    if depth is not None and depth < 1:
        raise InputError(f"--depth {depth}: must be 1 or more")
    if depth is not None and not format_of(file).has_fifo:
        raise InputError(f"--depth: {format_of(file).what} has no FIFO; leave it out")


def place_program(nranks: int, topo: str | None, group: str | None) -> Place | None:
    """Where --topo and --group put a program of `nranks`, None without; InputError for another number of ranks."""
    if topo is None:
        if group is not None:
            raise InputError("--group: says which ranks of --topo; give that too")
        return None
    topology = load(topo)
    ranks = parse_ranks(group, "--group", topology.nranks) if group else tuple(range(topology.nranks))
    if len(ranks) < nranks or (group and len(ranks) != nranks):
        option = f"--group {group}" if group else f"--topo {topo}"
        raise InputError(f"{option}: has {len(ranks)} ranks, the program {nranks}; it must be as many")
    return topology, list(ranks[:nranks])


def nodes_at(place: Place | None) -> list[int] | None:
    """The node of each of the program's ranks."""
    return None if place is None else [int(place[0].nodes[rank]) for rank in place[1]]


def scratch_bytes(text: str | None) -> int | None:
    """`--scratch-limit` in bytes, None without; InputError for what is no size."""
    return None if text is None else parse_size(text, "--scratch-limit")


def sms_at(place: Place | None) -> int:
    """The SMs of a device there, 0 where they are not known."""
    return 0 if place is None else place[0].sms


def named_problem(
    topology: Topology, collective: str, ranks: tuple[int, ...], root: int | None, relays: tuple[int, ...] = ()
) -> Problem | None:
    """The problem that a program answers, where its name says it; root: a topology rank, ignored where it has none."""
    kind = find_kind(collective)
    if not kind.by_name or len(ranks) < 2:
        return None
    return make_problem(topology, collective, ranks, relays=relays, root=root if kind.rooted else None)


def check_not_source(out: str | Path, source: str) -> None:
    """Raise InputError where a file would be written over the one that it is made from."""
    if Path(out).exists() and Path(source).exists() and Path(out).samefile(source):
        raise InputError(f"{out}: is the file that it is made from; it must be another name")


def write_text(out: str | Path, text: str) -> None:
    """Write a file whole or not at all; InputError where it cannot be."""
    with replaced(out) as file:
        file.write(text.encode())
