"""One execution of a plan: its acts in an order that what it waits for allows."""

from __future__ import annotations

from collections import Counter, defaultdict

from emit.check.executor import execute
from emit.mscclpp.acts import Act, Acts
from topologies.errors import InputError

_Need = tuple[str, int]  # "wait" and a channel end, "acquire" and a semaphore, "packet" and a cell


def execution_order(made: Acts) -> list[tuple[int, Act]]:
    """(threadblock, act) of everything that a plan does; those that meet at a barrier stand together.

    Raises InputError for a plan that stops before its end.
    """
    run = _Execution(made)
    execute(len(made.acts), run.advance)
    if any(at < len(acts) for at, acts in zip(run.at, made.acts, strict=True)):
        raise InputError("stops before its end; synth verify says where")
    return run.order


class _Execution:
    """Counts what was signalled and released, and knows which cells hold packets; nothing is said of races here."""

    def __init__(self, made: Acts) -> None:
        self.made = made
        self.at = [0] * len(made.acts)
        self.order: list[tuple[int, Act]] = []
        self.have: Counter[_Need] = Counter({("acquire", n): held for n, (_, _, held) in enumerate(made.semaphores)})
        self.waiting: dict[_Need, list[int]] = defaultdict(list)
        self.arrived: dict[int, list[int]] = defaultdict(list)

    def advance(self, block: int) -> list[int]:
        """Take a threadblock as far as it comes; those that may go on by what it did."""
        freed: list[int] = []
        acts = self.made.acts[block]
        while self.at[block] < len(acts):
            act = acts[self.at[block]]
            if act.kind == "barrier":
                others = self._meet(block, act.ids[0])
                if not others:
                    break
                freed += (other for other in others if other != block)
                continue
            need = next((key for key, n in self._needs(act).items() if self.have[key] < n), None)
            if need is not None:
                self.waiting[need].append(block)
                break
            for key in self._do(act):
                self.have[key] += 1
                freed += self.waiting.pop(key, ())
            self.order.append((block, act))
            self.at[block] += 1
        return freed

    def _meet(self, block: int, barrier: int) -> list[int]:
        """The threadblocks that meet at a barrier, taken further; none while some are missing."""
        here = self.arrived[barrier]
        here.append(block)
        if len(here) < self.made.barriers[barrier][2]:
            return []
        for other in here:
            self.order.append((other, self.made.acts[other][self.at[other]]))
            self.at[other] += 1
        self.arrived[barrier] = []
        return here

    def _needs(self, act: Act) -> Counter[_Need]:
        """What must have come about before the act, and how often."""
        if act.kind in ("wait", "acquire"):
            return Counter((act.kind, number) for number in act.ids)
        if act.flagged:
            return Counter({("packet", cell): 1 for move in act.moves for cell in move.packets_read()})
        return Counter()

    def _do(self, act: Act) -> list[_Need]:
        """What comes about by the act; what it waited for is used up."""
        if act.kind in ("wait", "acquire"):
            self.have.subtract((act.kind, number) for number in act.ids)
        news: list[_Need] = [("acquire", number) for number in act.ids if act.kind == "release"]
        signals = act.ids if act.kind == "signal" else act.ports if act.name in ("pws", "pwsf") else ()
        news += (("wait", self.made.across[end]) for end in signals)
        for move in act.moves:
            for run in move.targets:
                if run.packet:
                    news += (("packet", cell) for cell in range(run.cell, run.cell + 2 * move.length))
        return news
