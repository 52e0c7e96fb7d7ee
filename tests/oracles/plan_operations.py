"""Cells that an operation of a plan reads and writes: places, packets or not, and the elements of each thread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Value = tuple[tuple[int, int, int], ...] | None  # Contributions (launch, rank, chunk); None: garbage.
Json = dict[str, Any]
THREADS, PARTS = 2, 4  # Threads of a threadblock, elements of a chunk.
PACKETS = {"cpkt", "upkt", "ppkt", "rppkt", "repkt", "recpkt", "respkt", "recspkt", "gstorepkt"}


def lanes(op: Json) -> list[tuple[list[tuple[Json, bool]], list[tuple[Json, bool]]]]:
    """Return (sources, targets) of each lane, and for each buffer part whether it holds packets."""
    name, src, dst = op["name"], op.get("src_buff", []), op.get("dst_buff", [])
    if name in ("put", "pws", "pwsf", "get"):
        return [([(a, False)], [(b, False)]) for a, b in zip(src, dst, strict=True)]
    if name == "ppkt":
        return [([(a, op["channel_type"] == "port")], [(b, True)]) for a, b in zip(src, dst, strict=True)]
    packed = name in PACKETS
    first = name in ("upkt", "rppkt", "gstorepkt")
    sources = [(a, first or (packed and name != "cpkt" and k > 0)) for k, a in enumerate(src)]
    targets = [
        (b, name in ("cpkt", "rppkt", "gstorepkt") or (name in ("recpkt", "respkt", "recspkt") and k > 0))
        for k, b in enumerate(dst)
    ]
    return [(sources, targets)] if src else []


def unrolled(ops: list[Json], shortest: int) -> list[Json]:
    """Return a threadblock's operations with those of pipelines once an iteration, in the order of execution.

    Args:
        ops: Operations of the threadblock.
        shortest: Bytes of the shortest iteration of the plan; it moves one element of each chunk.
    """
    flat = []
    for op in ops:
        if op["name"] != "pipeline":
            flat.append(op)
            continue
        step = op["iter_context"]["unit_size"] // shortest
        for low in range(0, op["iter_context"]["num_chunks"] * PARTS, step):
            flat += [inner | {"iteration": (low, step)} for inner in op["ops"]]
    return flat


def span(op: Json, size: int) -> range:
    """Return the elements that an operation moves of a part of `size` chunks: its group's share, its iteration's."""
    group = op.get("tbg_info", {"tb_id": 0, "tbg_size": 1})
    low, high = ((group["tb_id"] + k) * size * PARTS // group["tbg_size"] for k in (0, 1))
    if "iteration" in op:
        first, step = op["iteration"]
        low, high = low + first, min(high, low + first + step)
    return range(low, high)


def elements(op: Json, size: int, thread: int) -> Iterable[int]:
    """Return the elements of an operation that a thread moves."""
    if op.get("channel_type") == "port":
        return span(op, size) if thread == 0 else ()
    wide = 2 if op["name"] in PACKETS else 1
    return [e for e in span(op, size) if e // wide % THREADS == thread]


def read(cells: list[Any], packet: bool) -> Value:
    """Return the value of an element's cells; None (garbage) where packets are read as plain data or vice versa."""
    if packet:
        return cells[0][1] if isinstance(cells[0], list) and cells[0] == cells[1] else None
    return None if isinstance(cells[0], list) else cells[0]
