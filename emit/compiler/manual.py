"""Threadblocks that are asked for by number: what each must be, and whether it can be."""

from __future__ import annotations

from collections import defaultdict

from emit.compiler.ir import NONE, Instructions, peers
from topologies.errors import InputError

Block = tuple[int, int, int]  # channel, rank it sends to, rank it receives from (−1: none)


def settle_threadblocks(ir: Instructions) -> list[int]:
    """The number asked for of every instruction, where any of its connection's messages asks for one.

    Executors take one threadblock a connection (peer, direction, channel). Raises InputError where two are asked for.
    """
    asked: dict[tuple[int, int, int, bool], int] = {}
    for n, number in enumerate(ir.threadblock):
        for key in _connections(ir, n) if number != NONE else ():
            if asked.setdefault(key, number) != number:
                rank, channel, peer, sends = key
                what = f"sends to rank {peer}" if sends else f"receives from rank {peer}"
                raise InputError(
                    f"{ir.header.name}: rank {rank} {what} on channel {channel} in threadblocks {asked[key]} and"
                    f" {number}; it must be one, or on another channel"
                )
    return [
        next((asked[key] for key in _connections(ir, n) if key in asked), number)
        for n, number in enumerate(ir.threadblock)
    ]


def _connections(ir: Instructions, n: int) -> list[tuple[int, int, int, bool]]:
    """(rank, channel, peer, whether it sends) of each message of an instruction."""
    into, out = peers(ir, n)
    found = [] if into == NONE else [(ir.rank[n], ir.channel[n], into, False)]
    return found if out == NONE else [*found, (ir.rank[n], ir.channel[ir.target[n]], out, True)]


def asked_blocks(ir: Instructions, channel: list[int]) -> list[dict[int, Block]]:
    """Per rank the threadblocks asked for, by number, rising. Raises InputError for one with more than it can have."""
    found: list[dict[int, list[set[int]]]] = [defaultdict(lambda: [set(), set(), set()]) for _ in ir.header.gpus]
    for n, number in enumerate(ir.threadblock):
        if number == NONE:
            continue
        into, out = peers(ir, n)
        block = found[ir.rank[n]][number]
        for column, value in enumerate((NONE if into == out == NONE else channel[n], out, into)):
            block[column] |= {value} - {NONE}
    for rank, blocks in enumerate(found):
        for number, block in blocks.items():
            for values, words in zip(block, ("is on channels", "sends to ranks", "receives from ranks"), strict=True):
                if len(values) > 1:
                    raise InputError(
                        f"{ir.header.name}: rank {rank} threadblock {number} {words}"
                        f" {' and '.join(map(str, sorted(values)))}; it must be one"
                    )
    return [
        {
            number: (max(block[0], default=0), max(block[1], default=NONE), max(block[2], default=NONE))
            for number, block in sorted(blocks.items())
        }
        for blocks in found
    ]
