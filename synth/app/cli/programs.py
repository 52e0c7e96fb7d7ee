"""Programs in the form of several commands: read a program, place it on a topology, name its problem, write files."""

from __future__ import annotations

from pathlib import Path

from emit.findings import Verdict
from emit.formats import format_of, verify_header, verify_program
from emit.goal import Goal
from emit.library.entry import IndexEntry
from emit.library.selection.lookup import goal_beside
from emit.program import Program
from emit.targets import TARGETS
from synth.model.problem import Problem, make_problem, parse_ranks
from synth.model.registry import find_kind
from synth.model.sizes import parse_size
from synth.storage.columns import replaced
from topologies.costed import protocols_of, with_protocols
from topologies.errors import InputError
from topologies.load import load
from topologies.text.files import origin_of
from topologies.topology import Topology, without_switch_ops

Place = tuple[Topology, list[int]]  # a topology, and its rank of each rank of the program


def read_program(
    file: str | Path, depth: int | None = None, *, needs_steps: bool = True
) -> tuple[Program, Goal | None, Verdict]:
    """Return the program of a file, what it must achieve, and the verdict on it.

    The second result is the goal in the file next to it or in the file itself, or None if there is none. A wrong
    program is returned too; the verdict tells.

    Args:
        file: The file.
        depth: FIFO slots; None for those of its protocol.
        needs_steps: Whether the program of a plan must have threadblocks; plans may be too large for that.

    Raises:
        InputError: The file holds no program, or the number of FIFO slots is impossible.
    """
    check_depth(file, depth)
    goal = goal_beside(file)
    verdict = (verify_program if needs_steps else verify_header)(file, goal, depth)
    if verdict.program is None:
        raise InputError(verdict.refusal(origin_of(file)))
    return verdict.program, goal or verdict.goal, verdict


def check_depth(file: str | Path, depth: int | None) -> None:
    """Raise InputError for fewer than one FIFO slot, or for any number of slots with a format without FIFOs.

    None, which stands for no number, is always right.
    """
    if depth is not None and depth < 1:
        raise InputError(f"--depth {depth}: must be 1 or more")
    if depth is not None and not format_of(file).has_fifo:
        raise InputError(f"--depth: {format_of(file).what} has no FIFO; leave it out")


def place_program(nranks: int, topo: str | None, group: str | None) -> Place | None:
    """Return the topology and the ranks of a program by --topo and --group; None without --topo.

    Without --group these are the topology's first ranks.

    Args:
        nranks: Number of ranks of the program.
        topo: The option --topo.
        group: The option --group.

    Raises:
        InputError: The group has another number of ranks, the topology has fewer, or --group is given without --topo.
    """
    if topo is None:
        if group is not None:
            raise InputError("--group: names ranks of --topo; give --topo too")
        return None
    topology = load(topo)
    ranks = parse_ranks(group, "--group", topology.nranks) if group else tuple(range(topology.nranks))
    if len(ranks) < nranks or (group and len(ranks) != nranks):
        option = f"--group {group}" if group else f"--topo {topo}"
        raise InputError(f"{option}: has {len(ranks)} ranks, but the program has {nranks}; the numbers must be equal")
    return topology, list(ranks[:nranks])


def nodes_at(place: Place | None) -> list[int] | None:
    """Return the node of each rank of the program; None without a topology."""
    return None if place is None else [int(place[0].nodes[rank]) for rank in place[1]]


def scratch_bytes(text: str | None) -> int | None:
    """Return the bytes of the option `--scratch-limit`; None without it.

    Raises:
        InputError: The text is no size.
    """
    return None if text is None else parse_size(text, "--scratch-limit")


def sms_at(place: Place | None) -> int:
    """Return the SMs of a device of the topology; 0 if unknown or without a topology."""
    return 0 if place is None else place[0].sms


def named_problem(
    topology: Topology, collective: str, ranks: tuple[int, ...], root: int | None, relays: tuple[int, ...] = ()
) -> Problem | None:
    """Return the problem that a program solves; None if its name does not state which one, or for a single rank.

    Args:
        topology: The topology.
        collective: Name of the collective.
        ranks: The topology's rank of each rank of the program.
        root: The topology's rank of the root; ignored if the collective has no root.
        relays: Ranks of the topology that forward.

    Raises:
        InputError: The ranks cannot reach each other, or the root is none of them.
    """
    kind = find_kind(collective)
    if not kind.by_name or len(ranks) < 2:
        return None
    return make_problem(topology, collective, ranks, relays=relays, root=root if kind.rooted else None)


def as_executors_see(topology: Topology, format_name: str, entry: IndexEntry | None) -> Topology:
    """Return a topology without the protocols and the operations of switches that no executor of a file has.

    The bound is then that of a search for these executors. Where they have none of the protocols, all stay.

    Args:
        topology: The topology; it stays as it is if the format has no executors.
        format_name: Name of the file's format, all of whose executors count if there is no entry.
        entry: The file's entry in an index, whose executor counts; None if there is none.
    """
    readers = [row for row in TARGETS.values() if row.format == format_name]
    executors = readers if entry is None else [TARGETS[entry.target]]
    names = protocols_of(topology) if topology.costs is not None else ()
    own_names = {name for executor in executors for name in executor.own_protocols(names)}
    topology = with_protocols(topology, own_names) if own_names else topology
    return (
        topology
        if not executors or any(executor.switch_ops for executor in executors)
        else without_switch_ops(topology)
    )


def check_ending(out: str | Path, suffix: str, what: str) -> None:
    """Raise InputError if a file that is to be written has another ending than files of its kind.

    So no other file is replaced by mistake. A name without an ending is allowed.

    Args:
        out: The file.
        suffix: The ending of files of its kind.
        what: Its kind, in words.
    """
    ending = Path(out).suffix.lower()
    if ending not in (suffix, ""):
        raise InputError(f"{origin_of(out)}: {what} is written, whose name must end in {suffix}, not in {ending}")


def check_not_source(out: str | Path, source: str) -> None:
    """Raise InputError if both files exist and are the same one, so that a file would replace what it is made from.

    Args:
        out: The file that is to be written.
        source: The file that it is made from.
    """
    if Path(out).exists() and Path(source).exists() and Path(out).samefile(source):
        raise InputError(f"{out}: is the file that it would be made from; give another name")


def write_text(out: str | Path, text: str) -> None:
    """Write a file completely or not at all; raise InputError if it cannot be written."""
    with replaced(out) as file:
        file.write(text.encode())


def write_into(path: Path, data: bytes) -> None:
    """Write a file as a whole, in a folder that is created if necessary; an existing file is replaced.

    Raises:
        InputError: The folder or the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = f"cannot be written ({error.strerror or error}); it must be a folder you may write to"
        raise InputError(f"-o {path.parent}: {reason}") from None
    with replaced(path) as file:
        file.write(data)
