"""A stored schedule as a page shows it: figures, the network and its load, a timeline, and the sources of chunks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from synth.app.report.item import EXPONENTS, Fact, Item, ItemTiming, Points, proved_timing
from synth.app.report.layout import MOST_VERTICES, EdgeFigures, drawn_edges, network_view, place_vertices
from synth.app.report.lineage import Lineage, describe_chunks, sample_chunks, trace_schedule
from synth.app.report.shares import pack_table, rank_rates, round_all, round_value, shares_of_time, timeline_rows
from synth.app.report.sources import Source
from synth.app.report.stated import stated_timing
from synth.model.pairs import ordinary
from synth.model.problem import Problem
from synth.model.requirements import sum_by
from synth.model.schedule import Schedule
from synth.model.text import (
    format_apart,
    format_count,
    format_gap,
    format_number,
    format_served,
    format_size,
    format_time,
)
from synth.storage.check import ScheduleCheck, check_stored
from synth.storage.proof import EQUAL
from synth.storage.schedule_file import StoredSchedule, load_schedule
from synth.timing.simulate import US_PER_BYTE_AT_1_GBS, Clock, time_us
from topologies.arrays import Floats, Ints
from topologies.errors import InputError, ScheduleError
from topologies.network import Network
from topologies.symmetry.translations import digits, orbits, translate
from topologies.topology import Topology

MOST_BINS = 160
_CELLS = 4_000_000  # cells of a table (links × pieces of time) in memory
_LONG = 100_000  # sends above which a curve has fewer sizes, since each size takes a while
_GROUP = 12  # ranks that a title names


@dataclass(frozen=True, eq=False)
class DrawnTraffic:
    """The traffic on the links of the whole network until the last chunk has arrived.

    Attributes:
        net: The whole network.
        span: Time in µs until the last chunk has arrived.
        row: Timeline row of each link, int (links,): its own, or that of all its translates; −1 for an idle link.
        first: A link of each row, int (rows,).
        copies: Number of links in a row.
        load: Share of the time in which a link of the row is busy, (rows,).
        shares: The same share in each piece of time, (rows, pieces of time).
        bytes: Bytes over a link of the row, (rows,).
        physical: The topology's link of each of the first resources; all other resources are limits.
    """

    net: Network
    span: float
    row: Ints
    first: Ints
    copies: int
    load: Floats
    shares: Floats
    bytes: Floats
    physical: Ints


def schedule_item(source: Source, most_sends: int) -> Item:
    """Return the schedule of a file for the page, replayed, with its proof recomputed.

    A schedule or proof that is refused is shown too, with the reason in `wrong`, and then without a curve. The times of
    a library's schedule are those that the index states of the file that carries it out; its tiles and its proof state
    the schedule's own time.

    Args:
        source: The file.
        most_sends: Most sends that the page lists.

    Raises:
        InputError: The file cannot be read, or switches multicast or reduce in the schedule.
    """
    stored, entry = load_schedule(source.path), source.entry
    problem, size = stored.problem, stored.schedule.size_bytes
    taken_us = time_us(problem, stored.schedule)
    checked = check_stored(source.path, stored)
    curve = () if checked.wrong else _curve(stored, taken_us)
    own = timing = proved_timing(problem, checked, size, taken_us, curve, _curve_sizes(stored))
    stated, wrong, notes = stated_timing(entry), checked.wrong, tuple[str, ...]()
    if entry is not None and stated.time_us is not None and not wrong:
        timing = replace(stated, proof=own.proof)
        wrong = _false_bound(stated, checked)
        notes = _other_time(own, stated, Path(entry.file).name)
    view = schedule_view(stored, most_sends)
    return Item(
        name=source.name,
        collective=problem.collective.name,
        comparison_key=(problem.group, problem.relays, problem.collective.root, problem.collective.sizes),
        subtitle=_describe_group(problem),
        timing=timing,
        view=view,
        facts=tuple(_facts(stored, own, view["network"])),
        verdict="optimal" if own.optimal and timing.optimal else "replayed: right",
        wrong=wrong,
        notes=notes,
        serves=format_served(entry.min_bytes, entry.max_bytes) if entry is not None else "",
        no_proof="There is no checked proof: the schedule or the proof is refused."
        if checked.wrong
        else "There is no proof file for the schedule, so its distance from the best is not known."
        " The option --proof writes one.",
    )


def _false_bound(stated: ItemTiming, checked: ScheduleCheck) -> str:
    """Return the refusal of a bound that an index states and the schedule's proof does not reach; "" if it does.

    Args:
        stated: The timing that the index states, with time and bound.
        checked: The checked schedule; without a proof nothing is compared.
    """
    proved_us, stated_us = checked.bound_at(stated.size_bytes), stated.bound_us or 0.0
    if proved_us is None or stated_us <= proved_us * (1 + EQUAL):
        return ""
    at = format_size(math.ceil(stated.size_bytes))
    stated_text, proved_text = format_apart(stated_us, proved_us)
    return f"the index states a bound of {stated_text} at {at}, the proof {proved_text}"


def _other_time(own: ItemTiming, stated: ItemTiming, file: str) -> tuple[str, ...]:
    """Return the note that a schedule's file takes another time than the schedule itself; none if it does not.

    Args:
        own: Times of the schedule.
        stated: Time of the file, at one size.
        file: Name of the file.
    """
    own_us = dict((*own.curve, *own.marks)).get(stated.size_bytes)
    if own_us is None or stated.time_us is None or format_time(own_us) == format_time(stated.time_us):
        return ()
    return (
        f"Below are the times of the schedule itself. {file} carries it out, and takes {format_time(stated.time_us)} at"
        f" {format_size(math.ceil(stated.size_bytes))} with its threadblocks and signals: the table and the frontier"
        " show this time.",
    )


def _curve(stored: StoredSchedule, taken_us: float) -> Points:
    """Return the schedule's times as points (bytes, µs), ascending by size.

    At the schedule's own size the time is `taken_us`; at other sizes it is that of the same order of sends. There are
    no points if that order holds at the schedule's own size only.
    """
    problem, schedule = stored.problem, stored.schedule
    try:
        clock = Clock(problem, schedule)
        # At its own size the file's own times count; the order of rows would not reproduce them.
        return tuple(
            (s, taken_us if s == schedule.size_bytes else time_us(problem, clock.timed(s)))
            for s in _curve_sizes(stored)
        )
    except ScheduleError:
        return ()


def _curve_sizes(stored: StoredSchedule) -> list[float]:
    """Return the message sizes in bytes of a schedule's curve: powers of two from 1 KiB to 1 GiB and its own size.

    They ascend, and 0 is left out. Of a schedule with over 100 000 sends every second size is left out, but never its
    own.
    """
    size = stored.schedule.size_bytes
    sizes = sorted({*(float(1 << e) for e in EXPONENTS), size} - {0.0})
    if len(stored.schedule) > _LONG:
        sizes = [s for i, s in enumerate(sizes) if i % 2 == 0 or s == size]
    return sizes


def _facts(stored: StoredSchedule, timing: ItemTiming, network: dict[str, Any]) -> list[Fact]:
    """Return the page's tiles, each as (label, figure, remark).

    Bound and gap are left out if there is no checked proof, the bandwidth if time or size is 0.

    Args:
        stored: The schedule.
        timing: Its times and bound.
        network: The page's data about the network, whose keys busiest and mean count.
    """
    schedule, size, taken_us = stored.schedule, timing.size_bytes, timing.time_us or 0.0
    facts: list[Fact] = [("Predicted time", format_time(taken_us), f"at {format_size(math.ceil(size))}")]
    if timing.bound_us is not None and timing.gap is not None:
        facts.append(("Proved bound", format_time(timing.bound_us), "no algorithm is faster"))
        above = "optimal" if timing.optimal else f"{_percent(timing.gap - 1)} above"
        facts.append(("Gap (time / bound)", format_gap(timing.gap), above))
    if taken_us > 0 and size > 0:
        facts.append(("Algorithm bandwidth", f"{size / taken_us / 1e3:.4g} GB/s", "message size / time"))
    copies = f"each stored send stands for {stored.orbit}" if stored.orbit > 1 else ""
    chunks = format_count(stored.problem.collective.chunks, "chunk")
    mean = f"of the time in use; mean {network['mean'] * 100:.1f} %"
    return [
        *facts,
        ("Steps", str(schedule.nsteps), f"{chunks} a block"),
        ("Sends", format_number(len(schedule) * stored.orbit), copies),
        ("Busiest link", f"{network['busiest'] * 100:.1f} %", mean),
    ]


def _percent(part: float) -> str:
    """Return a share as a percentage: without decimals from 10 % on, below that with two significant digits."""
    return f"{part * 100:.0f} %" if part >= 0.1 else f"{part * 100:.2g} %"


def _describe_group(problem: Problem) -> str:
    """Return the group, the relays and the topology's summary in words: `group 0 2 (2 of 8), 1 relay · 8x V100`.

    The group is `all 8 ranks` if it is all ranks in ascending order; of over 12 ranks the first 12 are named. Relays
    and summary are left out if there are none.
    """
    topology, group = problem.topology, problem.group
    if group == tuple(range(topology.nranks)):
        words = f"all {format_count(topology.nranks, 'rank')}"
    else:
        names = " ".join(map(str, group[:_GROUP])) + (" …" if len(group) > _GROUP else "")
        words = f"group {names} ({len(group)} of {topology.nranks})"
    if problem.relays:
        words += f", {format_count(len(problem.relays), 'relay')}"
    return words + (f" · {topology.summary}" if topology.summary else "")


def schedule_view(stored: StoredSchedule, most_sends: int) -> dict[str, Any]:
    """Return the data that the page's script draws: times in µs, loads as shares of the makespan or the capacity.

    At most `most_sends` sends are listed one by one. Of a larger schedule all sends of a sample of its chunks are
    listed, at least one chunk's even if these are more. On a network of over 20 000 ranks the tables of ranks are None.
    A schedule of a quotient is shown by its stored sends, with the loads of the whole network.

    Raises:
        InputError: Switches multicast or reduce in the schedule.
    """
    problem, schedule = stored.problem, stored.schedule
    traffic = _traffic(problem, schedule)
    chunks = sample_chunks(schedule.chunk, problem.collective.nchunks, most_sends)
    listed = schedule.take(np.isin(schedule.chunk, chunks))
    names = [_link_name(problem, traffic.net, link) for link in traffic.first.tolist()]
    all_listed = len(listed) == len(schedule)
    rows, row = timeline_rows(names, traffic.load, traffic.shares, traffic.copies, traffic.net.nlinks, all_listed)
    return {
        "kind": "schedule",
        "unit": "µs",
        "span": round_value(traffic.span),
        "network": traffic_view(problem.topology, problem.ranks, problem.collective.nranks, traffic),
        "ranks": _ranks(problem, schedule, traffic)
        if problem.nranks <= MOST_VERTICES
        else {"out": None, "in": None, "got": None},
        "fold": None if problem.quotient is None else [list(digit) for digit in problem.quotient.translations],
        "rows": rows,
        "sends": _sends(listed, trace_schedule(problem, listed), traffic, row, stored.orbit, len(schedule)),
        "chunks": describe_chunks(problem, chunks) | {"of": problem.collective.nchunks},
    }


def network_load(problem: Problem, schedule: Schedule) -> dict[str, Any]:
    """Return the places of a network's vertices, and the load of its links and limits.

    The dictionary is that of `synth.app.report.layout.network_view`. A load is the bytes over a link or limit / what it
    can carry in the schedule's makespan.

    Raises:
        InputError: Switches multicast or reduce in the schedule.
    """
    traffic = _traffic(problem, schedule)
    return traffic_view(problem.topology, problem.ranks, problem.collective.nranks, traffic)


def _traffic(problem: Problem, schedule: Schedule) -> DrawnTraffic:
    """Return the traffic of a schedule on the links of the whole network, even if the schedule is for a quotient.

    Raises:
        InputError: Switches multicast or reduce in the schedule.
    """
    if not ordinary(problem.network, schedule.link):
        raise InputError(
            "sends through switches that multicast or reduce cannot be drawn; give a schedule of sends over links"
        )
    net, span = problem.network, time_us(problem, schedule)
    link_row, copies = np.arange(net.nlinks), 1
    if problem.quotient is not None:
        net, copies = problem.quotient.whole, problem.quotient.order
        link_row = orbits(net, problem.quotient.translations).link_class
    classes, first = np.unique(link_row, return_index=True)
    # One row for each used class, in the order of their first links.
    first = np.sort(first[np.isin(classes, link_row[schedule.link])])
    nrows = len(first)
    number = np.full(net.nlinks, -1, dtype=np.int64)
    number[link_row[first]] = np.arange(nrows)
    row = number[link_row]
    of_send = row[schedule.link]
    # The sends of a message hold their link once.
    messages = schedule.take(~schedule.joined) if len(schedule.joined) else schedule
    of_message = row[messages.link]
    busy_us = sum_by(of_message, messages.end_us - messages.start_us, nrows)
    bins = max(16, min(MOST_BINS, _CELLS // max(1, nrows)))
    return DrawnTraffic(
        net,
        span,
        row,
        first,
        copies,
        load=busy_us / span if span > 0 else np.zeros(nrows),
        shares=shares_of_time(of_message, messages.start_us, messages.end_us, nrows, bins, span),
        bytes=sum_by(of_send, problem.collective.chunk_bytes(schedule.size_bytes)[schedule.chunk], nrows),
        physical=physical_links(problem.topology, net),
    )


def traffic_view(
    topology: Topology, ranks: Sequence[int], members: int, traffic: DrawnTraffic, names: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the page's data about the network (see `network_view`): ranks and switches, physical links, and limits.

    Only switches at an end of a physical link are vertices. A load is bytes / (capacity · makespan).

    Args:
        topology: The topology.
        ranks: Its ranks that take part or forward, in the order of the network's local ranks.
        members: Number of ranks that take part, which come first.
        traffic: The traffic on the network.
        names: Name of each of the ranks; () for the topology's names.
    """
    net, physical = traffic.net, traffic.physical
    ends = np.column_stack([topology.link_src[physical], topology.link_dst[physical]])
    switches = np.unique(ends[ends >= topology.nranks]).tolist()
    vertices = [*ranks, *switches]
    local = np.full(topology.nvertices, -1, dtype=np.int64)
    local[vertices] = np.arange(len(vertices))
    ends = local[ends]
    at = place_vertices(topology.name, topology.nranks, ranks, topology.nodes[list(ranks)], len(switches), ends)
    load, load_over_time = resource_loads(traffic, drawn_edges(len(at.x), len(ends)))
    return network_view(
        at,
        ends,
        len(ranks),
        members,
        [*(names or map(topology.vertex_name, ranks)), *map(topology.vertex_name, switches)],
        EdgeFigures(load[: len(physical)], load_over_time, net.capacity_gbs[: len(physical)]),
        limits=[
            {"name": net.resource_names[i], "gbs": round_value(net.capacity_gbs[i]), "load": round_value(load[i])}
            for i in range(len(physical), net.nresources)
        ],
    )


def physical_links(topology: Topology, net: Network) -> Ints:
    """Return the links of a topology that are resources of its network, ascending.

    They are the network's first resources; limits follow them.
    """
    ends = zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True)
    number = {f"{topology.vertex_name(a)}→{topology.vertex_name(b)}": i for i, (a, b) in enumerate(ends)}
    links: list[int] = []
    for name in net.resource_names:
        link = number.get(name, -1)
        if link <= (links[-1] if links else -1):  # This is a limit, even if it has the name of a link.
            break
        links.append(link)
    return np.array(links, dtype=np.int64)


def resource_loads(traffic: DrawnTraffic, shown: int) -> tuple[Floats, Floats]:
    """Return the load of each resource, and that of the first `shown` resources in every piece of time.

    Returns:
        Bytes / (capacity · makespan), shape (resources,), 0 if the makespan is 0; and the rate over the capacity, shape
        (shown, pieces of time).
    """
    net, span = traffic.net, traffic.span
    users = net.link_of_use
    in_use = traffic.row[users] >= 0
    entries = (net.uses_idx[in_use], traffic.row[users[in_use]])
    shape = (net.nresources, len(traffic.first))
    links = csr_matrix((np.ones(int(in_use.sum())), entries), shape=shape)
    rate = csr_matrix((net.bandwidth_gbs[users[in_use]], entries), shape=shape)[:shown]
    moved_us = links @ (traffic.bytes * US_PER_BYTE_AT_1_GBS)
    load = moved_us / net.capacity_gbs / span if span > 0 else np.zeros(net.nresources)
    return load, (rate @ traffic.shares) / net.capacity_gbs[:shown, None]


def _ranks(problem: Problem, schedule: Schedule, traffic: DrawnTraffic) -> dict[str, Any]:
    """Return each rank's sending and receiving rates over time, and how much of what it lacks it has.

    Returns:
        A dictionary with top_gbs (the highest rate in GB/s) and three packed tables (see `pack_table`) with a row for
        each rank: out and in (rates as shares of top_gbs) and got (see `_progress`).
    """
    net = traffic.net
    in_use = np.flatnonzero(traffic.row >= 0)
    rates = []
    for end in (net.src, net.dst):
        shape = (net.nranks, len(traffic.first))
        users = csr_matrix((net.bandwidth_gbs[in_use], (end[in_use], traffic.row[in_use])), shape=shape)
        rates.append(users @ traffic.shares)
    top, tables = rank_rates(*rates)
    progress = _progress(problem, schedule, traffic.shares.shape[1], traffic.span)
    return {"top_gbs": round_value(top), **tables, "got": pack_table(progress)}


def _progress(problem: Problem, schedule: Schedule, bins: int, span: float) -> Floats:
    """Return the share of what each rank lacks that has come by the end of each piece of time, shape (ranks, bins).

    It is 1 for a rank that lacks nothing. Of a quotient all ranks of an orbit have the same shares.

    Args:
        problem: The problem.
        schedule: Its schedule.
        bins: Number of equal pieces of time.
        span: End of the last piece in µs; arrivals after it count in the last piece.
    """
    net, collective = problem.network, problem.collective
    n = net.nranks
    # A rank does not lack a value that it holds at the start, or a sum of which it is the only contributor.
    complete = ~collective.reduces | (np.diff(collective.holders[0]) == 1)
    had = collective.pre[complete[collective.pre[:, 1]]]
    goals, before = (rows[:, 1] * n + rows[:, 0] for rows in (collective.post, had))
    lacking = np.setdiff1d(goals, before)
    came = schedule.chunk * n + net.dst[schedule.link]
    arrives = schedule.end_us + net.alpha_us[schedule.link]
    hit = np.isin(came, lacking)
    place, arrives = np.searchsorted(lacking, came[hit]), arrives[hit]
    adds = collective.reduces[schedule.chunk[hit]]
    last, first = np.full(len(lacking), -np.inf), np.full(len(lacking), np.inf)
    np.maximum.at(last, place[adds], arrives[adds])
    np.minimum.at(first, place[~adds], arrives[~adds])
    when = np.where(collective.reduces[lacking // n], last, first)
    comes = np.isfinite(when)
    rank, group = lacking % n, np.arange(n)
    if problem.quotient is not None:  # All ranks of an orbit progress equally.
        translations = problem.quotient.translations
        back = [-digit for digit in digits(translations, group)]
        group = np.unique(translate(translations, group, back), return_inverse=True)[1]
        rank = group[rank]
    # Rounding must not push an arrival past its piece: the last arrival is the end of the last piece.
    slot = np.ceil(when[comes] / span * bins - 1e-9) - 1 if span > 0 else np.zeros(int(comes.sum()))
    nrows = int(group.max()) + 1
    cell = rank[comes] * bins + np.clip(slot, 0, bins - 1).astype(np.int64)
    arrived = np.cumsum(np.bincount(cell, minlength=nrows * bins).reshape(nrows, bins), axis=1)
    lacking_of_row = np.bincount(rank, minlength=nrows)[:, None]
    share = np.where(lacking_of_row > 0, arrived / np.maximum(lacking_of_row, 1), 1.0)
    return np.asarray(share[group])


def _link_name(problem: Problem, net: Network, link: int) -> str:
    """Return a link's name such as `0→1`, with ` over SWITCH` if neighbouring links of the network join the same ranks.

    SWITCH is the vertex to which the link's first resource leads.
    """
    name = problem.link_name(link)
    near = slice(max(0, link - 1), link + 2)
    if np.sum((net.src[near] == net.src[link]) & (net.dst[near] == net.dst[link])) > 1:
        begin = name[: name.index("→") + 1]
        crossed = (net.resource_names[r] for r in net.uses(link).tolist())
        first = next((resource for resource in crossed if resource.startswith(begin)), "")
        name += f" over {first.split('→')[-1]}" if first else ""
    return name


def _sends(
    listed: Schedule, lineage: Lineage, traffic: DrawnTraffic, row: Ints, copies: int, total: int
) -> dict[str, Any]:
    """Return the page's data about the listed sends, their links, and the sends that brought what they carry.

    Args:
        listed: The listed sends.
        lineage: Their lineage.
        traffic: Traffic of the whole schedule.
        row: The page's row of each row of `traffic`.
        copies: Number of sends for which a stored send stands.
        total: Number of stored sends of the whole schedule.

    Returns:
        A dictionary of lists with an element for each listed send: link (index in `links`), chunk (index among the
        listed chunks), start and end in µs, reduces and own (0 or 1), and hop; `from`, cut by `from_ptr`, has the sends
        that brought what is carried. `links` has the ends, row, α in µs and physical links of each link in use. total,
        stored and shown are numbers of sends.
    """
    net = traffic.net
    links, at = np.unique(listed.link, return_inverse=True)
    chunk = np.unique(listed.chunk, return_inverse=True)[1]  # The page numbers only the chunks that it lists.
    drawn = drawn_edges(0, len(traffic.physical))
    paths = [[edge for edge in net.uses(link).tolist() if edge < drawn] for link in links.tolist()]
    return {
        "total": total * copies,
        "stored": total,
        "shown": len(listed),
        "links": {
            "src": net.src[links].tolist(),
            "dst": net.dst[links].tolist(),
            "row": row[traffic.row[links]].tolist(),
            "alpha": round_all(net.alpha_us[links]),
            "path": paths,
        },
        "link": at.reshape(-1).tolist(),
        "chunk": chunk.reshape(-1).tolist(),
        "start": round_all(listed.start_us),
        "end": round_all(listed.end_us),
        "reduces": listed.reduces.astype(int).tolist(),
        "own": lineage.own.astype(int).tolist(),
        "hop": lineage.hop.tolist(),
        "from_ptr": lineage.ptr.tolist(),
        "from": lineage.rows.tolist(),
    }
