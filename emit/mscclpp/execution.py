"""Execute the threadblocks of a plan: for its check, or to find one possible order of its acts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Protocol

from emit.check.executor import execute
from emit.mscclpp.acts import Act, Acts
from topologies.errors import InputError

Need = tuple[str, int]  # ("signal", channel end), ("release", semaphore), ("packet", cell) or ("barrier", number)


class PlanMachine(Protocol):
    """A machine that executes acts; threadblocks are numbered through all ranks."""

    def need(self, act: Act) -> Need | None:
        """Return the event that must happen before an act can be executed, None for none."""
        ...

    def do(self, block: int, act: Act) -> Iterable[Need]:
        """Run an act; return the events that it causes, named as in `need`."""
        ...

    def meet(self, blocks: Sequence[int]) -> None:
        """Join all the threadblocks that a barrier needs."""
        ...


class ExecutionProgress:
    """The progress of every threadblock through its acts.

    Attributes:
        plan_acts: Acts of the plan.
        acts: Acts of each threadblock.
        at: Next act of each threadblock.
        arrived: Threadblocks that wait at each barrier, by its number.
    """

    def __init__(self, plan_acts: Acts, acts: Sequence[Sequence[Act]]) -> None:
        self.plan_acts, self.acts = plan_acts, acts
        self.at = [0] * len(acts)
        self.arrived: dict[int, list[int]] = defaultdict(list)
        self._waiting: dict[Need, list[int]] = defaultdict(list)

    def run(self, machine: PlanMachine) -> list[int]:
        """Run all threadblocks; return the ones that stopped before their end."""
        execute(len(self.at), lambda block: self._advance(block, machine))
        return [block for block, at in enumerate(self.at) if at < len(self.acts[block])]

    def _advance(self, block: int, machine: PlanMachine) -> list[int]:
        """Run a threadblock until it ends or must wait; return the threadblocks that may proceed because of that."""
        released: list[int] = []
        acts = self.acts[block]
        while self.at[block] < len(acts):
            act = acts[self.at[block]]
            if act.kind == "barrier":
                arrived_blocks = self.arrived[act.ids[0]]
                arrived_blocks.append(block)
                if len(arrived_blocks) < self.plan_acts.barriers[act.ids[0]][2]:
                    break
                machine.meet(arrived_blocks)
                for arrived_block in arrived_blocks:
                    self.at[arrived_block] += 1
                released += (arrived_block for arrived_block in arrived_blocks if arrived_block != block)
                arrived_blocks.clear()
                continue
            need = machine.need(act)
            if need is not None:
                self._waiting[need].append(block)
                break
            for key in machine.do(block, act):
                released += self._waiting.pop(key, ())
            self.at[block] += 1
        return released


def execution_order(plan_acts: Acts) -> list[tuple[int, Act]]:
    """Return (threadblock, act) of everything that a plan does, in one possible order.

    Acts that meet at a barrier are adjacent.

    Raises:
        InputError: The plan stops before its end.
    """
    machine = _Counts(plan_acts)
    if machine.progress.run(machine):
        raise InputError("stops before its end; synth verify says where")
    return machine.order


class _Counts:
    """A machine that counts signals and releases and knows which cells hold packets; it does not look for races."""

    def __init__(self, plan_acts: Acts) -> None:
        self.plan_acts, self.progress = plan_acts, ExecutionProgress(plan_acts, plan_acts.acts)
        self.order: list[tuple[int, Act]] = []
        self.have: Counter[Need] = Counter(
            {("release", n): initial_value for n, (_, _, initial_value) in enumerate(plan_acts.semaphores)}
        )

    def need(self, act: Act) -> Need | None:
        """Return the event that must happen before an act can be executed, None for none."""
        needs: Counter[Need] = Counter()
        if act.kind in _GIVES:
            needs = Counter((_GIVES[act.kind], number) for number in act.ids)
        elif act.flagged:
            needs = Counter({("packet", cell): 1 for move in act.moves for cell in move.packets_read()})
        return next((key for key, n in needs.items() if self.have[key] < n), None)

    def do(self, block: int, act: Act) -> list[Need]:
        """Run an act, which consumes the events that it waited for; return the events that it causes."""
        self.order.append((block, act))
        if act.kind in _GIVES:
            self.have.subtract((_GIVES[act.kind], number) for number in act.ids)
        news: list[Need] = [("release", number) for number in act.ids if act.kind == "release"]
        signals = act.ids if act.kind == "signal" else act.ports if act.name in ("pws", "pwsf") else ()
        news += (("signal", self.plan_acts.across[end]) for end in signals)
        for move in act.moves:
            for run in move.targets:
                if run.packet:
                    news += (("packet", cell) for cell in range(run.cell, run.cell + 2 * move.length))
        self.have.update(news)
        return news

    def meet(self, blocks: Sequence[int]) -> None:
        """Add the acts of threadblocks that meet at a barrier to the order."""
        self.order += ((block, self.plan_acts.acts[block][self.progress.at[block]]) for block in blocks)


_GIVES = {"wait": "signal", "acquire": "release"}  # event that each kind of act waits for
