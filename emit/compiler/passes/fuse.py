"""Fusion: what a rank receives and sends on at once is one instruction (rcs, rrcs), and one threadblock's.

Source of the instructions: MSCCLang (ASPLOS 2023), section 4.2; there as a peephole, here with what stands between.
"""

from __future__ import annotations

from collections import Counter

from emit.compiler.ir import NONE, Draft, peers
from emit.compiler.passes.links import Neighbours

_FUSED = {"r": "rcs", "rrc": "rrcs"}


def fuse(draft: Draft) -> Draft:
    """Fuse receives with the sends that forward what they bring.

    A threadblock receives from one rank and sends to one. So at each rank, and on each lane asked for, a rank to
    receive from is matched with one to send to, those with most in common first.
    """
    made = draft.copy()
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
    return made.kept([n for n in range(len(made)) if n not in gone]) if gone else draft


def _candidates(draft: Draft, near: Neighbours) -> list[tuple[int, int]]:
    """Pairs (receive, send) of one rank where the send reads just what the receive wrote."""
    pairs = []
    for s, op in enumerate(draft.op):
        if op != "s":
            continue
        for r in near.after[s]:
            if (
                draft.op[r] in _FUSED
                and (draft.dst[r], draft.count[r]) == (draft.src[s], draft.count[s])
                and draft.lane[r] == draft.lane[draft.target[s]]
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


def _key(draft: Draft, r: int, s: int) -> tuple[int, int, int, int]:
    """(rank, lane, receives from, sends to)."""
    return draft.rank[r], draft.lane[r], peers(draft, r)[0], peers(draft, s)[1]


def _matching(draft: Draft, found: list[tuple[int, int]]) -> set[tuple[int, int, int, int]]:
    """What is fused with what, at every rank one to one."""
    common = Counter(_key(draft, r, s) for r, s in found)
    taken_in: dict[tuple[int, int, int], int] = {}
    taken_out: dict[tuple[int, int, int], int] = {}
    for n, op in enumerate(draft.op):  # what is fused already stays so
        if op in ("rcs", "rrcs", "rrs"):
            into, out = peers(draft, n)
            taken_in[draft.rank[n], draft.lane[n], into] = out
            taken_out[draft.rank[n], draft.lane[n], out] = into
    matched = set()
    for key, _ in sorted(common.items(), key=lambda item: (-item[1], item[0])):
        rank, lane, into, out = key
        if taken_in.setdefault((rank, lane, into), out) == out and (
            taken_out.setdefault((rank, lane, out), into) == into
        ):
            matched.add(key)
        elif taken_in[rank, lane, into] == out:
            del taken_in[rank, lane, into]
    return matched


def _merge(draft: Draft, near: Neighbours, r: int, s: int, stays: int) -> None:
    goes = s if stays == r else r
    source, target = draft.source[r], draft.target[s]
    draft.op[stays] = _FUSED[draft.op[r]]
    draft.src[stays], draft.dst[stays] = draft.src[r], draft.dst[r]
    draft.source[stays], draft.target[stays] = source, target
    draft.lane[stays] = draft.lane[r]
    draft.target[source], draft.source[target] = stays, stays
    if stays == r:
        near.sends_as(s, r)
    else:
        near.receives_as(r, s)
    draft.source[goes] = draft.target[goes] = NONE
    near.leave(goes, stays)
