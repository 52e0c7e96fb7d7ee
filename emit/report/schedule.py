"""A stored schedule as a page shows it: the network and its load, rows of a timeline, and where chunks come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from emit.report.layout import MOST_EDGES, MOST_VERTICES, drawn_edges, network_view, place_vertices
from emit.report.lineage import Lineage, describe_chunks, sample_chunks, trace_schedule
from emit.report.shares import (
    Floats,
    Ints,
    pack_table,
    rank_rates,
    round_all,
    round_value,
    shares_of_time,
    timeline_rows,
)
from synth.model.problem import Problem
from synth.model.requirements import sum_by
from synth.model.schedule import Schedule
from synth.storage.schedule_file import Stored
from synth.timing.simulate import US_PER_BYTE_AT_1_GBS, time_us
from topologies.network import Network
from topologies.symmetry.translations import orbits, representatives
from topologies.topology import Topology

MOST_BINS = 160
_CELLS = 4_000_000  # of a table (links × pieces of time) in memory


@dataclass(frozen=True, eq=False)
class _Traffic:
    """What goes over the links of the whole network; shapes (links,), (rows,), (sends,), (rows,), (rows,).

    row: the timeline row of each link: its own, or that of all its translates, `copies` of them; −1 for an idle one.
    first: a link of each row.  of_send: row of every send that is stored.  busy_us: how long a link of the row is busy.
    physical: the resources that are physical links, and which of the topology's they are.
    """

    net: Network
    row: Ints
    first: Ints
    copies: int
    of_send: Ints
    busy_us: Floats
    bytes: Floats
    physical: tuple[Ints, Ints]


def schedule_view(stored: Stored, most_sends: int) -> dict[str, Any]:
    """What the page's script draws; times in µs, loads as shares of the makespan (or of the capacity meanwhile).

    At most `most_sends` rows are listed one by one: of a larger schedule those of a sample of its chunks.
    """
    problem, schedule = stored.problem, stored.schedule
    span = time_us(problem, schedule)
    traffic = _traffic(problem, schedule)
    nrows = len(traffic.first)
    bins = max(16, min(MOST_BINS, _CELLS // max(1, nrows)))
    shares = shares_of_time(traffic.of_send, schedule.start_us, schedule.end_us, nrows, bins, span)
    chunks = sample_chunks(schedule.chunk, problem.collective.nchunks, most_sends)
    kept = schedule.take(np.isin(schedule.chunk, chunks))
    names = [_link_name(problem, int(link)) for link in traffic.first]
    load = traffic.busy_us / span if span > 0 else np.zeros(nrows)
    rows, row = timeline_rows(names, load, shares, traffic.copies, traffic.net.nlinks, len(kept) == len(schedule))
    return {
        "kind": "schedule",
        "unit": "µs",
        "span": round_value(span),
        "network": _network(problem, traffic, shares, span),
        "ranks": _ranks(problem, schedule, traffic, shares, bins, span)
        if problem.nranks <= MOST_VERTICES
        else {"out": None, "in": None, "got": None},
        "fold": None if problem.quotient is None else [list(digit) for digit in problem.quotient.translations],
        "rows": rows,
        "sends": _sends(kept, trace_schedule(problem, kept), traffic, row, stored.orbit, len(schedule)),
        "chunks": describe_chunks(problem, chunks) | {"of": problem.collective.nchunks},
    }


def _traffic(problem: Problem, schedule: Schedule) -> _Traffic:
    net = problem.network if problem.quotient is None else problem.quotient.whole
    link_row, copies = np.arange(net.nlinks), 1
    if problem.quotient is not None:
        link_row = orbits(net, problem.quotient.translations).link_class
        copies = problem.quotient.order
    classes, first = np.unique(link_row, return_index=True)
    # a row for each class that is used, in the order of their first links
    first = np.sort(first[np.isin(classes, link_row[schedule.link])])
    number = np.full(net.nlinks, -1, dtype=np.int64)
    number[link_row[first]] = np.arange(len(first))
    row = number[link_row]
    of_send = row[schedule.link]
    sizes = problem.collective.chunk_bytes(schedule.size_bytes)[schedule.chunk]
    return _Traffic(
        net,
        row,
        first,
        copies,
        of_send,
        sum_by(of_send, schedule.end_us - schedule.start_us, len(first)),
        sum_by(of_send, sizes, len(first)),
        _physical_links(problem.topology, net),
    )


def _network(problem: Problem, traffic: _Traffic, shares: Floats, span: float) -> dict[str, Any]:
    """Vertices with places, physical links with their load, and the other shared capacities."""
    net, topology = traffic.net, problem.topology
    resources, physical = traffic.physical
    local = np.full(topology.nvertices, -1, dtype=np.int64)
    local[list(problem.ranks)] = np.arange(problem.nranks)
    ends = np.column_stack([topology.link_src[physical], topology.link_dst[physical]])
    switches = np.unique(ends[ends >= topology.nranks])
    local[switches] = problem.nranks + np.arange(len(switches))
    ends = local[ends]
    nodes = topology.nodes[list(problem.ranks)]
    at = place_vertices(topology.name, topology.nranks, problem.ranks, nodes, len(switches), ends)
    load, now = _resources(traffic, shares, span, resources[: drawn_edges(len(at.x), len(ends))])
    return network_view(
        at,
        ends,
        problem.nranks,
        problem.collective.nranks,
        [topology.vertex_name(v) for v in (*problem.ranks, *switches.tolist())],
        load[resources],
        now,
        gbs=net.capacity_gbs[resources],
        limits=[
            {"name": net.resource_names[i], "gbs": round_value(net.capacity_gbs[i]), "load": round_value(load[i])}
            for i in np.setdiff1d(np.arange(net.nresources), resources).tolist()
        ],
    )


def _physical_links(topology: Topology, net: Network) -> tuple[Ints, Ints]:
    """Resources that are physical links, and which links of the topology they are. They come before all limits."""
    ends = zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True)
    number = {f"{topology.vertex_name(a)}→{topology.vertex_name(b)}": i for i, (a, b) in enumerate(ends)}
    found: list[int] = []
    for name in net.resource_names:
        link = number.get(name, -1)
        if link <= (found[-1] if found else -1):  # a limit, even if it bears the name of a link
            break
        found.append(link)
    return np.arange(len(found)), np.array(found, dtype=np.int64)


def _resources(traffic: _Traffic, shares: Floats, span: float, shown: Ints) -> tuple[Floats, Floats]:
    """Each resource's bytes / (capacity · makespan), and of those shown the same in every piece of time."""
    net = traffic.net
    users = net.link_of_use
    in_use = traffic.row[users] >= 0
    where = (net.uses_idx[in_use], traffic.row[users[in_use]])
    shape = (net.nresources, len(traffic.first))
    links = csr_matrix((np.ones(int(in_use.sum())), where), shape=shape)
    rate = csr_matrix((net.bandwidth_gbs[users[in_use]], where), shape=shape)[shown]
    moved_us = links @ (traffic.bytes * US_PER_BYTE_AT_1_GBS)
    load = moved_us / net.capacity_gbs / span if span > 0 else np.zeros(net.nresources)
    return load, (rate @ shares) / net.capacity_gbs[shown, None]


def _ranks(
    problem: Problem, schedule: Schedule, traffic: _Traffic, shares: Floats, bins: int, span: float
) -> dict[str, Any]:
    """Of every rank over time: what it sends and gets, as shares of `top_gbs`, and how much it has."""
    net = traffic.net
    in_use = np.flatnonzero(traffic.row >= 0)
    rates = []
    for end in (net.src, net.dst):
        shape = (net.nranks, len(traffic.first))
        users = csr_matrix((net.bandwidth_gbs[in_use], (end[in_use], traffic.row[in_use])), shape=shape)
        rates.append(users @ shares)
    top, tables = rank_rates(*rates)
    return {"top_gbs": round_value(top), **tables, "got": pack_table(_progress(problem, schedule, bins, span))}


def _progress(problem: Problem, schedule: Schedule, bins: int, span: float) -> Floats:
    """The part of what each rank lacks that has come by the end of each piece of time; shape (ranks, bins)."""
    net, collective = problem.network, problem.collective
    n = net.nranks
    # a value that is there before is not lacking, nor a sum to which nobody else contributes
    complete = ~collective.reduces | (np.diff(collective.holders[0]) == 1)
    had = collective.pre[complete[collective.pre[:, 1]]]
    goals, before = (rows[:, 1] * n + rows[:, 0] for rows in (collective.post, had))
    lacking = np.setdiff1d(goals, before)
    came = schedule.chunk * n + net.dst[schedule.link]
    arrives = schedule.end_us + net.alpha_us[schedule.link]
    place = np.searchsorted(lacking, came)
    hit = np.zeros(len(came), dtype=bool)
    inside = place < len(lacking)
    hit[inside] = lacking[place[inside]] == came[inside]
    place, arrives = place[hit], arrives[hit]
    adds = collective.reduces[schedule.chunk[hit]]
    last, first = np.full(len(lacking), -np.inf), np.full(len(lacking), np.inf)
    np.maximum.at(last, place[adds], arrives[adds])
    np.minimum.at(first, place[~adds], arrives[~adds])
    when = np.where(collective.reduces[lacking // n], last, first)
    there = np.isfinite(when)
    rank, group = lacking % n, np.arange(n)
    if problem.quotient is not None:  # all ranks of an orbit progress equally
        lowest = group.copy()
        for stride, extent in problem.quotient.translations:
            lowest = lowest - lowest // stride % extent * stride
        group = np.searchsorted(representatives(problem.quotient.translations, n), lowest)
        rank = group[rank]
    # a hair's breadth before its edge still counts to it: the last arrival is the end of the last piece
    slot = np.ceil(when[there] / span * bins - 1e-9) - 1 if span > 0 else np.zeros(int(there.sum()))
    nrows = int(group.max()) + 1
    cell = rank[there] * bins + np.clip(slot, 0, bins - 1).astype(np.int64)
    arrived = np.cumsum(np.bincount(cell, minlength=nrows * bins).reshape(nrows, bins), axis=1)
    wanted = np.bincount(rank, minlength=nrows)[:, None]
    share = np.where(wanted > 0, arrived / np.maximum(wanted, 1), 1.0)
    return np.asarray(share[group])


def _link_name(problem: Problem, link: int) -> str:
    """`0→1`, with the first switch where several paths join the pair."""
    net = problem.network if problem.quotient is None else problem.quotient.whole
    name = problem.link_name(link)
    if any(
        0 <= near < net.nlinks and net.src[near] == net.src[link] and net.dst[near] == net.dst[link]
        for near in (link - 1, link + 1)
    ):
        first = next((net.resource_names[r] for r in net.uses(link).tolist()
                      if net.resource_names[r].startswith(f"{name.split('→')[0]}→")), "")  # fmt: skip
        name += f" over {first.split('→')[-1]}" if first else ""
    return name


def _sends(kept: Schedule, known: Lineage, traffic: _Traffic, row: Ints, copies: int, total: int) -> dict[str, Any]:
    """The sends one by one, with the links that they use and what brought what they carry."""
    net = traffic.net
    links, at = np.unique(kept.link, return_inverse=True)
    chunk = np.unique(kept.chunk, return_inverse=True)[1]  # the page numbers the chunks that it tells of
    physical, _ = traffic.physical
    edge_of = np.full(net.nresources, -1, dtype=np.int64)
    if len(physical) <= MOST_EDGES:
        edge_of[physical] = np.arange(len(physical))
    paths = [[e for e in edge_of[net.uses(int(link))].tolist() if e >= 0] for link in links]
    return {
        "total": total * copies,
        "stored": total,
        "shown": len(kept),
        "links": {
            "src": net.src[links].tolist(),
            "dst": net.dst[links].tolist(),
            "row": row[traffic.row[links]].tolist(),
            "alpha": round_all(net.alpha_us[links]),
            "path": paths,
        },
        "link": at.reshape(-1).tolist(),
        "chunk": chunk.reshape(-1).tolist(),
        "start": round_all(kept.start_us),
        "end": round_all(kept.end_us),
        "reduces": kept.reduces.astype(int).tolist(),
        "own": known.own.astype(int).tolist(),
        "hop": known.hop.tolist(),
        "from_ptr": known.ptr.tolist(),
        "from": known.rows.tolist(),
    }
