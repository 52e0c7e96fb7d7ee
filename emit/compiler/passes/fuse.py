"""Fusion: what a rank receives and sends on at once is one instruction (rcs, rrcs), and one threadblock's.

Source of the instructions: MSCCLang (ASPLOS 2023), section 4.2; there as a peephole, here with what stands between.
"""

from __future__ import annotations

from collections import Counter

from emit.compiler.ir import NONE, Instructions, peers
from emit.compiler.passes.links import Neighbours

_FUSED = {"r": "rcs", "rrc": "rrcs"}


def fuse(ir: Instructions) -> Instructions:
    """Fuse receives with the sends that forward what they bring.

    A threadblock receives from one rank and sends to one. So at each rank, and on each channel asked for, a rank to
    receive from is matched with one to send to, those with most in common first.
    """
    made = ir.copy()
    near = Neighbours(made)
    gone: set[int] = set()
    found = _candidates(made, near)
    matched = _matching(made, found)
    for r, s in found:
        if _key(made, r, s) not in matched or made.target[r] != NONE:
            continue
        stays = _where(near, r, s)
        if stays != NONE:
            _merge(made, near, r, s, stays)
            gone.add(s if stays == r else r)
    return made.select([n for n in range(len(made)) if n not in gone]) if gone else ir


def _candidates(ir: Instructions, near: Neighbours) -> list[tuple[int, int]]:
    """Pairs (receive, send) of one rank where the send reads just what the receive wrote."""
    pairs = []
    for s, op in enumerate(ir.op):
        if op != "s":
            continue
        for r in near.after[s]:
            if (
                ir.op[r] in _FUSED
                and (ir.dst[r], ir.count[r]) == (ir.src[s], ir.count[s])
                and ir.channel[r] == ir.channel[ir.target[s]]
                and _where(near, r, s) != NONE
            ):
                pairs.append((r, s))
    return pairs


def _where(near: Neighbours, r: int, s: int) -> int:
    """Which of the two the fused instruction takes the place of, −1 where it must be in both.

    In the receive's place the send overtakes what stands between; in the send's place the receive falls behind.
    """
    if near.sent_before[s] < r and all(n <= r for n in near.after[s]):
        return r
    if (near.received_after[r] > s or near.received_after[r] == NONE) and all(n >= s for n in near.before[r]):
        return s
    return NONE


def _key(ir: Instructions, r: int, s: int) -> tuple[int, int, int, int]:
    """(rank, channel, receives from, sends to)."""
    return ir.rank[r], ir.channel[r], peers(ir, r)[0], peers(ir, s)[1]


def _matching(ir: Instructions, found: list[tuple[int, int]]) -> set[tuple[int, int, int, int]]:
    """What is fused with what, at every rank one to one."""
    common = Counter(_key(ir, r, s) for r, s in found)
    taken_in: dict[tuple[int, int, int], int] = {}
    taken_out: dict[tuple[int, int, int], int] = {}
    for n, op in enumerate(ir.op):  # what is fused already stays so
        if op in ("rcs", "rrcs", "rrs"):
            into, out = peers(ir, n)
            taken_in[ir.rank[n], ir.channel[n], into] = out
            taken_out[ir.rank[n], ir.channel[n], out] = into
    matched = set()
    for key, _ in sorted(common.items(), key=lambda item: (-item[1], item[0])):
        rank, channel, into, out = key
        if taken_in.setdefault((rank, channel, into), out) == out and (
            taken_out.setdefault((rank, channel, out), into) == into
        ):
            matched.add(key)
        elif taken_in[rank, channel, into] == out:
            del taken_in[rank, channel, into]
    return matched


def _merge(ir: Instructions, near: Neighbours, r: int, s: int, stays: int) -> None:
    goes = s if stays == r else r
    source, target = ir.source[r], ir.target[s]
    ir.op[stays], ir.src[stays], ir.dst[stays] = _FUSED[ir.op[r]], ir.src[r], ir.dst[r]
    ir.source[stays], ir.target[stays], ir.channel[stays] = source, target, ir.channel[r]
    ir.target[source], ir.source[target] = stays, stays
    if stays == r:
        near.sends_as(s, r)
    else:
        near.receives_as(r, s)
    ir.source[goes] = ir.target[goes] = NONE
    near.leave(goes, stays)
