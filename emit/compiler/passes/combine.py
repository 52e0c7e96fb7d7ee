"""One instruction in place of several: absorb, aggregate and fuse, each with an eye to what stands between them.

Source of the instructions and of aggregation: MSCCLang (ASPLOS 2023), sections 4.1 and 4.2, where the programmer asks
for aggregation and fusion is a peephole.
"""

from __future__ import annotations

from collections import Counter

from emit.compiler.ir import NONE, SCRATCH, Instructions, peers, predecessors
from emit.targets import Limits

_FUSED = {"r": "rcs", "rrc": "rrcs"}


class Neighbours:
    """Order on connections and by cells, for one program; instructions may be taken out (`leave`), none moves.

    Attributes:
        ir: a copy of the program's instructions, to be changed. gone: those that were taken out.
        after: for every instruction those earlier ones of its rank that share a cell with it.
        before: those later ones that must follow it.
    """

    def __init__(self, ir: Instructions) -> None:
        self.ir = ir.copy()
        self.gone: set[int] = set()
        self.after = predecessors(ir)
        self.before: list[list[int]] = [[] for _ in ir.op]
        for n, others in enumerate(self.after):
            for other in others:
                self.before[other].append(n)
        size = len(ir)
        self.sent_before, self.sent_after = [NONE] * size, [NONE] * size
        self.received_before, self.received_after = [NONE] * size, [NONE] * size
        received = [(n, source, n) for n, source in enumerate(ir.source) if source != NONE]
        sent = [(n, n, target) for n, target in enumerate(ir.target) if target != NONE]
        for messages, before, after in (
            (received, self.received_before, self.received_after),
            (sent, self.sent_before, self.sent_after),
        ):
            latest: dict[tuple[int, int, int], int] = {}
            for n, source, target in messages:
                key = (ir.rank[source], ir.rank[target], ir.channel[target])
                before[n] = latest.get(key, NONE)
                if before[n] != NONE:
                    after[before[n]] = n
                latest[key] = n

    def leave(self, gone: int, instead: int) -> None:
        """`gone` is done by `instead`: what came before or after it on a connection or in a cell does so with that."""
        self.gone.add(gone)
        sent, received = (self.sent_before, self.sent_after), (self.received_before, self.received_after)
        for here, there in (sent, sent[::-1], received, received[::-1]):
            beyond = here[gone]
            if beyond != instead and (beyond != NONE or here[instead] == gone):
                here[instead] = beyond
                if beyond != NONE:
                    there[beyond] = instead
        for mine, theirs in ((self.before, self.after), (self.after, self.before)):
            mine[instead] = sorted({n for n in (*mine[instead], *mine[gone]) if n not in (gone, instead)})
            for n in mine[instead]:
                theirs[n] = sorted({instead if o == gone else o for o in theirs[n]})

    def left(self, ir: Instructions) -> Instructions:
        """The instructions that were not taken out; `ir`, from which they are, where all are left."""
        return self.ir.select([n for n in range(len(ir)) if n not in self.gone]) if self.gone else ir


def absorb(ir: Instructions) -> Instructions:
    """What is received into scratch only to be reduced is reduced as it arrives (r, re → rrc)."""
    if "re" not in ir.op:
        return ir
    near = Neighbours(ir)
    made = near.ir
    for r in range(len(made)):
        if made.op[r] != "r" or made.dst[r] < SCRATCH or r in near.gone:
            continue
        low, high = made.dst[r], made.dst[r] + made.count[r]
        blocks = (NONE, made.threadblock[r])
        sums = [
            n
            for n in near.before[r]
            if made.op[n] == "re" and made.threadblock[n] in blocks and low <= made.src[n] <= high - made.count[n]
        ]
        stays = _absorbed_at(near, r, sums) if sums and _used_up(near, r, sums) else NONE
        if stays == NONE:
            continue
        at = made.dst[sums[0]] - made.src[sums[0]] + made.dst[r]
        count, source, channel = made.count[r], made.source[r], made.channel[r]
        made.op[stays], made.src[stays], made.dst[stays], made.count[stays] = "rrc", at, at, count
        made.source[stays], made.channel[stays], made.target[source] = source, channel, stays
        made.threadblock[stays] = blocks[1]
        for n in {r, *sums} - {stays}:
            near.leave(n, stays)
    return near.left(ir)


def _used_up(near: Neighbours, r: int, sums: list[int]) -> bool:
    """Whether the reductions take every chunk once, to places at one distance, and nobody else takes any."""
    ir = near.ir
    low, high = ir.dst[r], ir.dst[r] + ir.count[r]
    apart = {ir.dst[n] - ir.src[n] for n in sums}
    cells = sorted(c for n in sums for c in range(ir.src[n], ir.src[n] + ir.count[n]))
    if len(apart) != 1 or cells != list(range(low, high)) or abs(next(iter(apart))) < high - low:
        return False
    # another may only write there anew, after all of them
    others = [n for n in near.before[r] if n not in sums]
    read = any(first < high and low < first + ir.count[n] for n in others for first in ir.reads(n))
    return not read and all(n > sums[-1] for n in others)


def _absorbed_at(near: Neighbours, r: int, sums: list[int]) -> int:
    """In whose place the arriving data can be reduced: the receive's, the last reduction's, or −1 for neither."""
    own = {r, *sums}
    if all(o in own or o < r for n in sums for o in near.after[n]):
        return r
    last = sums[-1]
    if near.received_after[r] != NONE and near.received_after[r] < last:
        return NONE
    return last if all(o in own or o > last for n in own for o in near.before[n]) else NONE


def aggregate(ir: Instructions, limits: Limits) -> Instructions:
    """Merge messages that follow one another on a connection, to as many chunks as the target takes in one.

    They lie side by side at both ends. The later one's data must be there when the earlier one is sent; neither end may
    have to wait for something that stands between.
    """
    near = Neighbours(ir)
    made = near.ir
    for s in range(len(made)):
        if made.op[s] != "s" or s in near.gone:
            continue
        while True:
            later = near.sent_after[s]
            stays = _aggregated_at(near, s, later, limits.count) if later != NONE and made.op[later] == "s" else NONE
            if stays == NONE:
                break
            r, behind = made.target[s], made.target[later]
            made.src[s] = min(made.src[s], made.src[later])
            made.src[stays], made.dst[stays] = (min(column[r], column[behind]) for column in (made.src, made.dst))
            made.count[s] = made.count[stays] = made.count[s] + made.count[later]
            made.target[s], made.source[stays] = stays, s
            near.leave(later, s)
            near.leave(behind if stays == r else r, stays)
    return near.left(ir)


def aggregate_copies(ir: Instructions, limits: Limits) -> Instructions:
    """Merge local copies that lie side by side, to as many chunks as the target takes in one.

    Only those of what was there at the start to where nobody reads or writes it: no other instruction stands between.
    """
    if ir.op.count("cpy") < 2:
        return ir
    after = predecessors(ir)
    awaited = {other for others in after for other in others}
    made, gone = ir.copy(), set()
    last: dict[tuple[int, int], int] = {}  # (rank, threadblock): the last such copy
    for n, op in enumerate(ir.op):
        if op != "cpy" or after[n] or n in awaited:
            continue
        key = made.rank[n], made.threadblock[n]
        into = last.setdefault(key, n)
        width = made.count[into]
        follows = all(column[n] == column[into] + width for column in (made.src, made.dst))
        if into == n or not follows or width + made.count[n] > limits.count:
            last[key] = n
            continue
        made.count[into] += made.count[n]
        gone.add(n)
    return made.select([n for n in range(len(made)) if n not in gone]) if gone else ir


def _aggregated_at(near: Neighbours, s: int, later: int, most: int) -> int:
    """In whose place, of the two receiving instructions, the merged message can arrive; −1 for neither."""
    ir = near.ir
    r, behind = ir.target[s], ir.target[later]
    if (
        ir.op[r] != ir.op[behind]
        or ir.op[r] not in ("r", "rrc")
        or near.received_after[r] != behind
        or ir.count[s] + ir.count[later] > most
    ):
        return NONE
    apart = ir.src[later] - ir.src[s]
    if apart not in (ir.count[s], -ir.count[later]) or ir.dst[behind] - ir.dst[r] != apart:
        return NONE
    if ir.op[r] == "rrc" and ir.src[behind] - ir.src[r] != apart:
        return NONE
    if any(n > s for n in near.after[later]):
        return NONE
    if all(n < r for n in near.after[behind]):
        return r
    return behind if all(n > behind for n in near.before[r]) else NONE


def fuse(ir: Instructions) -> Instructions:
    """What a rank receives and sends on at once is one instruction (rcs, rrcs), and one threadblock's.

    A threadblock receives from one rank and sends to one. So at each rank, and on each channel asked for, a rank to
    receive from is matched with one to send to, those with most in common first.
    """
    near = Neighbours(ir)
    made = near.ir
    found = _candidates(near)
    matched = _matching(made, found)
    for r, s in found:
        if _ends(made, r, s) not in matched or made.target[r] != NONE:
            continue
        stays = _fused_at(near, r, s)
        if stays == NONE:
            continue
        goes = s if stays == r else r
        source, target = made.source[r], made.target[s]
        made.op[stays], made.src[stays], made.dst[stays] = _FUSED[made.op[r]], made.src[r], made.dst[r]
        made.source[stays], made.target[stays], made.channel[stays] = source, target, made.channel[r]
        made.target[source], made.source[target] = stays, stays
        made.source[goes] = made.target[goes] = NONE
        near.leave(goes, stays)
    return near.left(ir)


def _candidates(near: Neighbours) -> list[tuple[int, int]]:
    """Pairs (receive, send) of one rank where the send reads just what the receive wrote."""
    ir = near.ir
    return [
        (r, s)
        for s, op in enumerate(ir.op)
        if op == "s"
        for r in near.after[s]
        if ir.op[r] in _FUSED
        and (ir.dst[r], ir.count[r]) == (ir.src[s], ir.count[s])
        and ir.channel[r] == ir.channel[ir.target[s]]
        and ir.threadblock[r] == ir.threadblock[s]
        and _fused_at(near, r, s) != NONE
    ]


def _fused_at(near: Neighbours, r: int, s: int) -> int:
    """Which of the two the fused instruction takes the place of, −1 where it must be in both.

    In the receive's place the send overtakes what stands between; in the send's place the receive falls behind.
    """
    if near.sent_before[s] < r and all(n <= r for n in near.after[s]):
        return r
    if (near.received_after[r] > s or near.received_after[r] == NONE) and all(n >= s for n in near.before[r]):
        return s
    return NONE


def _ends(ir: Instructions, r: int, s: int) -> tuple[int, int, int, int]:
    """(rank, channel, receives from, sends to)."""
    return ir.rank[r], ir.channel[r], peers(ir, r)[0], peers(ir, s)[1]


def _matching(ir: Instructions, found: list[tuple[int, int]]) -> set[tuple[int, int, int, int]]:
    """What is fused with what, at every rank one to one."""
    common = Counter(_ends(ir, r, s) for r, s in found)
    taken_in: dict[tuple[int, int, int], int] = {}
    taken_out: dict[tuple[int, int, int], int] = {}
    for n, op in enumerate(ir.op):  # what is fused already stays so
        if op in ("rcs", "rrcs", "rrs"):
            rank, channel, into, out = _ends(ir, n, n)
            taken_in[rank, channel, into] = out
            taken_out[rank, channel, out] = into
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
