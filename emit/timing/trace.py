"""Write a program's run, predicted or measured, in Chrome's trace format, which Perfetto and chrome://tracing draw.

A process is a rank, a thread is one of its threadblocks. In a predicted run, a slice is a transmission that a step
sends or takes out of its slot, and an arrow is a message; in a measured run, a slice is a step. The format is that of
Google's "Trace Event Format": JSON, with times in µs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from emit.program import RECEIVES, SENDS, Program
from emit.timing.predict import Predictor
from synth.model.collective import Floats, Ints

_LEAST_US = 1e-6  # Viewers do not draw a slice without length.


@dataclass(frozen=True, eq=False)
class Recorded:
    """The begin and end of each step of one run, as an executor measured them.

    Attributes:
        step: Number of the step in document order, int, shape (n,).
        window: The part of the step's chunks, if they pass in parts, int, shape (n,).
        start_us: When the step had everything that it waited for, since the run began, float, shape (n,).
        end_us: When the step ended, since the run began, float, shape (n,).
    """

    step: Ints
    window: Ints
    start_us: Floats
    end_us: Floats


def chrome_trace(predictor: Predictor, size_bytes: float) -> str:
    """Return the trace, as the text of a JSON file, of one predicted run for messages of `size_bytes`.

    Raises:
        InputError: The program deadlocks.
    """
    return _written(chain(_names(predictor.program, predictor.group, ""), _predicted(predictor, size_bytes)))


def measured_trace(program: Program, measured: Recorded, predictor: Predictor | None, size_bytes: float) -> str:
    """Return the trace of a measured run, with the predicted run next to it if a predictor is given; both begin at 0.

    The trace is the text of a JSON file. `size_bytes` is the message size of the predicted run. A threadblock has one
    thread for each run; the threads of the measured run follow all threads of the predicted run.

    Raises:
        InputError: The program deadlocks in the predicted run.
    """
    group = tuple(range(program.nranks)) if predictor is None else predictor.group
    own = _names(program, group, ", measured", by=1)
    if predictor is None:
        return _written(chain(own, _measured(program, measured)))
    first = chain(_names(program, group, ", predicted"), _predicted(predictor, size_bytes))
    return _written(chain(first, own, _measured(program, measured)))


def _written(events: Iterator[dict[str, Any]]) -> str:
    """Return trace events as the text of a trace file, ended by a newline; the iterator is used up."""
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": list(events)}) + "\n"


def _names(program: Program, group: tuple[int, ...], run_name: str, by: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the events that name the processes (ranks) and threads (threadblocks) of one run.

    Args:
        program: The program.
        group: Device of each rank, which its name states.
        run_name: End of the threads' names; if it is not empty, further events sort the two threads of a threadblock
            next to each other.
        by: 1 for the threads of the measured run, which follow all threads of the predicted run; else 0.
    """
    for rank, gpu in enumerate(program.gpus):
        yield _named("process_name", f"rank {rank} (device {group[rank]})", rank)
        for number, block in enumerate(gpu.threadblocks):
            to = f" → {block.send}" if block.send >= 0 else ""
            of = f" ← {block.recv}" if block.recv >= 0 else ""
            thread = number + by * len(gpu.threadblocks)
            yield _named(
                "thread_name", f"threadblock {number}{run_name}{to}{of}, channel {block.channel}", rank, thread
            )
            if run_name:  # The two threads of a threadblock stand next to each other.
                yield _named("thread_sort_index", "", rank, thread) | {"args": {"sort_index": 2 * number + by}}


def _measured(program: Program, run: Recorded) -> Iterator[dict[str, Any]]:
    """Yield an event for each step of a measured run, in the order of its columns.

    Its thread is the number of the step's threadblock after all threads of the predicted run.
    """
    places = list(program.steps())
    columns = (run.step, run.window, run.start_us, run.end_us)
    for number, window, start, end in zip(*(column.tolist() for column in columns), strict=True):
        rank, tb, position, step = places[number]
        blocks = program.gpus[rank].threadblocks
        to = f" to {blocks[tb].send}" if step.op in SENDS else ""
        of = f" from {blocks[tb].recv}" if step.op in RECEIVES else ""
        details = {"step": position, "chunks": step.count, "window": window}
        yield _slice("measured", f"{step.op}{of}{to}", [rank, len(blocks) + tb], start, end, details)


def _predicted(predictor: Predictor, size_bytes: float) -> Iterator[dict[str, Any]]:
    """Yield four events for each transmission of a predicted run: its send, its receipt and the two ends of its arrow.

    Raises:
        InputError: The program deadlocks.
    """
    moved = predictor.transfers(size_bytes)
    columns = (
        moved.sender, moved.receiver, moved.start_us, moved.end_us, moved.arrive_us, moved.received_us, moved.bytes,
        moved.count,
    )  # fmt: skip
    for number, row in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        sender, receiver, start, end, arrive, received, size, count = row
        details = {"bytes": size, "chunks": count, "step": sender[2], "arrives_us": arrive}
        yield _slice("send", f"send to {receiver[0]}", sender, start, end, details)
        yield _slice("recv", f"receive from {sender[0]}", receiver, arrive, received, details | {"step": receiver[2]})
        yield _end("s", number, sender, start)
        yield _end("f", number, receiver, arrive) | {"bp": "e"}


def _named(kind: str, name: str, rank: int, block: int = 0) -> dict[str, Any]:
    """Return the event that names a process or a thread: `kind` is its name in the format, `block` the thread."""
    return {"ph": "M", "name": kind, "pid": rank, "tid": block, "args": {"name": name}}


def _slice(kind: str, name: str, place: list[int], start: float, end: float, args: dict[str, Any]) -> dict[str, Any]:
    """Return the event of one slice at `place`, whose first two entries are rank and thread; times are in µs.

    A slice is at least _LEAST_US long.

    Args:
        kind: Category of the slice.
        name: Text of the slice.
        place: Rank, thread, and whatever follows.
        start: When it begins.
        end: When it ends.
        args: Details that the viewer shows.
    """
    duration = max(end - start, _LEAST_US)
    return {
        "ph": "X", "cat": kind, "name": name, "pid": place[0], "tid": place[1], "ts": start, "dur": duration,
        "args": args,
    }  # fmt: skip


def _end(kind: str, number: int, place: list[int], at: float) -> dict[str, Any]:
    """Return the event of one end of a message's arrow: `kind` is "s" for its start and "f" for its finish.

    Args:
        kind: "s" or "f".
        number: Number of the arrow, equal at its two ends.
        place: Rank, thread, and whatever follows.
        at: Time in µs.
    """
    return {"ph": kind, "cat": "message", "name": "message", "id": number, "pid": place[0], "tid": place[1], "ts": at}
