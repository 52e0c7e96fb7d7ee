"""An MSCCL program as a page shows it: connections, threadblocks, and the order in which things can happen."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emit.check.cells import cells_of
from emit.check.order import run
from emit.check.program import check, root_of
from emit.columns import Columns, columns_of
from emit.findings import Findings
from emit.goal import Goal, goal_for
from emit.program import OPS, READS_SRC, Program, Step
from emit.report.busy import MOST_EDGES, MOST_ROWS, busy_shares, rows, short, shorts, table
from emit.report.layout import places
from emit.report.values import carried, spans, ticks, value_words
from emit.timing.predict import Predictor
from synth.model.requirements import summed
from topologies.errors import InputError
from topologies.topology import Topology

__all__ = ["program_view"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_ROOTS = 16  # tried to find the root of a file that does not name it


def program_view(
    program: Program,
    most_sends: int,
    goal: Goal | None = None,
    topology: Topology | None = None,
    group: tuple[int, ...] | None = None,
    size_bytes: float = 0.0,
) -> dict[str, Any]:
    """What the page's script draws of a program.

    Without a topology a step takes one tick and the load of a connection is its part of the busiest one's chunks;
    with one, times are `emit.timing.predict`'s at `size_bytes`, in µs.

    Args:
        most_sends: transmissions and instructions that are told one by one, each.
        group: topology rank of each of the program's ranks.

    Raises:
        InputError: a topology on which the program cannot be timed.
    """
    found = Findings()
    c = columns_of(program, found)
    if any(f.kind != "race" for f in found.reported):
        return {
            "kind": "program",
            "unit": "steps",
            "span": 0.0,
            "network": None,
            "blocks": _blocks(program, [], 0),
        }
    order = run(c, None, split=False).order
    tick = ticks(c, order)
    sent = [step for step in order if c.sends[step] >= 0]
    start, end, timed = np.array([tick[s] for s in sent], dtype=np.float64), np.zeros(0), None
    if topology is None:
        end = start + 1.0
    else:
        timed = Predictor(program, topology, group)
        moved = timed.transfers(size_bytes)
        sent, start, end = moved.step.tolist(), moved.start_us, moved.end_us
    arrives = end if timed is None else moved.arrive_us
    span = float(arrives.max(initial=0.0)) if timed is not None else max(tick, default=-1) + 1.0
    told = carried(c, order, cells_of(program, c, _aliasing(program, goal), False))
    by = c.sends[sent] if sent else np.zeros(0, dtype=np.int64)
    chunks = c.count[sent].astype(np.float64) if sent else np.zeros(0)
    nbins = max(1, min(160, int(span))) if timed is None else 160
    shares = busy_shares(by, start, end, len(c.connections), nbins, span)
    said, row = _rows(c, by, start, end, shares, span, len(sent) <= most_sends)
    clock = None if timed is None else (timed, topology, span, size_bytes)
    return {
        "kind": "program",
        "unit": "steps" if timed is None else "µs",
        "span": short(span),
        "network": _network(program, c, by, chunks, shares, clock),
        "ranks": _ranks(program, c, shares),
        "fold": None,
        "rows": said,
        "sends": _sends(c, sent, by, row, start, end, arrives, told.values, told.came, most_sends, timed),
        "chunks": None,
        "blocks": _blocks(program, tick if timed is None else [], most_sends),
    }  # fmt: skip


def _aliasing(program: Program, goal: Goal | None) -> Goal | None:
    """The goal that says which cells of i and o are the same memory."""
    if goal is not None:
        return goal
    inplace = program.inplace and not program.outofplace
    try:
        roots = root_of(program)[:_ROOTS]
        for root in roots if len(roots) > 1 else ():
            tried = replace(program, root=root)
            if check(tried, None, target=None, split=False).ok:
                program = tried
                break
        known = goal_for(program.collective, program.nranks, program.nchunks_per_loop, inplace, program.root)
    except InputError:
        return None
    return known


def _network(
    program: Program,
    c: Columns,
    by: Ints,
    chunks: Floats,
    shares: Floats,
    timed: tuple[Predictor, Topology | None, float, float] | None,
) -> dict[str, Any]:
    """Ranks and the pairs of them that are connected; where they are timed, with the part of the time in use."""
    n = program.nranks
    ends = np.array([pair[:2] for pair in c.connections], dtype=np.int64).reshape(-1, 2)
    pairs, edge = np.unique(ends, axis=0, return_inverse=True)
    edge = edge.reshape(-1)
    moved = np.bincount(edge[by], weights=chunks, minlength=len(pairs)) if len(pairs) else np.zeros(0)
    load = moved / max(1.0, float(moved.max(initial=0.0)))
    now = np.zeros((len(pairs), shares.shape[1]))
    np.add.at(now, edge, shares)
    if timed is not None:
        predictor, _, span, size = timed
        hold = predictor.chunk_bytes(size) * 1e-3 / predictor.network.bandwidth_gbs
        link = np.array([_widest(predictor, a, b) for a, b in pairs.tolist()], dtype=np.int64)
        load = moved * hold[link] / span if span > 0 and len(pairs) else load * 0.0
    at = places("", n, range(n), np.zeros(n, dtype=np.int64), 0, pairs)
    if timed is not None and timed[1] is not None:
        topology, group = timed[1], list(timed[0].group)
        at = places(
            topology.name if not topology.switches else "",
            topology.nranks,
            group,
            topology.nodes[group],
            0,
            pairs,
        )
    drawn = len(pairs) <= MOST_EDGES
    shown = slice(None) if drawn else slice(0)
    return {
        "n": n,
        "members": n,
        "names": [str(r) for r in range(n)],
        "x": shorts(at.x),
        "y": shorts(at.y),
        "spacing": short(at.spacing),
        "stub": [[i, *shorts(at.stub[i])] for i in np.flatnonzero(at.stub.any(axis=1)).tolist() if drawn],
        "edges": len(pairs),
        "u": pairs[shown, 0].tolist(),
        "v": pairs[shown, 1].tolist(),
        "gbs": [],
        "moved": moved[shown].astype(int).tolist(),
        "load": shorts(load[shown]),
        "busiest": short(float(load.max(initial=0.0))),
        "mean": short(float(load.mean())) if len(pairs) else 0.0,
        "spread": np.histogram(np.clip(load, 0, 1), bins=20, range=(0, 1))[0].tolist(),
        "now": table(now[shown]),
        "limits": [],
    }  # fmt: skip


def _widest(predictor: Predictor, a: int, b: int) -> int:
    net = predictor.network
    low, high = np.searchsorted(net.src * net.nranks + net.dst, [a * net.nranks + b, a * net.nranks + b + 1])
    return int(low) + int(np.argmax(net.bandwidth_gbs[low:high]))


def _ranks(program: Program, c: Columns, shares: Floats) -> dict[str, Any]:
    """How many connections of every rank send and receive in each piece of time, as shares of the most."""
    rates = []
    for side in (0, 1):
        rate = np.zeros((program.nranks, shares.shape[1]))
        np.add.at(rate, [pair[side] for pair in c.connections], shares)
        rates.append(rate)
    top = max(float(rates[0].max(initial=0.0)), float(rates[1].max(initial=0.0)), 1e-9)
    return {"top": short(top), "out": table(rates[0] / top), "in": table(rates[1] / top), "got": None}


def _rows(
    c: Columns, by: Ints, start: Floats, end: Floats, shares: Floats, span: float, whole: bool
) -> tuple[dict[str, Any], Ints]:
    """The timeline's rows: one a connection, by ranks, or bands of them; and the row of each connection."""
    several = len({channel for _, _, channel in c.connections}) > 1
    order = sorted(range(len(c.connections)), key=lambda i: c.connections[i])
    ends = [c.connections[number] for number in order]
    names = [f"{a}→{b}" + (f" · ch {channel}" if several else "") for a, b, channel in ends]
    busy = summed(by, end - start, len(order))[order]
    load = busy / span if span > 0 else busy
    said, band = rows(names, load, shares[order], 1, len(order), whole)
    row = np.empty(len(order), dtype=np.int64)
    row[order] = band
    return said, row


def _sends(
    c: Columns,
    sent: list[int],
    by: Ints,
    row: Ints,
    start: Floats,
    end: Floats,
    arrives: Floats,
    values: dict[int, Any],
    came: dict[int, tuple[int, ...]],
    most: int,
    timed: Predictor | None,
) -> dict[str, Any]:
    """The first transmissions, as those of a schedule are told; `words` says what each carries."""
    kept = sent[:most]
    place = {step: i for i, step in enumerate(kept)}
    words: dict[str, int] = {}
    what: list[int] = []
    hop: list[int] = []
    ptr, brought = [0], list[int]()
    for step in kept:
        what.append(words.setdefault(value_words(values.get(step, ())), len(words)))
        parents = [place[p] for p in came.get(step, ()) if p in place]
        hop.append(1 + max((hop[p] for p in parents if p < len(hop)), default=0))
        brought += parents
        ptr.append(len(brought))
    links, at = np.unique(by[: len(kept)], return_inverse=True)
    ends = [c.connections[link] for link in links.tolist()]
    edge = {pair: i for i, pair in enumerate(sorted({(a, b) for a, b, _ in c.connections}))}
    drawn = len(edge) <= MOST_EDGES
    adds = _added(c)
    return {
        "total": len(sent),
        "stored": len(sent),
        "shown": len(kept),
        "links": {
            "src": [a for a, _, _ in ends],
            "dst": [b for _, b, _ in ends],
            "row": row[links].tolist(),
            "way": [[edge[a, b]] if drawn else [] for a, b, _ in ends],
        },
        "link": at.reshape(-1).tolist(),
        "chunk": [],
        "words": list(words),
        "what": what,
        "count": c.count[kept].tolist() if kept else [],
        "place": [list(c.place(s)) for s in kept],
        "start": shorts(start[: len(kept)]),
        "end": shorts(end[: len(kept)]),
        "arrives": shorts(arrives[: len(kept)]) if timed is not None else None,
        "reduces": [int(step in adds) for step in kept],
        "own": [0] * len(kept),
        "hop": hop,
        "from_ptr": ptr,
        "from": brought,
    }


def _added(c: Columns) -> set[int]:
    """Steps whose data the receiving step adds to something; the k-th send of a connection meets its k-th receive."""
    out, into = (np.flatnonzero(column >= 0) for column in (c.sends, c.receives))
    out = out[np.argsort(c.sends[out], kind="stable")]
    into = into[np.argsort(c.receives[into], kind="stable")]
    return set(out[c.is_op(READS_SRC)[into]].tolist())


def _blocks(program: Program, tick: list[int], most: int) -> dict[str, Any]:
    """Every rank's threadblocks, and their instructions with the tick of each where that is known."""
    blocks = [
        (rank, tb, block)
        for rank, gpu in enumerate(program.gpus)
        for tb, block in enumerate(gpu.threadblocks)
    ]
    shown = min(len(blocks), MOST_ROWS * 4)
    steps: list[list[Any]] = []
    at = 0
    for number, (_, _, block) in enumerate(blocks):
        if tick and len(steps) + len(block.steps) <= most and number < shown:
            for position, step in enumerate(block.steps):
                if tick[at + position] >= 0:
                    steps.append(
                        [number, position, tick[at + position], OPS.index(step.op), _instruction(step)]
                    )
        at += len(block.steps)
    kinds = Counter(step.op for _, _, _, step in program.steps())
    return {
        "rank": [rank for rank, _, _ in blocks[:shown]],
        "tb": [tb for _, tb, _ in blocks[:shown]],
        "channel": [block.channel for _, _, block in blocks[:shown]],
        "send": [block.send for _, _, block in blocks[:shown]],
        "recv": [block.recv for _, _, block in blocks[:shown]],
        "steps": [len(block.steps) for _, _, block in blocks[:shown]],
        "of": len(blocks),
        "ops": list(OPS),
        "count": [kinds.get(op, 0) for op in OPS],
        "told": steps,
    }


def _instruction(step: Step) -> str:
    """`i[0–3] → o[0–3], waits for tb 1 step 2`."""

    def cells(buffer: str, first: int) -> str:
        return f"{buffer}[{spans(list(range(first, first + step.count)))}]" if first >= 0 else ""

    sides = [cells(step.src_buf, step.src_off), cells(step.dst_buf, step.dst_off)]
    words = " → ".join(side for side in sides if side) if step.op != "nop" else ""
    if step.op == "s":
        words = sides[0]
    elif step.op == "r":
        words = sides[1]
    waits = f"waits for tb {step.dep_tb} step {step.dep_step}" if step.dep_tb >= 0 else ""
    return ", ".join(part for part in (words, waits) if part)
