"""How the threadblocks of a plan go on: for its check, and in one order that what they wait for allows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Protocol

from emit.check.executor import execute
from emit.mscclpp.acts import Act, Acts
from topologies.errors import InputError

Need = tuple[str, int]  # "signal" and a channel end, "release" and a semaphore, "packet" and a cell, "barrier"


class Machine(Protocol):
    """What acts are executed on; threadblocks by their numbers over all ranks."""

    def need(self, act: Act) -> Need | None:
        """What must come before the act can be done, None if nothing."""
        ...

    def do(self, block: int, act: Act) -> Iterable[Need]:
        """Do it; what came about by it, as `need` names it."""
        ...

    def meet(self, blocks: Sequence[int]) -> None:
        """All that a barrier asks for have come to it."""
        ...


class Progress:
    """How far each threadblock has come.

    Attributes:
        acts: of each. at: the act that each has come to. arrived: those that stand at a barrier, by its number.
    """

    def __init__(self, made: Acts, acts: Sequence[Sequence[Act]]) -> None:
        self.made, self.acts = made, acts
        self.at = [0] * len(acts)
        self.arrived: dict[int, list[int]] = defaultdict(list)
        self._waiting: dict[Need, list[int]] = defaultdict(list)

    def run(self, machine: Machine) -> list[int]:
        """Execute all; the threadblocks that stopped before their end."""
        execute(len(self.at), lambda block: self._advance(block, machine))
        return [block for block, at in enumerate(self.at) if at < len(self.acts[block])]

    def _advance(self, block: int, machine: Machine) -> list[int]:
        """Take a threadblock as far as it comes; those that may go on by what it did."""
        freed: list[int] = []
        acts = self.acts[block]
        while self.at[block] < len(acts):
            act = acts[self.at[block]]
            if act.kind == "barrier":
                here = self.arrived[act.ids[0]]
                here.append(block)
                if len(here) < self.made.barriers[act.ids[0]][2]:
                    break
                machine.meet(here)
                for other in here:
                    self.at[other] += 1
                freed += (other for other in here if other != block)
                here.clear()
                continue
            need = machine.need(act)
            if need is not None:
                self._waiting[need].append(block)
                break
            for key in machine.do(block, act):
                freed += self._waiting.pop(key, ())
            self.at[block] += 1
        return freed


def execution_order(made: Acts) -> list[tuple[int, Act]]:
    """(threadblock, act) of everything that a plan does; those that meet at a barrier stand together.

    Raises InputError for a plan that stops before its end.
    """
    machine = _Counts(made)
    if machine.progress.run(machine):
        raise InputError("stops before its end; synth verify says where")
    return machine.order


class _Counts:
    """Counts what was signalled and released, and knows which cells hold packets; nothing is said of races here."""

    def __init__(self, made: Acts) -> None:
        self.made, self.progress = made, Progress(made, made.acts)
        self.order: list[tuple[int, Act]] = []
        self.have: Counter[Need] = Counter({("release", n): held for n, (_, _, held) in enumerate(made.semaphores)})

    def need(self, act: Act) -> Need | None:
        needs: Counter[Need] = Counter()
        if act.kind in _GIVES:
            needs = Counter((_GIVES[act.kind], number) for number in act.ids)
        elif act.flagged:
            needs = Counter({("packet", cell): 1 for move in act.moves for cell in move.packets_read()})
        return next((key for key, n in needs.items() if self.have[key] < n), None)

    def do(self, block: int, act: Act) -> list[Need]:
        """What it waited for is used up."""
        self.order.append((block, act))
        if act.kind in _GIVES:
            self.have.subtract((_GIVES[act.kind], number) for number in act.ids)
        news: list[Need] = [("release", number) for number in act.ids if act.kind == "release"]
        signals = act.ids if act.kind == "signal" else act.ports if act.name in ("pws", "pwsf") else ()
        news += (("signal", self.made.across[end]) for end in signals)
        for move in act.moves:
            for run in move.targets:
                if run.packet:
                    news += (("packet", cell) for cell in range(run.cell, run.cell + 2 * move.length))
        self.have.update(news)
        return news

    def meet(self, blocks: Sequence[int]) -> None:
        self.order += ((block, self.made.acts[block][self.progress.at[block]]) for block in blocks)


_GIVES = {"wait": "signal", "acquire": "release"}  # what an act waits for
