"""Calls that wait for each other for ever: found by their members, and never where a process can go on."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Any

import pytest

if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: pip install '.[torch]'", allow_module_level=True)

from runtime.torch.failures.causes import Cause
from runtime.torch.failures.deadlock import Deadlocks, DeadlockWatch, Held, HeldCall, describe, find_stuck, own_state

Groups = dict[str, list[str]]  # Names of processes, which are their ranks as texts.


class Program:
    """Processes that make calls of groups in their own order; a call ends when all members of its group are in it."""

    def __init__(self, groups: Groups, calls: dict[str, list[str]]) -> None:
        self.groups, self.calls = groups, calls
        self.at = dict.fromkeys(calls, 0)
        self.inside = dict.fromkeys(calls, False)
        self.made = {name: dict.fromkeys(groups, 0) for name in calls}

    def go(self, name: str) -> bool:
        """Make one move of a process; return False if it has none."""
        if self.at[name] == len(self.calls[name]):
            return False
        group = self.calls[name][self.at[name]]
        if not self.inside[name]:
            self.inside[name] = True
            self.made[name][group] += 1
            return True
        if any(self.made[member][group] < self.made[name][group] for member in self.groups[group]):
            return False
        self.at[name], self.inside[name] = self.at[name] + 1, False
        return True

    def state(self, name: str) -> Held | None:
        if not self.inside[name]:
            return None
        group = self.calls[name][self.at[name]]
        peers = tuple(group for group in self.groups[group] if group != name)
        call = HeldCall(group, self.made[name][group], f"call of {group}", peers)
        return Held(int(name), self.made[name], (call,))

    def states(self) -> dict[str, Held]:
        return {name: state for name in self.calls if (state := self.state(name)) is not None}


def test_exactly_the_processes_that_never_go_on_are_stuck() -> None:
    deadlocks = 0
    for seed in range(300):
        rng = random.Random(seed)
        names = [str(rank) for rank in range(rng.randint(2, 5))]
        groups = {f"g{k}": sorted(rng.sample(names, rng.randint(2, len(names)))) for k in range(3)}
        order = [rng.choice(list(groups)) for _ in range(6)]
        calls = {name: [group for group in order if name in groups[group]] for name in names}
        for name in rng.sample(names, 1):
            rng.shuffle(calls[name])
        program = Program(groups, calls)
        reported, moved = set[str](), True
        while moved:
            moved = False
            for name in rng.sample(names, len(names)):
                moved |= program.go(name)
                reported |= set(find_stuck(program.states()))
        stuck = find_stuck(program.states())
        over = {name for name in names if program.at[name] == len(calls[name])}
        assert reported <= set(names) - over
        # A process that is over makes no more calls: `runtime.torch.failures.lost` reports that.
        assert over or set(stuck) == set(names)
        if stuck:
            deadlocks += 1
            assert describe(stuck).count("rank ") >= 2
    assert deadlocks > 30


class Bus:
    """Processes that answer at once, or not at all."""

    def __init__(self, program: Program, silent: Iterable[str] = ()) -> None:
        self.program, self.silent = program, set(silent)
        self.given: dict[str, list[tuple[str, Cause]]] = {name: [] for name in program.calls}
        self.searches = {
            name: Deadlocks(name, lambda name=name: (program.state(name), 0.0), self._tell(name), 0.01, 0.02)  # type: ignore[misc]
            for name in program.calls
        }

    def watches(self, name: str) -> Sequence[Any]:
        causes = self.given[name]

        class Group:
            def __init__(self, group: str) -> None:
                self.id = group

            def give_up_call(self, cause: Cause) -> None:
                causes.append((self.id, cause))

        return [Group(group) for group in self.program.groups]

    def _tell(self, sender: str) -> Any:
        def tell(names: Iterable[str], message: dict[str, Any]) -> None:
            for name in sorted(names):
                if "stuck" in message:
                    self.searches[name].give_up(message, self.watches(name))
                elif name not in self.silent:
                    self.searches[name].hear(sender, message)

        return tell

    def look(self, name: str) -> None:
        """Look often enough that questions would be over; a rank that gives up its calls looks no more."""
        for _ in range(8):
            if self.given[name]:
                return
            self.searches[name].look(self.watches(name))
            time.sleep(0.005)


def opposite() -> Program:
    program = Program({"a": ["0", "1"], "b": ["0", "1"]}, {"0": ["a", "b"], "1": ["b", "a"]})
    assert program.go("0")
    return program


def test_groups_in_opposite_order_are_named_on_both_ranks() -> None:
    program = opposite()
    bus = Bus(program)
    bus.look("0")
    assert bus.given == {"0": [], "1": []}  # Rank 1 is in no call yet.
    program.go("1")
    bus.look("0")
    assert {name: [(group, cause.number) for group, cause in causes] for name, causes in bus.given.items()} == {
        "0": [("a", 1), ("b", 1)], "1": [("a", 1), ("b", 1)],
    }  # fmt: skip
    texts = {cause.text for causes in bus.given.values() for _, cause in causes}
    assert len(texts) == 1
    assert texts.pop().startswith("rank 0 is in call of a, rank 1 in call of b: each waits for another")


def test_a_process_that_does_not_answer_or_goes_on_is_not_called_stuck() -> None:
    program = opposite()
    program.go("1")
    quiet = Bus(program, silent="1")
    quiet.look("0")
    assert quiet.given == {"0": [], "1": []}
    bus, questions = Bus(program), []
    state = program.state("1")
    assert state is not None
    (call,) = state.calls

    def moving() -> tuple[Held, float]:
        questions.append(1)  # It is another wait each time.
        return Held(1, state.calls_made, (call._replace(number=len(questions)),)), 0.0

    bus.searches["1"] = Deadlocks("1", moving, bus._tell("1"))
    bus.look("0")
    assert len(questions) > 1
    assert bus.given == {"0": [], "1": []}
    # If the first answer were believed, both processes would seem stuck.
    bus.searches["0"]._round = None
    states = {"0": program.state("0"), "1": Held(1, state.calls_made, (call,))}
    assert len(find_stuck({name: state for name, state in states.items() if state is not None})) == 2


class Waiting:
    """A watch over one wait."""

    me, ranks, id = 0, (4,), "g"

    def __init__(self, thread: int, number: int | None = 1) -> None:
        self.thread, self.number = thread, number

    def held(self) -> tuple[str, int, list[HeldCall] | None, set[int], float]:
        calls = None if self.number is None else [HeldCall("g", self.number, "call", ("x",))]
        return "g", 1, calls, {self.thread}, 1.5

    def give_up_call(self, cause: Cause) -> None: ...


def test_a_process_is_held_only_if_each_of_its_threads_waits() -> None:
    me, *other_threads = sorted(sys._current_frames())
    watch: DeadlockWatch = Waiting(me)
    state, since = own_state([watch], set(other_threads))
    assert (state, since) == (Held(4, {"g": 1}, (HeldCall("g", 1, "call", ("x",)),)), 1.5)
    assert own_state([watch, Waiting(me, None)], set(other_threads))[0] is None  # It also waits for a message.
    assert own_state([], {me, *other_threads})[0] is None
    assert own_state([Waiting(-1)], set(other_threads))[0] is None  # This thread is free.
    assert state is not None
    assert Held.of(state.message) == state
