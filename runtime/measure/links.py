"""Links timed on the ranks of a torch.distributed job.

All functions here are called with the same arguments on every rank of the job.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, fields

import torch
import torch.distributed as dist

from runtime.measure.calibrate import MeasuredLink, repeated_least

_PINGS, _TURNS = 21, 5
_BURST = 64  # messages one behind the other, by which the gap between them is measured
_LINK_S = 0.02  # the shorter of two messages takes at least so long; bursts and buffers do not count then
_MOST_BYTES = 64 << 20


def _measure_link(a: int, b: int) -> MeasuredLink:
    """Half a round trip of 8 bytes, the rate between a message and one four times as long, and the gap between many."""
    alpha, alpha_spread = repeated_least(lambda: min(_round_trip(a, b, 8) for _ in range(_PINGS)) / 2)
    size = 64 << 10
    while _round_trip(a, b, size) < _LINK_S and size < _MOST_BYTES // 4:
        size *= 4
    short, short_spread = repeated_least(lambda: _round_trip(a, b, size))
    long, long_spread = repeated_least(lambda: _round_trip(a, b, 4 * size))
    gbs = 3 * size / max(long - short, 1e-9) / 1e9
    one, _ = repeated_least(lambda: _round_trip(a, b, 8))
    many, _ = repeated_least(lambda: _round_trip(a, b, 8, _BURST))
    gap_us = 1e6 * max(0.0, many - one) / (_BURST - 1)
    return MeasuredLink(1e6 * alpha, gbs, alpha_spread, max(short_spread, long_spread), gap_us)


def _round_trip(a: int, b: int, size: int, count: int = 1) -> float:
    """Seconds from so many bytes from a to b, `count` times, to the end of 8 bytes back; both ranks learn a's."""
    held, word = torch.zeros(size, dtype=torch.uint8), torch.zeros(1, dtype=torch.float64)
    begun = time.perf_counter()
    if dist.get_rank() == a:
        for _ in range(count):
            dist.send(held, b)
        dist.recv(word, b)
        word[0] = time.perf_counter() - begun
        dist.send(word, b)
    else:
        for _ in range(count):
            dist.recv(held, a)
        dist.send(word, a)
        dist.recv(word, a)
    return float(word.item())


def measure_start(a: int, b: int, alpha_us: float) -> float:
    """µs that a call takes beside its one message: half of a broadcast there and one back, less α.

    0 where a call takes no longer than the message. All ranks learn it.
    """
    pair = dist.new_group([a, b])
    found = torch.zeros(1, dtype=torch.float64)
    if dist.get_rank() in (a, b):
        word = torch.zeros(8, dtype=torch.uint8)

        def there_and_back() -> float:
            begun = time.perf_counter()
            for source in (a, b):
                dist.broadcast(word, source, group=pair)
            return time.perf_counter() - begun

        def least_of_pings() -> float:
            # the other rank stops when this one does
            took = torch.tensor([min(there_and_back() for _ in range(_PINGS))], dtype=torch.float64)
            dist.broadcast(took, a, group=pair)
            return float(took.item())

        took_s, _ = repeated_least(least_of_pings)
        if dist.get_rank() == a:
            found[0] = max(0.0, 1e6 * took_s / 2 - alpha_us)
    dist.all_reduce(found)
    return float(found.item())


def measure_concurrently(pairs: Sequence[tuple[int, int]], gbs: float) -> float:
    """GB/s that all pairs carry in all when they send at once; gbs: about what one carries by itself."""
    me = dist.get_rank()
    size = int(min(_MOST_BYTES, max(64 << 10, 2 * _LINK_S * gbs * 1e9)))
    rates = []
    for _ in range(_TURNS):
        out = [(torch.zeros(size, dtype=torch.uint8), b) for a, b in pairs if a == me]
        into = [(torch.zeros(size, dtype=torch.uint8), a) for a, b in pairs if b == me]
        dist.barrier()
        begun = time.perf_counter()
        works = [dist.irecv(held, peer) for held, peer in into] + [dist.isend(held, peer) for held, peer in out]
        for work in works:
            work.wait()
        took = torch.tensor([time.perf_counter() - begun], dtype=torch.float64)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        rates.append(len(pairs) * size / float(took.item()) / 1e9)
    return statistics.median(rates)


def measure_links(
    pairs: Sequence[tuple[int, int]], report: Callable[[int], None]
) -> dict[tuple[int, int], MeasuredLink]:
    """Every pair, one after the other; all ranks learn all. report: called with how many are done."""
    found = torch.zeros(len(pairs), len(fields(MeasuredLink)), dtype=torch.float64)
    for at, (a, b) in enumerate(pairs):
        dist.barrier()
        link = _measure_link(a, b) if dist.get_rank() in (a, b) else None
        if dist.get_rank() == a and link is not None:
            found[at] = torch.tensor(astuple(link), dtype=torch.float64)
        report(at + 1)
    dist.all_reduce(found)
    return {pair: MeasuredLink(*row) for pair, row in zip(pairs, found.tolist(), strict=True)}
