"""Combine several instructions into one: absorb, aggregate and fuse, each only if no other instruction prevents it.

Source of the instructions and of aggregation: MSCCLang (ASPLOS 2023), sections 4.1 and 4.2, where the programmer asks
for aggregation, and fusion is a peephole pass.
"""

from __future__ import annotations

from collections import Counter

from emit.compiler.ir import NONE, SCRATCH, Instructions, peers, predecessors
from emit.targets import Limits
from synth.model.deadline import checking_deadline

_FUSED = {"r": "rcs", "rrc": "rrcs"}


class Neighbours:
    """The order of a program's instructions on connections and in cells.

    Instructions may be removed (`remove`), but never move.

    Attributes:
        ir: A copy of the program's instructions, which is changed.
        gone: Instructions that were removed.
        after: For every instruction, the earlier instructions of its rank that share a cell with it.
        before: For every instruction, the later instructions that must follow it.
        sent_before: For every sending instruction, the one before it on its connection, −1 for none.
        sent_after: For every sending instruction, the one after it on its connection, −1 for none.
        received_before: For every receiving instruction, the one before it on its connection, −1 for none.
        received_after: For every receiving instruction, the one after it on its connection, −1 for none.
    """

    def __init__(self, ir: Instructions) -> None:
        self.ir = ir.copy()
        self.gone: set[int] = set()
        self.after = predecessors(ir)
        self.before: list[list[int]] = [[] for _ in ir.op]
        for n, earlier in enumerate(self.after):
            for instruction in earlier:
                self.before[instruction].append(n)
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
                key = (ir.rank[source], ir.receiver(source), ir.channel[target])
                before[n] = latest.get(key, NONE)
                if before[n] != NONE:
                    after[before[n]] = n
                latest[key] = n

    def remove(self, gone: int, instead: int) -> None:
        """Remove instruction `gone`; `instead` does its work and takes its place on connections and in cells."""
        self.gone.add(gone)
        sent, received = (self.sent_before, self.sent_after), (self.received_before, self.received_after)
        for forward, backward in (sent, sent[::-1], received, received[::-1]):
            beyond = forward[gone]
            if beyond != instead and (beyond != NONE or forward[instead] == gone):
                forward[instead] = beyond
                if beyond != NONE:
                    backward[beyond] = instead
        for own, opposite in ((self.before, self.after), (self.after, self.before)):
            own[instead] = sorted({n for n in (*own[instead], *own[gone]) if n not in (gone, instead)})
            for n in own[instead]:
                opposite[n] = sorted({instead if o == gone else o for o in opposite[n]})

    def remaining(self, ir: Instructions) -> Instructions:
        """Return the instructions that were not removed; `ir` itself, whose copy they are, if none was removed."""
        return self.ir.select([n for n in range(len(ir)) if n not in self.gone]) if self.gone else ir


def absorb(ir: Instructions) -> Instructions:
    """Replace a receive into scratch that is only reduced by a receive that reduces (r, re → rrc).

    Each received chunk must be reduced exactly once, and be read by no other instruction. The reductions must all be at
    one distance from the received cells, and request the receive's threadblock or none.

    The result is new instructions, or `ir` itself if there is nothing to replace.
    """
    if "re" not in ir.op:
        return ir
    near = Neighbours(ir)
    changed = near.ir
    for r in checking_deadline(range(len(changed)), every=256):
        if changed.op[r] != "r" or changed.dst[r] < SCRATCH or r in near.gone:
            continue
        low, high = changed.dst[r], changed.dst[r] + changed.count[r]
        blocks = (NONE, changed.threadblock[r])
        sums = [
            n
            for n in near.before[r]
            if changed.op[n] == "re"
            and changed.threadblock[n] in blocks
            and low <= changed.src[n] <= high - changed.count[n]
        ]
        stays = _absorbed_at(near, r, sums) if sums and _used_up(near, r, sums) else NONE
        if stays == NONE:
            continue
        at = changed.dst[sums[0]] - changed.src[sums[0]] + changed.dst[r]
        count, source, channel = changed.count[r], changed.source[r], changed.channel[r]
        changed.op[stays], changed.src[stays], changed.dst[stays], changed.count[stays] = "rrc", at, at, count
        changed.source[stays], changed.channel[stays], changed.target[source] = source, channel, stays
        changed.threadblock[stays] = blocks[1]
        for n in {r, *sums} - {stays}:
            near.remove(n, stays)
    return near.remaining(ir)


def _used_up(near: Neighbours, r: int, sums: list[int]) -> bool:
    """Return True if the reductions use every chunk once, at one distance, and no other instruction reads any.

    The distance must be at least the number of chunks, so that sources and destinations do not overlap. Other
    instructions may write there, but only after all of the reductions.
    """
    ir = near.ir
    low, high = ir.dst[r], ir.dst[r] + ir.count[r]
    distances = {ir.dst[n] - ir.src[n] for n in sums}
    cells = sorted(c for n in sums for c in range(ir.src[n], ir.src[n] + ir.count[n]))
    if len(distances) != 1 or cells != list(range(low, high)) or abs(next(iter(distances))) < high - low:
        return False
    # Other instructions may only write there, after all the reductions.
    later = [n for n in near.before[r] if n not in sums]
    read = any(first < high and low < first + ir.count[n] for n in later for first in ir.reads(n))
    return not read and all(n > sums[-1] for n in later)


def _absorbed_at(near: Neighbours, r: int, sums: list[int]) -> int:
    """Return the instruction in whose place arriving data can be reduced: `r` or the last reduction; −1 for neither."""
    own = {r, *sums}
    if all(o in own or o < r for n in sums for o in near.after[n]):
        return r
    last = sums[-1]
    if near.received_after[r] != NONE and near.received_after[r] < last:
        return NONE
    return last if all(o in own or o > last for n in own for o in near.before[n]) else NONE


def aggregate(ir: Instructions, limits: Limits) -> Instructions:
    """Merge consecutive messages of a connection, up to as many chunks as the target takes in one message.

    The messages are adjacent at both ends. The data of the later one must exist when the earlier one is sent, and
    neither end may have to wait for an instruction in between.

    The result is new instructions, or `ir` itself if there is nothing to merge.
    """
    near = Neighbours(ir)
    changed = near.ir
    for send in checking_deadline(range(len(changed)), every=256):
        if changed.op[send] != "s" or send in near.gone:
            continue
        while True:
            later = near.sent_after[send]
            stays = (
                _aggregated_at(near, send, later, limits.count) if later != NONE and changed.op[later] == "s" else NONE
            )
            if stays == NONE:
                break
            receive, later_receive = changed.target[send], changed.target[later]
            changed.src[send] = min(changed.src[send], changed.src[later])
            changed.src[stays], changed.dst[stays] = (
                min(column[receive], column[later_receive]) for column in (changed.src, changed.dst)
            )
            changed.count[send] = changed.count[stays] = changed.count[send] + changed.count[later]
            changed.target[send], changed.source[stays] = stays, send
            near.remove(later, send)
            near.remove(later_receive if stays == receive else receive, stays)
    return near.remaining(ir)


def aggregate_copies(ir: Instructions, limits: Limits) -> Instructions:
    """Merge adjacent local copies, up to as many chunks as the target takes in one.

    Only copies of initial contents to cells that no other instruction accesses are merged, so no instruction is in
    between.

    The result is new instructions, or `ir` itself if there is nothing to merge.
    """
    if ir.op.count("cpy") < 2:
        return ir
    after = predecessors(ir)
    awaited = {instruction for earlier in after for instruction in earlier}
    merged, gone = ir.copy(), set()
    last_copy: dict[tuple[int, int], int] = {}  # last such copy, by (rank, threadblock)
    for n, op in enumerate(ir.op):
        if op != "cpy" or after[n] or n in awaited:
            continue
        key = merged.rank[n], merged.threadblock[n]
        into = last_copy.setdefault(key, n)
        width = merged.count[into]
        follows = all(column[n] == column[into] + width for column in (merged.src, merged.dst))
        width += merged.count[n]
        if into == n or not follows or width > limits.count or not merged.joins(into, width):
            last_copy[key] = n
            continue
        merged.count[into] += merged.count[n]
        gone.add(n)
    return merged.select([n for n in range(len(merged)) if n not in gone]) if gone else ir


def _aggregated_at(near: Neighbours, s: int, later: int, most: int) -> int:
    """Return the receive in whose place the merged message can arrive, of the two receives; −1 for neither."""
    ir = near.ir
    r, later_receive = ir.target[s], ir.target[later]
    if (
        ir.op[r] != ir.op[later_receive]
        or ir.op[r] not in ("r", "rrc")
        or near.received_after[r] != later_receive
        or ir.count[s] + ir.count[later] > most
    ):
        return NONE
    distance = ir.src[later] - ir.src[s]
    if distance not in (ir.count[s], -ir.count[later]) or ir.dst[later_receive] - ir.dst[r] != distance:
        return NONE
    if ir.op[r] == "rrc" and ir.src[later_receive] - ir.src[r] != distance:
        return NONE
    if any(n > s for n in near.after[later]):
        return NONE
    count, lower = ir.count[s] + ir.count[later], (s, r) if distance > 0 else (later, later_receive)
    if not all(ir.joins(n, count) for n in lower):
        return NONE
    if all(n < r for n in near.after[later_receive]):
        return r
    return later_receive if all(n > later_receive for n in near.before[r]) else NONE


def fuse(ir: Instructions) -> Instructions:
    """Merge a receive and a send of the same chunks at a rank into one instruction (rcs, rrcs) in one threadblock.

    A threadblock receives from one rank and sends to one. So at each rank, and on each requested channel, a rank to
    receive from is matched with one rank to send to, those with the most common chunks first.

    The result is new instructions, or `ir` itself if there is nothing to merge.
    """
    near = Neighbours(ir)
    changed = near.ir
    candidates = _candidates(near)
    matched = _matching(changed, candidates)
    for r, s in checking_deadline(candidates, every=256):
        if _ends(changed, r, s) not in matched or changed.target[r] != NONE:
            continue
        stays = _fused_at(near, r, s)
        if stays == NONE:
            continue
        removed = s if stays == r else r
        source, target = changed.source[r], changed.target[s]
        changed.op[stays], changed.src[stays], changed.dst[stays] = (
            _FUSED[changed.op[r]],
            changed.src[r],
            changed.dst[r],
        )
        changed.source[stays], changed.target[stays], changed.channel[stays] = source, target, changed.channel[r]
        changed.out[stays] = changed.out[s]
        changed.target[source], changed.source[target] = stays, stays
        changed.source[removed] = changed.target[removed] = NONE
        near.remove(removed, stays)
    return near.remaining(ir)


def _candidates(near: Neighbours) -> list[tuple[int, int]]:
    """Return pairs (receive, send) of one rank that can be fused: the send reads exactly what the receive wrote.

    The two are on the same requested channel and in the same requested threadblock.
    """
    ir = near.ir
    return [
        (r, s)
        for s, op in checking_deadline(enumerate(ir.op), every=1024)
        if op == "s"
        for r in near.after[s]
        if ir.op[r] in _FUSED
        and (ir.dst[r], ir.count[r]) == (ir.src[s], ir.count[s])
        and ir.channel[r] == ir.channel[ir.target[s]]
        and ir.threadblock[r] == ir.threadblock[s]
        and _fused_at(near, r, s) != NONE
    ]


def _fused_at(near: Neighbours, r: int, s: int) -> int:
    """Return the instruction whose place the fused instruction can take, −1 for neither.

    In the receive's place, the send overtakes the instructions in between; in the send's place, the receive falls
    behind.
    """
    if near.sent_before[s] < r and all(n <= r for n in near.after[s]):
        return r
    if (near.received_after[r] > s or near.received_after[r] == NONE) and all(n >= s for n in near.before[r]):
        return s
    return NONE


def _ends(ir: Instructions, r: int, s: int) -> tuple[int, int, int, int]:
    """Return (rank, channel, receives from, sends to) of a receive and a send of one rank, on the receive's channel."""
    return ir.rank[r], ir.channel[r], peers(ir, r)[0], peers(ir, s)[1]


def _matching(ir: Instructions, candidates: list[tuple[int, int]]) -> set[tuple[int, int, int, int]]:
    """Return the ends (see `_ends`) that are fused, one to one at every rank and channel.

    Ends of the most candidates come first; what is fused already keeps its match.
    """
    common = Counter(_ends(ir, r, s) for r, s in candidates)
    target_of_source: dict[tuple[int, int, int], int] = {}
    source_of_target: dict[tuple[int, int, int], int] = {}
    for n, op in enumerate(ir.op):  # Instructions that are already fused keep their match.
        if op in ("rcs", "rrcs", "rrs"):
            rank, channel, into, out = _ends(ir, n, n)
            target_of_source[rank, channel, into] = out
            source_of_target[rank, channel, out] = into
    matched = set()
    for key, _ in sorted(common.items(), key=lambda item: (-item[1], item[0])):
        rank, channel, into, out = key
        if target_of_source.setdefault((rank, channel, into), out) == out and (
            source_of_target.setdefault((rank, channel, out), into) == into
        ):
            matched.add(key)
        elif target_of_source[rank, channel, into] == out:
            del target_of_source[rank, channel, into]
    return matched
