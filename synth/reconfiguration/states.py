"""Read the states of a network that changes: a TOML file, or a text such as `ring:8 + axes:2x2x2,bw=100`.

name = "ring-and-pairs"
delta_us = 10.0          # time of a change between two states
start = "ring"           # the state before the collective; left out, the first state takes no change
[[state]]
name = "ring"
topo = "ring:4"          # a network by name, or the name of a file beside this one
[[state]]
name = "pairs"
ranks = 4                # in place of `topo`; with both, the links are added
links = [[0, 2], [1, 3]] # each in both directions
bandwidth_gbs = 100.0    # GB/s of each link and direction
alpha_us = 0.7
[[change]]               # a change that takes another time, in both directions
between = ["ring", "pairs"]
delta_us = 5.0
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np

from synth.model.collective import Floats, Ints
from synth.model.numbers import taking
from synth.model.text import format_count
from topologies.errors import InputError
from topologies.families import FAMILIES, family
from topologies.load import load
from topologies.text.fields import Fields, parse_toml, shown
from topologies.text.files import origin_of, read_text
from topologies.topology import MAX_ALPHA_US, MAX_GBS, MIN_GBS, Topology

MAX_RANKS = 64
MAX_STATES = 16
MAX_DELTA_US = 1e9
DEFAULT_DELTA_US = 10.0
_MAX_FILE_BYTES = 1 << 20  # Three times what all states with all links take.
_MOST_CHARS = 150  # Of an error; a longer one leaves out the text of all states.
_TOP = ("name", "delta_us", "start", "state", "change")
_STATE = ("name", "topo", "ranks", "links", "bandwidth_gbs", "alpha_us")
_PAIRS = "it must be pairs of ranks, such as [[0, 1], [2, 3]]"
_FIGURES = ("bandwidth_gbs", "alpha_us")


@dataclass(frozen=True, eq=False)
class ChangingNetwork:
    """A network that is in one of a list of states at a time.

    Attributes:
        name: Name of the network, one line.
        states: The states: topologies of links between the same ranks, with different names and without costs.
        delta_us: Time in µs in which state [from] becomes state [to]; float, shape (states, states), 0 on the diagonal.
        start: The state before the first phase; None if the first phase may use any state without a change.

    Raises:
        InputError: The states do not fit together.
    """

    name: str
    states: tuple[Topology, ...]
    delta_us: Floats
    start: int | None = None

    def __repr__(self) -> str:
        """Return the name and the numbers of ranks and states in one line."""
        return f"<ChangingNetwork {self.name}: {self.nranks} ranks, {format_count(len(self.states), 'state')}>"

    def __post_init__(self) -> None:
        if not 1 <= len(self.states) <= MAX_STATES:
            raise InputError(f"states: {len(self.states)} states; it must be 1 to {MAX_STATES}")
        names = [state.name for state in self.states]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(f"states: two are named {shown(twice)}; each must have a name of its own")
        for state in self.states:
            if state.nranks != self.nranks:
                counts = f"{state.nranks} ranks, but {shown(names[0])} has {self.nranks}"
                raise InputError(f"state {shown(state.name)}: has {counts}; all must have the same")
            if state.switches:
                raise InputError(
                    f"state {shown(state.name)}: has switches; it must have links between ranks only, as ring:8"
                )
        if not 2 <= self.nranks <= MAX_RANKS:
            raise InputError(f"states: have {self.nranks} ranks; it must be 2 to {MAX_RANKS}")
        try:
            times = np.asarray(self.delta_us, dtype=np.float64)
        except (TypeError, ValueError):
            times = np.zeros(0)
        count = len(self.states)
        if times.shape != (count, count) or not ((times >= 0) & (times <= MAX_DELTA_US)).all() or np.diag(times).any():
            raise InputError(
                f"delta_us: must be {count}x{count} times from 0 to {MAX_DELTA_US:g} µs, with 0 on the diagonal"
            )
        if self.start is not None and not 0 <= self.start < count:
            raise InputError(f"start: state {self.start} does not exist; it must be 0 to {count - 1}")
        without_costs = (replace(state, protocol="") if state.protocol else state for state in self.states)
        object.__setattr__(self, "states", tuple(without_costs))
        object.__setattr__(self, "delta_us", times)

    @property
    def nranks(self) -> int:
        """Return the number of ranks, which all states share."""
        return self.states[0].nranks

    def with_delta(self, delta_us: float, label: str = "delta_us") -> ChangingNetwork:
        """Return the network whose changes all take `delta_us` µs.

        Raises:
            InputError: The time is negative, too long or no number; the message begins with `label`.
        """
        is_number = isinstance(delta_us, int | float) and not isinstance(delta_us, bool)
        if not is_number or not 0 <= delta_us <= MAX_DELTA_US:
            raise InputError(f"{label}: {shown(delta_us)} is no time; it must be µs from 0 to {MAX_DELTA_US:g}")
        return replace(self, delta_us=_equal_times(len(self.states), delta_us))

    def changing_us(self, sequence: Sequence[int]) -> float:
        """Return the time in µs of all changes of a sequence of states, with that from `start` to the first."""
        visited = [*([] if self.start is None else [self.start]), *sequence]
        return float(sum(self.delta_us[before, after] for before, after in pairwise(visited)))

    def changes(self, sequence: Sequence[int]) -> int:
        """Return the number of changes of a sequence of states, with that from `start` to the first."""
        visited = [*([] if self.start is None else [self.start]), *sequence]
        return sum(before != after for before, after in pairwise(visited))


def _equal_times(count: int, delta_us: float) -> Floats:
    """Return the table of `count` states whose changes all take the same time in µs."""
    return np.full((count, count), float(delta_us)) * (1.0 - np.eye(count))


@taking('synth.read_states("ring:8 + axes:2x2x2")')
def read_states(spec: str | Path) -> ChangingNetwork:
    """Return the network that changes which `spec` states.

    A Path, or a text that ends in ".toml", is a file of states. Any other text, and one with "+" that names no file,
    lists states, joined by "+": each is a topology by name, or its file (one state); "axes:4x4" (one state for each
    dimension of the torus, with its links only; the pairs of a hypercube are "axes:2x2x2"); or "strides:8" (for each
    stride from 1 to half of the ranks a state that links ranks at this distance on a ring). `bw` and `alpha` are those
    of families. All changes then take 10 µs.

    Raises:
        InputError: There is no such file or topology, a field is wrong, or the states do not fit together.
    """
    if not isinstance(spec, str | Path) or not str(spec).strip():
        raise InputError(f"states {shown(spec)}: must be a text such as 'ring:8 + axes:2x2x2', or a file")
    is_list = isinstance(spec, str) and "+" in spec and not os.path.isfile(spec)  # File names may hold a + too.
    if isinstance(spec, Path) or (spec.endswith(".toml") and not is_list):
        return _read_file(Path(spec))
    try:
        terms = [term.strip() for term in spec.split("+")]
        if not all(terms):
            raise InputError("states: a + has no topology on one of its sides; it must be as in 'ring:8 + axes:2x2x2'")
        kinds = Counter(term.partition(":")[0] for term in terms)
        states = [state for term in terms for state in _states_of_term(term, kinds[term.partition(":")[0]] > 1)]
        return ChangingNetwork(spec, tuple(states), _equal_times(len(states), DEFAULT_DELTA_US))
    except InputError as error:
        text = str(error).removeprefix("states: ")
        with_spec = f"states {shown(spec)}: {text}"
        raise InputError(text if shown(spec) in text or len(with_spec) > _MOST_CHARS else with_spec) from None


def _states_of_term(term: str, is_repeated: bool) -> list[Topology]:
    """Return the states that one term of a text stands for; InputError if there is no such topology.

    If there are more terms of its kind, the names of its states say to which they belong.
    """
    kind, _, parameters = term.partition(":")
    if kind not in ("axes", "strides"):
        return [load(term)]
    name = f"{'torus' if kind == 'axes' else 'ring'}:{parameters}"
    try:
        topology = family(name)
    except InputError as error:  # The user did not write the name of the family.
        raise InputError(str(error).partition(f"{name[:40]!r}: ")[2] or str(error)) from None
    states = _axes(topology, parameters) if kind == "axes" else _strides(topology)
    sizes = parameters.partition(",")[0]
    return [replace(state, name=f"{state.name} of {sizes}") if is_repeated else state for state in states]


def _axes(torus: Topology, parameters: str) -> list[Topology]:
    """Return one state for each dimension of a torus: the links along that dimension; `parameters` has its sizes."""
    dims = [int(size) for size in parameters.partition(",")[0].split("x")]
    _check_ranks(torus.nranks)
    src, dst = np.unravel_index(torus.link_src, dims), np.unravel_index(torus.link_dst, dims)
    states = []
    for axis in (axis for axis, size in enumerate(dims) if size > 1):
        along = src[axis] != dst[axis]
        ends, figures = (
            (torus.link_src[along], torus.link_dst[along]),
            (torus.alpha_us[along], torus.bandwidth_gbs[along]),
        )
        states.append(Topology(f"axis {axis}", torus.nranks, (), *ends, *figures))
    if not states:
        raise InputError(f"size {shown(parameters)} has no dimension of two ranks; it must have one, as axes:4x4")
    return states


def _strides(ring: Topology) -> list[Topology]:
    """Return one state for each stride from 1 to half of the ranks, with the figures of a ring's links."""
    count = ring.nranks
    _check_ranks(count)
    states = []
    for stride in range(1, count // 2 + 1):
        pairs = {tuple(sorted((rank, (rank + stride) % count))) for rank in range(count)}
        links = np.array(sorted(pairs), dtype=np.int64)
        alpha_us, gbs = float(ring.alpha_us[0]), float(ring.bandwidth_gbs[0])
        states.append(_of_pairs(f"stride {stride}", count, links, gbs, alpha_us))
    return states


def _of_pairs(name: str, nranks: int, pairs: Ints, gbs: float, alpha_us: float) -> Topology:
    """Return a topology of links in both directions between pairs of ranks, shape (pairs, 2), all with one figure."""
    src, dst = np.concatenate([pairs, pairs[:, ::-1]]).T
    return Topology(name, nranks, (), src, dst, np.full(len(src), alpha_us), np.full(len(src), gbs))


def _check_ranks(nranks: int) -> None:
    """Raise InputError for more ranks than states may have, before tables are built."""
    if nranks > MAX_RANKS:
        raise InputError(f"states: have {nranks} ranks; it must be 2 to {MAX_RANKS}")


def _read_file(path: Path) -> ChangingNetwork:
    """Read a file of states; see the head of this module for its form, and `read_states` for its errors."""
    text, origin = read_text(path, "a .toml file of states", _MAX_FILE_BYTES), origin_of(path)
    top = parse_toml(text, origin, "a few keys and [[state]] tables")
    top.only(_TOP)
    tables = top.tables("state")
    if not tables:
        top.fail("state", "missing; it must be at least one network under a line [[state]]")
    if len(tables) > MAX_STATES:
        top.fail("state", f"{len(tables)} of them; it must be at most {MAX_STATES}")
    states = [_read_state(table, path) for table in tables]
    numbers = {state.name: number for number, state in enumerate(states)}
    times = _equal_times(len(states), top.number("delta_us", 0.0, MAX_DELTA_US, "µs", DEFAULT_DELTA_US))
    stated = set[frozenset[str]]()
    for table in top.tables("change"):
        table.only(("between", "delta_us"))
        ends = table.strings("between")
        if len(ends) != 2 or ends[0] == ends[1]:
            table.fail("between", f"has {len(ends)} names; it must be two different states")
        first, second = (_number_of(table, "between", name, numbers) for name in ends)
        if frozenset(ends) in stated:
            table.fail("between", f"{shown(ends[0])} and {shown(ends[1])} stand in two [[change]] tables; keep one")
        stated.add(frozenset(ends))
        times[[first, second], [second, first]] = table.number("delta_us", 0.0, MAX_DELTA_US, "µs")
    start = _number_of(top, "start", top.string("start"), numbers) if "start" in top.values else None
    name = top.string("name", path.stem)
    _check_name(top, name, 80)
    try:
        return ChangingNetwork(name, tuple(states), times, start)
    except InputError as error:
        raise InputError(f"{origin}: {error}") from None


def _check_name(table: Fields, name: str, most: int) -> None:
    """Raise InputError if the name in a table is empty, blank, not printable or of more than `most` characters."""
    if not (name.isprintable() and name.strip() and len(name) <= most):
        table.fail("name", f"{shown(name)} is no name; it must be 1 to {most} printable characters, not all blank")


def _number_of(table: Fields, key: str, name: str, numbers: dict[str, int]) -> int:
    """Return the number of the state that a field names; InputError if there is none."""
    if name not in numbers:
        table.fail(key, f"{shown(name)} is no state; it must be one of {', '.join(numbers)[:80]}")
    return numbers[name]


def _read_state(table: Fields, path: Path) -> Topology:
    """Return the topology of one [[state]] table of a file; InputError if a field is missing, unknown or wrong."""
    table.only(_STATE)
    name = table.string("name")
    _check_name(table, name, 40)
    if "topo" not in table.values and "links" not in table.values:
        table.fail("", "has neither topo nor links; it must have one of them")
    for key in _FIGURES:
        if key in table.values and "links" not in table.values:
            table.fail(key, "is of links, but there are none; state links, or write topo = 'ring:8,bw=50,alpha=0.7'")
    base = None if "topo" not in table.values else _read_base(table, path)
    nranks = table.integer("ranks", 2, MAX_RANKS, None if base is None else base.nranks)
    if base is not None and base.nranks != nranks:
        table.fail("ranks", f"{nranks}, but topo has {base.nranks}; leave it out")
    added = None if "links" not in table.values else _read_links(table, name, nranks)
    if base is None or added is None:
        only = base or added
        assert only is not None
        return replace(only, name=name)
    try:
        return replace(
            base,
            name=name,
            link_src=np.concatenate([base.link_src, added.link_src]),
            link_dst=np.concatenate([base.link_dst, added.link_dst]),
            alpha_us=np.concatenate([base.alpha_us, added.alpha_us]),
            bandwidth_gbs=np.concatenate([base.bandwidth_gbs, added.bandwidth_gbs]),
            link_kind=np.zeros(0, dtype=np.int64),
        )
    except InputError as error:
        table.fail("links", str(error))


def _read_base(table: Fields, path: Path) -> Topology:
    """Return the topology that `topo` names: one by name, or a file in the folder of the file of states."""
    spec = table.string("topo")
    if "/" in spec or "\\" in spec or spec.startswith("."):
        table.fail("topo", f"{shown(spec)}; it must be a network's name, or a file beside this one without a folder")
    path_of_file = path.parent / spec
    if re.search(r"\.[A-Za-z]+$", spec) and path_of_file.is_file():
        return load(path_of_file)
    try:
        return load(spec)
    except InputError as error:
        is_family = spec.partition(":")[0] in FAMILIES and len(str(error)) <= _MOST_CHARS - 60
        table.fail("topo", str(error) if is_family else f"{shown(spec)} is no network; synth topo list shows all")


def _read_links(table: Fields, name: str, nranks: int) -> Topology:
    """Return the topology of the pairs of ranks in `links`, with the figures of the table."""
    gbs = table.number("bandwidth_gbs", MIN_GBS, MAX_GBS, "GB/s")
    alpha_us = table.number("alpha_us", 0.0, MAX_ALPHA_US, "µs")
    pairs = table.values["links"]
    if not isinstance(pairs, list) or not pairs:
        table.fail("links", f"{shown(pairs)}; {_PAIRS}")
    most = math.comb(nranks, 2)
    if len(pairs) > most:
        table.fail("links", f"{len(pairs)} pairs of {nranks} ranks; it must be at most {most}, each once")
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2 or any(type(rank) is not int for rank in pair):
            ends = ", ".join(map(shown, pair[:2])) if isinstance(pair, list) and len(pair) == 2 else shown(pair)
            table.fail("links", f"holds {ends[:60]}; {_PAIRS}")
        if pair[0] == pair[1] or not all(0 <= rank < nranks for rank in pair):
            ends = f"{shown(pair[0])}–{shown(pair[1])}"
            table.fail("links", f"holds {ends}; it must be two different ranks from 0 to {nranks - 1}")
    if len({frozenset(pair) for pair in pairs}) < len(pairs):
        table.fail("links", "joins two ranks twice; it must be each pair once, with the bandwidth in sum")
    return _of_pairs(name, nranks, np.array(pairs, dtype=np.int64), gbs, alpha_us)


def subsets(network: ChangingNetwork, size: int) -> list[tuple[int, ...]]:
    """Return all sets of `size` states that hold the start, ascending; all states where there are fewer."""
    numbers = range(len(network.states))
    if size >= len(numbers):
        return [tuple(numbers)]
    return [chosen for chosen in combinations(numbers, size) if network.start is None or network.start in chosen]
