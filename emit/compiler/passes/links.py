"""What stands before and after an instruction: on its connections, and in the cells that it touches."""

from __future__ import annotations

from emit.compiler.ir import NONE, Instructions, predecessors


class Neighbours:
    """Order on connections and by cells, for one program; instructions may be taken out (`leave`), none moves.

    Attributes:
        after: for every instruction those earlier ones of its rank that share a cell with it.
        before: those later ones that must follow it.
    """

    def __init__(self, ir: Instructions) -> None:
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

    def sends_as(self, gone: int, instead: int) -> None:
        """`instead` now sends what `gone` sent, in its turn."""
        _replace(gone, instead, self.sent_before, self.sent_after)

    def receives_as(self, gone: int, instead: int) -> None:
        """`instead` now receives what `gone` received, in its turn."""
        _replace(gone, instead, self.received_before, self.received_after)

    def leave(self, gone: int, instead: int) -> None:
        """`gone` is done by `instead`: what came before or after it on a connection or in a cell does so with that."""
        for before, after in ((self.sent_before, self.sent_after), (self.received_before, self.received_after)):
            if gone in (before[instead], after[instead]):  # they follow one another
                earlier, later = (gone, instead) if after[gone] == instead else (instead, gone)
                outer_before, outer_after = before[earlier], after[later]
                before[instead], after[instead] = outer_before, outer_after
                if outer_before != NONE:
                    after[outer_before] = instead
                if outer_after != NONE:
                    before[outer_after] = instead
        for mine, theirs in ((self.before, self.after), (self.after, self.before)):
            mine[instead] = sorted({n for n in (*mine[instead], *mine[gone]) if n not in (gone, instead)})
            for n in mine[instead]:
                theirs[n] = sorted({instead if o == gone else o for o in theirs[n]})


def _replace(gone: int, instead: int, before: list[int], after: list[int]) -> None:
    before[instead], after[instead] = before[gone], after[gone]
    if before[gone] != NONE:
        after[before[gone]] = instead
    if after[gone] != NONE:
        before[after[gone]] = instead
