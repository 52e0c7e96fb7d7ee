"""A program as a page shows it: its figures, connections, threadblocks, and the order of its steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from emit.check.cells import cells_of
from emit.check.order import run
from emit.columns import Columns, columns_of
from emit.findings import Findings
from emit.formats import Format, format_of, verify_header, verify_program
from emit.goal import Goal, goal_for
from emit.library.checking.schedules import costed_as_stated
from emit.library.entry import IndexEntry
from emit.library.networks import Networks
from emit.library.selection.lookup import goal_beside
from emit.msccl.read import read_msccl
from emit.program import OPS, READS_SRC, Program, Step
from emit.timing.predict import Predictor
from emit.timing.timed import TimedProgram
from synth.app.report.item import EXPONENTS, Fact, Item, ItemTiming, proved_timing
from synth.app.report.layout import EdgeFigures, drawn_edges, network_view, place_vertices
from synth.app.report.lineage import Carried, assign_ticks, describe_values, trace_program
from synth.app.report.schedule import DrawnTraffic, physical_links, resource_loads, traffic_view
from synth.app.report.shares import MOST_ROWS, rank_rates, round_all, round_value, shares_of_time, timeline_rows
from synth.app.report.sources import Source
from synth.app.report.stated import stated_timing
from synth.bounds.prove import prove
from synth.model.problem import make_problem
from synth.model.registry import find_kind
from synth.model.requirements import sum_by
from synth.model.text import (
    format_count,
    format_gap,
    format_number,
    format_served,
    format_size,
    format_spans,
    format_time,
)
from synth.storage.check import ScheduleCheck
from topologies.arrays import Floats, Ints
from topologies.errors import InputError
from topologies.load import NO_COSTS, apply_costs
from topologies.topology import Topology

_PLAN_NOTE = (
    "The drawing shows the messages of the plan in the order of its data, by the links' latency and bandwidth,"
    " stretched to the plan's own time. Times by size are those of the plan itself, with its signals and an executor's"
    " costs."
)
_USUAL_BYTES = 1 << 20  # size of messages where neither a user nor an index states one
_PIECES = 160  # pieces of time, at most
_FINDINGS = 8  # findings that a page lists
_PROVED = 64  # ranks up to which a page proves a bound for a program
_FULL = 1.05  # Load of a link or limit up to which it carries what is drawn; predicted times are rounded.


@dataclass(frozen=True, eq=False)
class _ReportedRun:
    """The times of a program's transmissions, in ticks, or in µs if a predictor times it.

    Attributes:
        columns: The program's steps.
        predictor: The predictor, or None for ticks.
        sent: The steps that send, in the order of the arrays.
        connection: Number of each transmission's connection.
        chunks: Number of chunks of each transmission.
        start: Start of each transmission within 0..span.
        end: End of each transmission on its connection.
        arrive: Arrival of each transmission.
        span: Time of the last arrival.
        bytes: Bytes of each transmission; zeros without a predictor.
        link: Link of the predictor's network that each transmission takes, int; zeros without a predictor.
        shares: Share of each piece of time in which each connection is in use, shape (connections, pieces of time).
    """

    columns: Columns
    predictor: Predictor | None
    sent: list[int]
    connection: Ints
    chunks: Floats
    start: Floats
    end: Floats
    arrive: Floats
    span: float
    bytes: Floats
    link: Ints
    shares: Floats


def program_item(
    source: Source,
    most_sends: int,
    networks: Networks,
    topology: Topology | None,
    group: tuple[int, ...] | None,
    size_bytes: float | None,
    only: bool,
) -> Item:
    """Return the program of a file, checked, with its times: those of the library's index, or predicted ones.

    The times are those that the index states if it states any and neither a topology nor a size is given. The drawing
    is over time if the network is known, otherwise in steps. A program that is wrong, has a deadlock or is not checked
    is shown too, with the reason.

    Args:
        source: The file.
        most_sends: Most transmissions that the page lists.
        networks: The networks that the library's index may name.
        topology: Topology on which the program is to run; None for the one that the index names.
        group: Ranks of the topology on which it runs. None for the ranks that the library's index states, if it states
            them for this topology; otherwise for the first ranks.
        size_bytes: Message size in bytes; None for the size for which the index states a time, otherwise 1 MiB or the
            size nearest to it that the program serves.
        only: True if it is the page's only algorithm, so that it must run on a topology that is given.

    Raises:
        InputError: The file cannot be read or holds no program, the program is too large, or the only program does not
            run on the given topology.
    """
    entry, goal = source.entry, goal_beside(source.path)
    verdict = verify_program(source.path, goal)
    form, undrawn = format_of(source.path), list[str]()
    if verdict.program is None and form.load_converter is not None:  # A plan may be too large to become a program.
        undrawn = ["Not drawn: " + "; ".join(verdict.lines)]
        verdict = verify_header(source.path, goal)
    if verdict.program is None and (form.simulator or not form.holds_program):
        raise InputError("; ".join(verdict.lines))
    program = verdict.program or read_msccl(source.path)  # `read_msccl` raises with what cannot be read.
    right = verdict.status == "right"
    explained = [line for line in verdict.lines if line][: _FINDINGS + 1]
    notes = undrawn + (explained[1:] if right else explained if verdict.status.startswith("not") else [])
    timing = stated_timing(entry)
    is_stated = topology is None and size_bytes is None and timing.time_us is not None
    low, high = program.min_bytes, program.max_bytes or None
    if entry is not None:
        low, high = entry.min_bytes, entry.max_bytes
    size = size_bytes or timing.size_bytes or float(max(low, min(_USUAL_BYTES, high or _USUAL_BYTES)))
    network = topology
    if entry is not None and (topology is None or topology.name == entry.topology):
        known = networks.of(entry)
        network = (None if known is None else costed_as_stated(entry, known)) or topology
        group = entry.communicator if group is None else group
    timed: TimedProgram | None = None
    try:
        predictor, ends_us = None, None
        if network is not None:
            predictor = Predictor(program, network, group)
            timed = form.predictor(source.path, program, network, group)
            timing = timing if is_stated else _timed(program, timed, size, right)
            if timed.fifo_depth is None:  # The time of a plan is not that of its Program.
                predictor, ends_us = Predictor(program, apply_costs(network, NO_COSTS), group), timing.time_us
                notes = notes if undrawn else [*notes, _PLAN_NOTE]
        view = _undrawn_view(program) if undrawn else program_view(program, most_sends, goal, predictor, size, ends_us)
    except InputError as error:
        if network is None or (only and topology is not None):
            raise
        # Of many programs, some may be for other networks.
        notes = [*notes, f"Shown without times: {error}."]
        view = _undrawn_view(program) if undrawn else program_view(program, most_sends, goal)
    comparison_key: tuple[object, ...] = (program.nranks,)
    if entry is not None:
        root = 0 if entry.root is None else entry.group.index(entry.root)
        comparison_key = entry.group, entry.relays, root, entry.sizes
    return Item(
        name=source.name,
        collective=program.collective,
        comparison_key=comparison_key,
        subtitle=f"{format_count(program.nranks, 'rank')} · {form.title}, {program.protocol}",
        timing=timing,
        view=view,
        facts=tuple(_facts(program, view, timing, _counts(source.path, form, program, timed))),
        verdict="optimal" if timing.optimal else "checked: right" if right else verdict.status,
        wrong="; ".join(explained).removeprefix("wrong: ") if verdict.status in ("wrong", "deadlock") else "",
        notes=tuple(notes),
        serves=format_served(low, high),
        no_proof=_no_proof(entry, network),
    )


def _no_proof(entry: IndexEntry | None, topology: Topology | None) -> str:
    """Return the text that replaces a missing proof.

    It names what the index states as the proof, in at most 400 characters; otherwise it asks for a topology if there is
    none, or states why no bound was computed.

    Args:
        entry: Entry of the library's index, or None.
        topology: Topology on which the program was timed, or None.
    """
    words = None if entry is None else entry.row.get("proof")
    if entry is not None and isinstance(words, str):
        if entry.proof_file is None or entry.schedule is None:
            how = "The library has no file that proves it; a search or a build with --proof writes one."
        else:
            how = (
                f"Choose {Path(entry.schedule).name} above to see it checked; synth prove {entry.schedule} does so too."
            )
        return f"The library's index states: {words[:400]}. {how}"
    if topology is None:
        return "An executor's file does not state how near it is to the best. Give the network (--topo) to find out."
    return f"No bound was computed: the program is not right, its root is not known, or it has over {_PROVED} ranks."


def _timed(program: Program, predictor: TimedProgram, size: float, right: bool) -> ItemTiming:
    """Return the predicted times at `size` bytes and from 1 KiB to 1 GiB, with a proved bound if there can be one.

    A bound is proved only for a right program of a collective that is not rooted and states its question in full, on at
    most 64 ranks.

    Args:
        program: The program.
        predictor: What predicts its times.
        size: Message size in bytes.
        right: Whether the program was checked and is right.
    """
    topology = predictor.topology
    sizes = [float(1 << e) for e in EXPONENTS]
    curve = tuple((s, predictor.time_us(s)) for s in sizes)
    time_us = predictor.time_us(size)
    kind = find_kind(program.collective)
    if not right or not kind.unit or kind.rooted or program.nranks > _PROVED:
        return ItemTiming(topology.name, size, time_us, curve=curve)
    problem = make_problem(topology, program.collective, predictor.group)
    bound = prove(problem)
    bound_us, decisive = bound.at(size)
    checked = ScheduleCheck(bound_us=bound_us, witness=decisive, limits=bound.witnesses)
    return proved_timing(problem, checked, size, time_us, curve, sizes)


def _counts(path: Path, form: Format, program: Program, timed: TimedProgram | None) -> list[Fact]:
    """Return how much a file has the ranks do, as tiles; of a plan, what the plan has, and not its Program.

    Args:
        path: The file.
        form: Its format.
        program: Its program, or what a plan does as a program.
        timed: The file's predictor; None if no network is known, and then a plan's operations are not counted.
    """
    ranks, blocks = f"on {format_count(program.nranks, 'rank')}", form.threadblocks(program, path)
    counts = [("Threadblocks", str(max(blocks, default=0)), f"at most on a rank; {format_number(sum(blocks))} in all")]
    if form.holds_program:
        counts.insert(0, ("Instructions", format_number(program.nsteps), ranks))
        return [*counts, ("Channels", str(program.nchannels), program.protocol)]
    return counts if timed is None else [("Operations", format_number(timed.nsteps), ranks), *counts]


def _facts(program: Program, view: dict[str, Any], timing: ItemTiming, counts: list[Fact]) -> list[Fact]:
    """Return the page's tiles, each as (label, figure, remark): times if known, then sizes of the program.

    Args:
        program: The program.
        view: What `program_view` returned of it; without a network there is no tile on transmissions.
        timing: Its times.
        counts: What `_counts` returned.
    """
    facts: list[Fact] = []
    if timing.time_us is not None:
        at = f"at {format_size(round(timing.size_bytes))}"
        facts.append(("Predicted time", format_time(timing.time_us), at))
    if timing.gap is not None:
        how = "proved below" if timing.proof else "as the index states it"
        facts.append(("Gap (time / bound)", format_gap(timing.gap), how))
    facts += [
        *counts,
        (
            "Chunks",
            str(program.nchunks_per_loop),
            "of the program, in a buffer; a schedule's chunks may be cut into several",
        ),
    ]
    if view["network"] is not None:
        if view["unit"] == "steps":
            facts.append(("Longest chain", format_count(round(view["span"]), "instruction"), "one after another"))
        facts.append(("Transmissions", format_number(view["sends"]["total"]), "of the program's chunks"))
    return facts


def _undrawn_view(program: Program) -> dict[str, Any]:
    """Return the data of a program of which nothing but its threadblocks is shown, as `program_view` does."""
    blocks = _blocks(program, [], 0)
    return {"kind": "program", "unit": "steps", "span": 0.0, "network": None, "blocks": blocks}


def program_view(
    program: Program,
    most_sends: int,
    goal: Goal | None = None,
    predictor: Predictor | None = None,
    size_bytes: float = 0.0,
    ends_us: float | None = None,
) -> dict[str, Any]:
    """Return the data that the page's script draws, as a dictionary of plain values.

    Without a predictor a step takes one tick, and the load of a connection is its share of the busiest connection's
    chunks. With one, times are predicted in µs, and instructions are not listed. A program with a deadlock is drawn as
    far as it runs. Of one whose steps have errors other than races, only the threadblocks are in the data, and
    `network` is None.

    Args:
        program: The program.
        most_sends: Most transmissions, and most instructions, that are listed.
        goal: Goal of the program, which states which cells are the same memory; None to derive it from the collective.
        predictor: What predicts its times, or None for ticks.
        size_bytes: Message size in bytes; used only with a predictor.
        ends_us: Time in µs to which the predicted times are stretched; None to leave them as they are.

    Raises:
        InputError: The program moves too many chunks to be followed, or has an instruction that no program can hold.
    """
    findings = Findings()
    columns = columns_of(program, findings)
    if any(f.kind != "race" for f in findings.reported):
        return _undrawn_view(program)
    order = run(columns, None, split=False).order
    tick = assign_ticks(columns, order)
    timed = _run(columns, order, tick, predictor, size_bytes, ends_us)
    carried = trace_program(columns, order, cells_of(program, columns, _aliasing(program, goal), False))
    rows, row = _rows(timed, len(timed.sent) <= most_sends)
    traffic = _switched_traffic(timed)
    return {
        "kind": "program",
        "unit": "steps" if predictor is None else "µs",
        "span": round_value(timed.span),
        "network": _network(program, timed)
        if traffic is None or predictor is None
        else traffic_view(
            predictor.topology, predictor.group, program.nranks, traffic, [str(rank) for rank in range(program.nranks)]
        ),
        "ranks": _ranks(program, timed),
        "fold": None,
        "rows": rows,
        "sends": _sends(timed, row, carried, most_sends, _paths(timed, traffic)),
        "chunks": None,
        "blocks": _blocks(program, tick if predictor is None else [], most_sends),
    }  # fmt: skip


def _run(
    columns: Columns,
    order: list[int],
    tick: list[int],
    predictor: Predictor | None,
    size_bytes: float,
    ends_us: float | None,
) -> _ReportedRun:
    """Return when each transmission starts, ends and arrives, and the share of time in which each connection is in use.

    Args:
        columns: The program's steps.
        order: An order in which the steps can be executed.
        tick: Tick of each step.
        predictor: What predicts times in µs, or None: each transmission then takes one tick and arrives as it ends.
        size_bytes: Message size in bytes; used only with a predictor.
        ends_us: Time in µs to which the predicted times are stretched; None to leave them as they are.
    """
    if predictor is None:
        sent = [step for step in order if columns.sends[step] >= 0]
        start = np.array([tick[step] for step in sent], dtype=np.float64)
        end = arrive = start + 1.0
        span, moved_bytes = max(tick, default=-1) + 1.0, np.zeros(len(sent))
        link = np.zeros(len(sent), dtype=np.int64)
    else:
        moved = predictor.transfers(size_bytes)
        sent, start, end, arrive = moved.step.tolist(), moved.start_us, moved.end_us, moved.arrive_us
        span, moved_bytes, link = float(arrive.max(initial=0.0)), moved.bytes, moved.link
        if ends_us is not None and span > 0:
            start, end, arrive = (times_us * (ends_us / span) for times_us in (start, end, arrive))
            span = ends_us
    rows = np.array(sent, dtype=np.int64)
    connection, chunks = columns.sends[rows], columns.count[rows].astype(np.float64)
    pieces = _PIECES if predictor is not None else max(1, min(_PIECES, int(span)))
    shares = shares_of_time(connection, start, end, len(columns.connections), pieces, span)
    return _ReportedRun(
        columns, predictor, sent, connection, chunks, start, end, arrive, span, moved_bytes, link, shares
    )


def _aliasing(program: Program, goal: Goal | None) -> Goal | None:
    """Return the goal that says which cells of the buffers i and o are the same memory.

    It is `goal` if there is one, otherwise that of the program's collective, or None if this has no goal.
    """
    if goal is not None:
        return goal
    inplace = program.inplace and not program.outofplace
    with suppress(InputError):
        return goal_for(program.collective, program.nranks, program.nchunks_per_loop, inplace, program.root)
    return None


def _network(program: Program, timed: _ReportedRun) -> dict[str, Any]:
    """Return the page's data about the ranks and the pairs of them that are connected, as `network_view` does.

    The load of a pair is its number of chunks / that of the busiest pair; with a predictor, the time in use of its
    connections / the span.
    """
    n, predictor = program.nranks, timed.predictor
    ends = np.array([pair[:2] for pair in timed.columns.connections], dtype=np.int64).reshape(-1, 2)
    pairs, edge = np.unique(ends, axis=0, return_inverse=True)
    edge = edge.reshape(-1)
    moved = sum_by(edge[timed.connection], timed.chunks, len(pairs))
    load = moved / max(1.0, float(moved.max(initial=0.0)))
    load_over_time = np.zeros((len(pairs), timed.shares.shape[1]))
    np.add.at(load_over_time, edge, timed.shares)
    name, total, ranks, nodes = "", n, list(range(n)), np.zeros(n, dtype=np.int64)
    if predictor is not None:
        topology = predictor.topology
        busy = sum_by(edge[timed.connection], timed.end - timed.start, len(pairs))
        load = busy / timed.span if timed.span > 0 else busy
        name = "" if topology.switches else topology.name
        total, ranks = topology.nranks, list(predictor.group)
        nodes = topology.nodes[ranks]
    at = place_vertices(name, total, ranks, nodes, 0, pairs)
    names = [str(r) for r in range(n)]
    return network_view(at, pairs, n, n, names, EdgeFigures(load, load_over_time, np.zeros(0), moved))


def _switched_traffic(timed: _ReportedRun) -> DrawnTraffic | None:
    """Return the traffic on the physical links of a network with switches and NICs; None if it cannot be drawn.

    It cannot without a predictor, if a connection sends nothing, or if a switch multicasts or reduces, so that links
    carry less than the sum over the connections.
    """
    if timed.predictor is None or not timed.predictor.topology.switches:
        return None
    net, topology = timed.predictor.network, timed.predictor.topology
    link_of_connection = np.full(len(timed.columns.connections), -1, dtype=np.int64)
    link_of_connection[timed.connection] = timed.link
    if not len(timed.link) or link_of_connection.min() < 0 or link_of_connection.max() >= net.nlinks:
        return None
    first, of_send = np.unique(link_of_connection[timed.connection], return_inverse=True)
    row, of_send = np.full(net.nlinks, -1, dtype=np.int64), of_send.reshape(-1)
    row[first] = np.arange(len(first))
    busy_us = sum_by(of_send, timed.end - timed.start, len(first))
    traffic = DrawnTraffic(
        net,
        timed.span,
        row,
        first,
        copies=1,
        load=busy_us / timed.span if timed.span > 0 else busy_us,
        shares=shares_of_time(of_send, timed.start, timed.end, len(first), timed.shares.shape[1], timed.span),
        bytes=sum_by(of_send, timed.bytes, len(first)),
        physical=physical_links(topology, net),
    )
    return traffic if resource_loads(traffic, 0)[0].max(initial=0.0) <= _FULL else None


def _paths(timed: _ReportedRun, traffic: DrawnTraffic | None) -> dict[tuple[int, int], list[int]]:
    """Return the drawn edges that each connected pair of ranks uses: one, or the physical links through switches.

    Without drawn edges every list is empty.
    """
    pairs = sorted({(a, b) for a, b, _ in timed.columns.connections})
    if traffic is None:
        return {pair: [edge] if drawn_edges(0, len(pairs)) else [] for edge, pair in enumerate(pairs)}
    net, drawn = traffic.net, drawn_edges(traffic.net.nranks, len(traffic.physical))
    ends = zip(net.src[traffic.first].tolist(), net.dst[traffic.first].tolist(), strict=True)
    return {
        pair: [edge for edge in net.uses(link).tolist() if edge < drawn]
        for pair, link in zip(ends, traffic.first.tolist(), strict=True)
    }


def _ranks(program: Program, timed: _ReportedRun) -> dict[str, Any]:
    """Return how many connections of every rank send and receive in each piece of time, as shares of the most.

    Returns:
        A dictionary with top (the most), out and in (packed tables, see `pack_table`), and got, which is None.
    """
    rates = []
    for side in (0, 1):
        rate = np.zeros((program.nranks, timed.shares.shape[1]))
        np.add.at(rate, [pair[side] for pair in timed.columns.connections], timed.shares)
        rates.append(rate)
    top, tables = rank_rates(*rates)
    return {"top": round_value(max(top, 1e-9)), **tables, "got": None}


def _rows(timed: _ReportedRun, all_listed: bool) -> tuple[dict[str, Any], Ints]:
    """Return the page's timeline with a row for each connection, sorted by ranks, and the row of each connection.

    If there are many connections or not all transmissions are listed, a row stands for a band of connections.

    Returns:
        The data of `timeline_rows`, and the row of each connection, int, shape (connections,).
    """
    connections = timed.columns.connections
    channels = len({channel for _, _, channel in connections}) > 1
    order = sorted(range(len(connections)), key=connections.__getitem__)
    ends = [connections[number] for number in order]
    names = [f"{a}→{b}" + (f" · ch {channel}" if channels else "") for a, b, channel in ends]
    busy = sum_by(timed.connection, timed.end - timed.start, len(order))[order]
    load = busy / timed.span if timed.span > 0 else busy
    view, band = timeline_rows(names, load, timed.shares[order], 1, len(order), all_listed)
    row = np.empty(len(order), dtype=np.int64)
    row[order] = band
    return view, row


def _sends(
    timed: _ReportedRun, row: Ints, carried: Carried, most: int, path_of_pair: Mapping[tuple[int, int], list[int]]
) -> dict[str, Any]:
    """Return the page's data about the first `most` transmissions, in the form of a schedule's sends.

    Args:
        timed: The transmissions.
        row: Timeline row of each connection.
        carried: What each step carries (see `trace_program`).
        most: Most transmissions that are listed.
        path_of_pair: The drawn edges that each connected pair of ranks uses.

    Returns:
        A dictionary of lists with an element for each listed transmission, among them link (index in `links`), start,
        end and arrives (None without a predictor). `words` holds the distinct texts on what is carried, and `what` the
        index of each transmission's text. `from`, cut by `from_ptr`, has the listed transmissions that brought what is
        carried.
    """
    columns = timed.columns
    listed = timed.sent[:most]
    place = {step: i for i, step in enumerate(listed)}
    words: dict[str, int] = {}
    words_of_send: list[int] = []
    hop: list[int] = []
    ptr, brought = [0], list[int]()
    for step in listed:
        values, sources = carried.get(step, ([], []))
        words_of_send.append(words.setdefault(describe_values(values), len(words)))
        parents = [place[p] for p in sources if p in place]
        hop.append(1 + max((hop[p] for p in parents if p < len(hop)), default=0))
        brought += parents
        ptr.append(len(brought))
    links, at = np.unique(timed.connection[: len(listed)], return_inverse=True)
    ends = [columns.connections[link] for link in links.tolist()]
    out, into = columns.messages()
    adds = set(out[columns.is_op(READS_SRC)[into]].tolist())  # steps whose data the receiver adds to a value
    return {
        "total": len(timed.sent),
        "stored": len(timed.sent),
        "shown": len(listed),
        "links": {
            "src": [a for a, _, _ in ends],
            "dst": [b for _, b, _ in ends],
            "row": row[links].tolist(),
            "path": [path_of_pair[a, b] for a, b, _ in ends],
        },
        "link": at.reshape(-1).tolist(),
        "chunk": [],
        "words": list(words),
        "what": words_of_send,
        "count": columns.count[listed].tolist() if listed else [],
        "place": [list(columns.place(s)) for s in listed],
        "start": round_all(timed.start[: len(listed)]),
        "end": round_all(timed.end[: len(listed)]),
        "arrives": None if timed.predictor is None else round_all(timed.arrive[: len(listed)]),
        "reduces": [int(step in adds) for step in listed],
        "own": [0] * len(listed),
        "hop": hop,
        "from_ptr": ptr,
        "from": brought,
    }


def _blocks(program: Program, tick: list[int], most: int) -> dict[str, Any]:
    """Return every rank's threadblocks, and their instructions with the tick of each.

    Args:
        program: The program.
        tick: Tick of each step, −1 for a step that is never executed; [] to list no instructions.
        most: Most instructions that are listed; a threadblock is listed whole or not at all.

    Returns:
        A dictionary: rank, tb, channel, send, recv and steps have an element for each of the first 1024 threadblocks;
        of is the number of all threadblocks; ops names all operations and count how often each occurs; listed has
        [threadblock, position, tick, operation, text] for each instruction.
    """
    blocks = [(rank, tb, block) for rank, gpu in enumerate(program.gpus) for tb, block in enumerate(gpu.threadblocks)]
    shown = min(len(blocks), MOST_ROWS * 4)
    steps: list[list[Any]] = []
    at = 0
    for number, (_, _, block) in enumerate(blocks):
        if tick and len(steps) + len(block.steps) <= most and number < shown:
            steps += [
                [number, position, tick[at + position], OPS.index(step.op), _instruction(step)]
                for position, step in enumerate(block.steps)
                if tick[at + position] >= 0
            ]
        at += len(block.steps)
    kinds = Counter(step.op for _, _, _, step in program.steps())
    rows = [(rank, tb, b.channel, b.send, b.recv, len(b.steps)) for rank, tb, b in blocks[:shown]]
    names = ("rank", "tb", "channel", "send", "recv", "steps")
    return {name: [row[i] for row in rows] for i, name in enumerate(names)} | {
        "of": len(blocks),
        "ops": list(OPS),
        "count": [kinds.get(op, 0) for op in OPS],
        "listed": steps,
    }


def _instruction(step: Step) -> str:
    """Return what an instruction reads and writes and what it waits for: `i[0-3] → o[0-3], waits for tb 1 step 2`.

    The instruction's name is not part of it. A nop that waits for nothing gives "".
    """

    def cells(buffer: str, first: int) -> str:
        """Return the cells of a buffer in words."""
        return f"{buffer}[{format_spans(range(first, first + step.count))}]" if first >= 0 else ""

    sides = [cells(step.src_buf, step.src_off), cells(step.dst_buf, step.dst_off)]
    shown = {"s": sides[:1], "r": sides[1:], "nop": []}.get(step.op, sides)
    words = " → ".join(side for side in shown if side)
    waits = f"waits for tb {step.dep_tb} step {step.dep_step}" if step.dep_tb >= 0 else ""
    return ", ".join(part for part in (words, waits) if part)
