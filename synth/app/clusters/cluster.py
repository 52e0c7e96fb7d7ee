"""A cluster file: all that a library shall answer, in one TOML file.

    topology = "dgx-h100:4"                     # a machine, machine:N, a family or a file, as --topo takes it
    groups = ["all", "tp=8,dp=4", "all 2..8 in a node", "0,2,4,6"]
    collectives = ["allreduce", "allgather"]    # "all": all that have a name (the default)
    sizes = "1K:1G"                             # least and most bytes of a message (the default), or one size
    targets = ["executor-nccl", "mscclpp"]      # "all", "none": schedules only; the usual one of the machine (default)
    budget = "5m"                               # for the whole build, on this machine (the default)
    roots = "first"                             # of rooted collectives: each group's first rank; "all": every rank
    without = ["link:3-5"]                      # dead parts, as --without takes them
    degrade = ["rank:3=50%"]                    # slow parts, as --degrade takes them
    costs = "auto"                              # of an executor, as --costs takes them
    relays = "none"                             # ranks outside a group that may forward: "all", or ranks
    switch_ops = false                          # whether switches multicast and reduce, for targets that can express it
    seed = 0

In `groups`, a text with = names axes from the fastest to the slowest, and stands for the groups along each of them. All
such texts describe one mesh, so that "tp=8", "dp=2" one after the other is "tp=8,dp=2". With a colon only the axes
named after it count (`synth.app.clusters.groups`). "all A..B in a node" is every group of A to B ranks of one node,
ascending. Any other text is one group's ranks, in order. Groups are those of the healthy topology; dead ranks are left
out of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from math import comb
from pathlib import Path
from typing import TypeVar

import numpy as np

from emit.targets import TARGETS, choose_target, name_in_files
from synth.app.clusters.groups import Axes, parse_groups
from synth.model.numbers import parse_seconds
from synth.model.problem import LARGEST, SMALLEST, parse_ranks
from synth.model.registry import COLLECTIVE_KINDS, parse_name
from synth.model.sizes import parse_size
from synth.search.settings import AUTO, NONE
from topologies.costed import costs_omit_switch_ops
from topologies.errors import InputError, right_name
from topologies.faults.apply import apply_faults
from topologies.faults.notation import dead_ranks, live_ranks, relay_ranks
from topologies.load import STATED_COSTS, apply_costs, load
from topologies.text.fields import Fields, parse_toml, shown
from topologies.text.files import origin_of, read_text
from topologies.topology import Topology

Value = TypeVar("Value")
MAX_FILE_BYTES = 1 << 20
MAX_GROUPS = 100_000
ALL, NO_RELAYS = "all", "none"
_FIELDS = (
    "topology", "groups", "collectives", "sizes", "targets", "budget", "roots", "without", "degrade", "costs", "relays",
    "seed", "switch_ops",
)  # fmt: skip
_SUBSETS = re.compile(
    r"all(?:\s+groups)?(?:\s+of)?\s+(\d{1,4})(?:\s*\.\.\s*(\d{1,4}))?\s+in\s+(?:a|each|one|every)\s+node"
)
_FORM = '"all", "tp=8,dp=4", "all 2..8 in a node" or ranks such as "0,2,4-7"'
_SEEDS = 2**31


@dataclass(frozen=True)
class ClusterGroup:
    """A process group, and the text of the file that asks for it.

    Attributes:
        ranks: Ranks of the topology, in order.
        label: The text.
    """

    ranks: tuple[int, ...]
    label: str


@dataclass(frozen=True, eq=False)
class Cluster:
    """The content of a cluster file.

    Attributes:
        topology: The topology with its dead and slow parts.
        healthy: The topology without dead and slow parts.
        groups: Each group once, in the order of the file.
        collectives: Names of rows of `COLLECTIVE_KINDS`.
        low: Smallest message size in bytes.
        high: Largest message size in bytes, inclusive.
        targets: Names of rows of `TARGETS`, or AUTO; with none, the library holds schedules only.
        budget_s: Seconds for the whole build.
        all_roots: Whether every rank of a group is a root of rooted collectives, instead of the first one only.
        without: Dead parts, as written.
        degrade: Slow parts, as written.
        seed: Seed of the searches.
        costs: Costs of an executor, as written; both topologies have them.
        relays: Ranks that may forward for groups that they are not in: "none", "all", or living ranks.
        switch_ops: Whether answers may use multicast and reduction in switches, where a target's files can express it.
    """

    topology: Topology
    healthy: Topology
    groups: tuple[ClusterGroup, ...]
    collectives: tuple[str, ...]
    low: int
    high: int
    targets: tuple[str, ...]
    budget_s: float
    all_roots: bool = False
    without: tuple[str, ...] = ()
    degrade: tuple[str, ...] = ()
    seed: int = 0
    costs: str = STATED_COSTS
    relays: str | tuple[int, ...] = NO_RELAYS
    switch_ops: bool = False

    def relays_of(self, group: Sequence[int]) -> tuple[int, ...]:
        """Return the ranks outside a group that forward for it, ascending."""
        dead = dead_ranks(self.healthy, self.without)
        listed = relay_ranks(self.healthy, dead, self.relays, group)
        return tuple(sorted(set(listed) - set(group)))


def read_cluster(path: str | Path, without: Sequence[str] = ()) -> Cluster:
    """Read a cluster file.

    Missing fields have defaults: all collectives, all sizes, a budget of 5 minutes, and AUTO for targets.

    Args:
        path: The file. Files that it names are first looked for in its folder.
        without: Dead parts in addition to those of the file.

    Raises:
        InputError: The file cannot be read, or a field is not as this module describes it. The message names file, line
            and field.
    """
    text, origin = read_text(path, "a cluster file", MAX_FILE_BYTES), origin_of(path)
    top = parse_toml(text, origin, "the fields of a cluster file")
    if "topology" not in top.values and (own_keys := [key for key in ("base", "ranks") if key in top.values]):
        top.fail(
            own_keys[0], "is a key of a topology's file, which a cluster's file names, as topology = \"FILE.toml\""
        )
    top.only(_FIELDS)
    spec = top.string("topology")
    healthy = _stated(top, "topology", lambda: load(_beside(path, spec)))
    costs = top.string("costs", STATED_COSTS)
    healthy = _stated(top, "costs", lambda: apply_costs(healthy, _beside(path, costs)))
    dead_parts, slow_parts = _texts(top, "without", ()), _texts(top, "degrade", ())
    topology = _stated(
        top, "without" if dead_parts else "degrade", lambda: apply_faults(healthy, dead_parts, slow_parts)
    )
    if without:  # Their errors are not those of the file.
        dead_parts = *dead_parts, *without
        topology = apply_faults(healthy, dead_parts, slow_parts)
    dead = dead_ranks(healthy, dead_parts)
    low, high = _sizes(top)
    collectives = _named(
        top, "collectives", [kind.name for kind in COLLECTIVE_KINDS.values() if kind.by_name], parse_name
    )
    budget = top.string("budget", "5m", 'a time, such as "90s"')
    roots = top.string("roots", "first", '"first" or "all"')
    if roots not in ("first", ALL):
        top.fail("roots", f'{shown(roots)} is not known; it must be "first" or "all"')
    has_targets = top.values.get("targets", AUTO) != AUTO
    targets = _named(top, "targets", list(TARGETS), str, empty=NONE) if has_targets else (AUTO,)
    return Cluster(
        topology,
        healthy,
        _groups(top, healthy, set(dead)),
        collectives,
        low,
        high,
        targets,
        _stated(top, "budget", lambda: parse_seconds(budget, "")),
        roots == ALL,
        dead_parts,
        slow_parts,
        top.integer("seed", 0, _SEEDS - 1) if "seed" in top.values else 0,
        costs,
        _relays(top, healthy, dead),
        _switch_ops(top, topology, {target for name in collectives for target in targets_of(name, targets, topology)}),
    )


def targets_of(collective: str, targets: tuple[str, ...], topology: Topology) -> tuple[str, ...]:
    """Return the targets of a collective's files: the named ones, or for (AUTO,) the one that a search would take.

    Args:
        collective: Name of the collective.
        targets: Names of targets, or (AUTO,). () stays (): schedules only.
        topology: The topology, whose devices decide for AUTO.

    Raises:
        InputError: For AUTO, no target can express the collective.
    """
    if targets != (AUTO,):
        return targets
    return (choose_target(name_in_files(collective, COLLECTIVE_KINDS[collective]), AUTO, topology).name,)


def _beside(path: str | Path, name: str) -> str | Path:
    """Return the path of a TOML file of a name in the folder of the cluster file; without one, the name itself."""
    neighbour = Path(path).parent / name
    return neighbour if name.endswith(".toml") and neighbour.is_file() else name


def _relays(top: Fields, topology: Topology, dead: Sequence[int]) -> str | tuple[int, ...]:
    """Return the field `relays`: "none" (its default), "all", or the tuple of living ranks.

    Args:
        top: Fields of the file.
        topology: The topology.
        dead: Ranks that are dead.

    Raises:
        InputError: The text is none of these, or names a rank that does not exist or is dead.
    """
    text = top.string("relays", NO_RELAYS)
    if text in (NO_RELAYS, ALL):
        return text
    if not text[:1].isdigit():
        top.fail("relays", f'{shown(text)} is not known; it must be "{NO_RELAYS}", "{ALL}" or ranks such as "4-7"')
    ranks = _stated(top, "relays", lambda: parse_ranks(text, "", topology.nranks))
    return _stated(top, "relays", lambda: live_ranks(topology, dead, ranks, "relays"))


def _switch_ops(top: Fields, topology: Topology, targets: Collection[str]) -> bool:
    """Return the field `switch_ops`; False if it is missing or the topology has no switches that multicast or reduce.

    Args:
        top: Fields of the file.
        topology: The topology with its costs.
        targets: Targets of the files; () for schedules only.

    Raises:
        InputError: The field is true, but the costs or the files of all targets cannot express such operations.
    """
    if not top.boolean("switch_ops"):
        return False
    if costs_omit_switch_ops(topology):
        top.fail("switch_ops", 'the costs do not cover operations of switches; it must be false, or costs = "none"')
    if targets and not any(TARGETS[name].switch_ops for name in targets):
        names = ", ".join(sorted(targets))
        top.fail("switch_ops", f'files for {names} cannot express it; it must be false, or targets = "none"')
    return bool(topology.switch_ops)


def _stated(top: Fields, key: str, read: Callable[[], Value]) -> Value:
    """Return what a function reads; raise an InputError of it anew, with the names of the file and the field."""
    try:
        return read()
    except InputError as error:
        top.fail(key, str(error).lstrip(": ").removeprefix("collective: ").removeprefix(f"{key}: "))


def _texts(top: Fields, key: str, default: Sequence[str]) -> tuple[str, ...]:
    """Return a field that is a text or an array of texts as a tuple; `default` if it is missing.

    Raises:
        InputError: The field is something else.
    """
    value = top.values.get(key)
    return (value,) if isinstance(value, str) else tuple(top.strings(key, default))


def _named(
    top: Fields, key: str, known_names: Sequence[str], read: Callable[[str], str], empty: str = ""
) -> tuple[str, ...]:
    """Return a field of names, each once in the order of the file.

    Args:
        top: Fields of the file.
        key: Name of the field.
        known_names: The names that are allowed; "all" or a missing field stands for all of them.
        read: Function from a text to a name.
        empty: The text that stands for no name, for which the result is (); "" for a field that needs a name.

    Raises:
        InputError: The field is an empty array, or a name is not known.
    """
    texts = _texts(top, key, (ALL,))
    if texts in ((ALL,), (empty,)):
        return tuple(known_names) if texts == (ALL,) else ()
    if not texts:
        top.fail(key, f"is empty; {right_name('', [ALL, *known_names])}")
    names = []
    for text in texts:
        name = _stated(top, key, partial(read, text))
        if name not in known_names:
            top.fail(key, f"{shown(text)} is not known; {right_name(name, [*known_names, ALL])}")
        names.append(name)
    return tuple(dict.fromkeys(names))


def _sizes(top: Fields) -> tuple[int, int]:
    """Return the field `sizes`, such as "1K:1G", as the least and the most bytes; a single size is both.

    Without the field they are `SMALLEST` and `LARGEST`.

    Raises:
        InputError: An end is no size, or the first is larger than the last.
    """
    text = top.values.get("sizes", f"{SMALLEST}:{LARGEST}")
    first, colon, last = text.partition(":") if isinstance(text, str) else ("", "", "")
    try:
        low, high = (parse_size(end, "sizes") for end in (first, last if colon else first))
    except InputError:
        top.fail("sizes", f'{shown(text)} is no size and no range of sizes; it must be as in "1M" or "64K:4M"')
    if low > high:
        top.fail("sizes", f"{shown(text)} has its larger end first; it must be as in 1K:1G")
    return low, high


def _groups(top: Fields, topology: Topology, dead: set[int]) -> tuple[ClusterGroup, ...]:
    """Return the field `groups`: each group of living ranks once, with the first text that asks for it.

    Dead ranks are left out of groups, and groups of fewer than two living ranks are left out.

    Args:
        top: Fields of the file.
        topology: The topology without dead and slow parts.
        dead: Ranks that are dead.

    Raises:
        InputError: The field is missing, a text is wrong, or there are over 100 000 groups.
    """
    group_of_ranks: dict[tuple[int, ...], ClusterGroup] = {}
    mesh: dict[str, str] = {}
    lists: list[Axes] = []
    texts = _texts(top, "groups", ())
    if not texts:
        top.fail("groups", f"is empty or missing; it must be an array of texts such as {_FORM}")
    for text in texts:
        subsets = _SUBSETS.fullmatch(text.strip().lower())
        if subsets is None and text.strip().lower().startswith(f"{ALL} "):
            top.fail("groups", f"{shown(text)} is not known; it must be as in {_FORM}")
        if subsets is not None:
            labelled_groups = ((ranks, text) for ranks in _subsets(top, text, subsets, topology))
        else:
            parts = list(_along_each(top, text, mesh)) if "=" in text else [(text, text)]
            labelled_groups = (
                (ranks, label)
                for part, label in parts
                for ranks in _stated(top, "groups", partial(parse_groups, part, topology, (), lists, ""))
            )
        for ranks, label in labelled_groups:
            living = tuple(rank for rank in ranks if rank not in dead)
            if len(living) > 1:
                group_of_ranks.setdefault(living, ClusterGroup(living, label))
            if len(group_of_ranks) > MAX_GROUPS:
                top.fail(
                    "groups", f"asks for more than {MAX_GROUPS} groups; it must be fewer, such as groups of fewer sizes"
                )
    return tuple(group_of_ranks.values())


def _along_each(top: Fields, text: str, mesh: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the text and the label of each axis along which a list of axes asks for groups.

    The text is a list of all axes so far with that axis, such as `tp=8,dp=4:tp`; the label is the axis. Without `:AXIS`
    in the text, each axis that it names counts. Axes of one rank are left out.

    Args:
        top: Fields of the file.
        text: A list of axes such as `tp=8,dp=4` or `tp=8,dp=4:dp`.
        mesh: Extent of each axis so far, to which the list's axes are added.

    Raises:
        InputError: An axis has another extent than before.
    """
    listed, colon, chosen = text.partition(":")
    names = []
    for item in listed.split(","):
        name, _, extent = (piece.strip() for piece in item.partition("="))
        if mesh.setdefault(name, extent) != extent:
            top.fail(
                "groups",
                f"axis {shown(name)} has {mesh[name]} ranks, but {extent} in {shown(text)}; both must be equal",
            )
        names.append(name)
    whole = ",".join(f"{name}={extent}" for name, extent in mesh.items())
    for along in [chosen] if colon else names:
        if mesh.get(along, "") != "1":
            yield f"{whole}:{along}", along


def _subsets(top: Fields, text: str, range_match: re.Match[str], topology: Topology) -> Iterator[tuple[int, ...]]:
    """Yield all groups of some sizes within one node, node by node, the smallest first.

    Args:
        top: Fields of the file.
        text: The text of the file, for messages.
        range_match: The match of `_SUBSETS`: the smallest size and, unless it is the only one, the largest.
        topology: The topology.

    Raises:
        InputError: No node has such a group, or there are over 100 000.
    """
    least, most = int(range_match[1]), int(range_match[2] or range_match[1])
    nodes = [np.flatnonzero(topology.nodes == node).tolist() for node in np.unique(topology.nodes).tolist()]
    largest = max(map(len, nodes))
    if not 2 <= least <= most or least > largest:
        top.fail(
            "groups", f"{shown(text)}: no node has such groups; it must be as in all 2..{max(2, largest)} in a node"
        )
    count = sum(comb(len(ranks), size) for ranks in nodes for size in range(least, min(most, len(ranks)) + 1))
    if count > MAX_GROUPS:
        top.fail("groups", f"{shown(text)} is {count} groups; it must be at most {MAX_GROUPS}")
    for ranks in nodes:
        for size in range(least, min(most, len(ranks)) + 1):
            yield from combinations(ranks, size)
