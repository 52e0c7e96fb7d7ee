"""A program's predicted run in Chrome's trace format, which Perfetto and chrome://tracing draw.

A process is a rank, a thread one of its threadblocks; a slice is what a step sends or takes out of its slot, an arrow
a message. The format is that of Google's "Trace Event Format", JSON, times in µs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from emit.timing.predict import Predictor

_LEAST_US = 1e-6  # a slice without length is not drawn


def chrome_trace(predictor: Predictor, size_bytes: float) -> str:
    """The trace of one run for messages of `size_bytes`. Raises InputError for a deadlock."""
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": list(_events(predictor, size_bytes))}) + "\n"


def _events(predictor: Predictor, size_bytes: float) -> Iterator[dict[str, Any]]:
    program = predictor.program
    for rank, gpu in enumerate(program.gpus):
        yield _named("process_name", f"rank {rank} (device {predictor.group[rank]})", rank)
        for number, block in enumerate(gpu.threadblocks):
            to = f" → {block.send}" if block.send >= 0 else ""
            by = f" ← {block.recv}" if block.recv >= 0 else ""
            yield _named("thread_name", f"threadblock {number}{to}{by}, channel {block.channel}", rank, number)
    moved = predictor.transfers(size_bytes)
    columns = (
        moved.sender, moved.receiver, moved.start_us, moved.end_us, moved.arrive_us, moved.received_us, moved.bytes,
        moved.count,
    )  # fmt: skip
    for number, row in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        sender, receiver, start, end, arrive, received, size, count = row
        what = {"bytes": size, "chunks": count, "step": sender[2], "arrives_us": arrive}
        yield _slice("send", f"send to {receiver[0]}", sender, start, end, what)
        yield _slice("recv", f"receive from {sender[0]}", receiver, arrive, received, what | {"step": receiver[2]})
        yield _end("s", number, sender, start)
        yield _end("f", number, receiver, arrive) | {"bp": "e"}


def _named(kind: str, name: str, rank: int, block: int = 0) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": rank, "tid": block, "args": {"name": name}}


def _slice(kind: str, name: str, place: list[int], start: float, end: float, what: dict[str, Any]) -> dict[str, Any]:
    lasts = max(end - start, _LEAST_US)
    return {
        "ph": "X", "cat": kind, "name": name, "pid": place[0], "tid": place[1], "ts": start, "dur": lasts, "args": what,
    }  # fmt: skip


def _end(kind: str, number: int, place: list[int], at: float) -> dict[str, Any]:
    """One end of a message's arrow."""
    return {"ph": kind, "cat": "message", "name": "message", "id": number, "pid": place[0], "tid": place[1], "ts": at}
