"""Settle threadblocks that instructions request by number, and check that they can exist."""

from __future__ import annotations

from collections import defaultdict

from emit.compiler.ir import NONE, Instructions, peers
from topologies.errors import InputError

Block = tuple[int, int, int]  # channel, rank it sends to, rank it receives from (−1: none)


def settle_threadblocks(ir: Instructions) -> list[int]:
    """Return each instruction's threadblock number: the one that any message of one of its connections requests.

    Executors take one threadblock for a connection (peer, direction, channel). The number is −1 if nothing requests a
    threadblock for the instruction.

    Raises:
        InputError: Messages of one connection request two threadblocks.
    """
    requested: dict[tuple[int, int, int, bool], int] = {}
    for n, number in enumerate(ir.threadblock):
        for key in _connections(ir, n) if number != NONE else ():
            if requested.setdefault(key, number) != number:
                rank, channel, peer, sends = key
                action = f"sends to rank {peer}" if sends else f"receives from rank {peer}"
                raise InputError(
                    f"{ir.header.name}: rank {rank} {action} on channel {channel} in threadblocks {requested[key]} and"
                    f" {number}; it must be one, or on another channel"
                )
    return [
        next((requested[key] for key in _connections(ir, n) if key in requested), number)
        for n, number in enumerate(ir.threadblock)
    ]


def _connections(ir: Instructions, n: int) -> list[tuple[int, int, int, bool]]:
    """Return (rank, channel, peer, whether it sends) for each message of an instruction, the received message first."""
    into, out = peers(ir, n)
    receiving = [] if into == NONE else [(ir.rank[n], ir.channel[n], into, False)]
    return receiving if out == NONE else [*receiving, (ir.rank[n], ir.channel[ir.target[n]], out, True)]


def requested_blocks(ir: Instructions, channel: list[int]) -> list[dict[int, Block]]:
    """Return the requested threadblocks of each rank, by number in ascending order.

    A threadblock is (channel, rank it sends to, rank it receives from), with −1 for no rank. A threadblock without
    messages has channel 0.

    Args:
        ir: Instructions.
        channel: Channel of every instruction; local instructions do not count.

    Raises:
        InputError: A threadblock would need two channels or two peers in one direction.
    """
    requested: list[dict[int, list[set[int]]]] = [defaultdict(lambda: [set(), set(), set()]) for _ in ir.header.gpus]
    for n, number in enumerate(ir.threadblock):
        if number == NONE:
            continue
        into, out = peers(ir, n)
        block = requested[ir.rank[n]][number]
        for column, value in enumerate((NONE if into == out == NONE else channel[n], out, into)):
            block[column] |= {value} - {NONE}
    for rank, blocks in enumerate(requested):
        for number, block in blocks.items():
            for values, phrase in zip(block, ("is on channels", "sends to ranks", "receives from ranks"), strict=True):
                if len(values) > 1:
                    raise InputError(
                        f"{ir.header.name}: rank {rank} threadblock {number} {phrase}"
                        f" {' and '.join(map(str, sorted(values)))}; it must be one"
                    )
    return [
        {
            number: (max(block[0], default=0), max(block[1], default=NONE), max(block[2], default=NONE))
            for number, block in sorted(blocks.items())
        }
        for blocks in requested
    ]
