"""Lower limits on the time of any algorithm for a problem, each with its witness.

The kinds of bounds stand in `synth.bounds.registry`. Their searches only say what to look at; what that proves is
worked out by each kind's check, which shares nothing with the search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from synth.bounds.registry import KINDS, Kind, proved
from synth.bounds.search import DEFAULT, Cost, Search, Tuning
from synth.bounds.witness import Limit, Witness, countable, decisive
from synth.model.collective import Floats
from synth.model.deadline import now
from synth.model.defects import contained
from synth.model.problem import Problem
from synth.solvers.workers import Workers

_NEVER = float("inf")
_ROUND_OFF = 1 + 1e-9
OPTIMAL = 1 + 1e-9  # time / bound up to which rounding, and nothing else, keeps them apart


@dataclass(frozen=True)
class Bound:
    """The best of several witnesses at each size."""

    witnesses: tuple[Witness, ...]

    def at(self, size_bytes: float) -> tuple[float, Witness]:
        """The highest limit at a message size, in µs, and what proves it."""
        best = decisive(self.witnesses, size_bytes)
        return best.at(size_bytes), best

    @property
    def per_byte_us(self) -> float:
        """The steepest limit: µs per byte that no algorithm can beat for large messages."""
        steepest: dict[str, float] = {}
        for w in self.witnesses:
            steepest[w.protocol] = max(steepest.get(w.protocol, 0.0), w.per_byte_us if w.cap_us == _NEVER else 0.0)
        return min(steepest.values(), default=0.0)

    def documents(self) -> list[dict[str, Any]]:
        """Each witness as plain values: it proves base_us + bytes × us_per_byte, or cap_us where that is less."""
        return [
            {
                "kind": w.kind,
                "text": w.text,
                "base_us": w.base_us,
                "us_per_byte": w.per_byte_us,
                "cap_us": None if w.cap_us == _NEVER else w.cap_us,
            }
            | ({"protocol": w.protocol} if w.protocol else {})
            for w in self.witnesses
        ]

    def merged(self, witnesses: Iterable[Witness]) -> Bound:
        """This bound with further witnesses after its own, none of them twice."""
        return Bound(tuple(dict.fromkeys((*self.witnesses, *witnesses))))

    def of_protocol(self, name: str) -> Bound:
        """The same bound of a problem of one protocol, as part of a bound over several."""
        return Bound(tuple(replace(w, protocol=name, text=f"{name}: {w.text}") for w in self.witnesses))


@dataclass(frozen=True)
class TighteningEffort:
    """How much work `tighten` does; the linear program gets the time until the deadline, held between two limits."""

    max_flow: bool = True  # whether the worst cuts are looked for
    tuning: Tuning = DEFAULT
    quick_ranks: float = 256  # for which mirror ascent takes less than a second: done even after the deadline
    least_linear_s: float = 0.0  # with none left it is not tried
    most_linear_s: float = 10.0  # longer ones seldom end


def tighten(
    problem: Problem,
    bound: Bound,
    loads_us: Callable[[], Floats] | None,
    size_bytes: float,
    enough_us: float,
    workers: Workers,
    deadline: float,
    report: Callable[[str], None] = lambda _: None,
    effort: TighteningEffort = TighteningEffort(),
) -> Iterator[Bound]:
    """Better and better bounds, each by dearer work than the one before, until one reaches `enough_us`.

    First the worst cuts by max-flow, then link lengths from a routing's loads, then from the linear program.

    Args:
        problem: the problem with one chunk a block, or a quotient problem.
        bound: what is proved already; all its witnesses stay.
        loads_us: how long a good schedule keeps each resource busy, shape (nresources,), in any unit; asked for
            only when it is needed. None: there is no schedule yet, or one of another network.
        size_bytes, enough_us: the message size at which the bound counts, and the bound that needs no more work.
        workers, deadline: for the linear program; of `now`.
        report: takes what is done next, for the user.

    Yields the whole bound after each piece of work.
    """

    def enough() -> bool:
        return bound.at(size_bytes)[0] >= enough_us

    search = Search(countable(problem), effort.tuning, workers=workers)
    if effort.max_flow and not enough():
        report("bound: cuts by max-flow")
        bound = bound.merged(prove(problem, tuning=effort.tuning).witnesses)
        yield bound
    in_time = problem.nranks <= effort.quick_ranks or now() < deadline
    if loads_us is not None and in_time and not enough():
        report("bound: dual prices by mirror ascent")
        search.loads_us = loads_us()
        _look(search, Cost.ROUTING)
        bound = bound.merged(search.found)
        yield bound
    search.budget_s = min(effort.most_linear_s, max(effort.least_linear_s, deadline - now()))
    if search.budget_s > 0 and not enough():
        report("bound: linear program")
        _look(search, Cost.LINEAR_PROGRAM)
        yield bound.merged(search.found)


def refute(
    problem: Problem,
    bound: Bound,
    size_bytes: float,
    reached_us: float,
    workers: Workers,
    deadline: float,
    tuning: Tuning = DEFAULT,
) -> Iterator[Bound]:
    """The bound with what windows of time prove of one message size, for which `reached_us` is reached.

    Also given as it was while a solver's process is at work, so that others can be meanwhile.

    Args:
        problem: the problem with one chunk a block.
        workers, deadline: for linear programs; of `now`.
    """
    for name in problem.protocols or [""]:
        known = [replace(w, protocol="") for w in bound.witnesses if w.protocol == name]
        search = Search(countable(problem.under(name) if name else problem), tuning, known, workers=workers)
        search.size_bytes, search.reached_us, search.budget_s = size_bytes, reached_us, deadline - now()
        for kind in KINDS.values():
            for claim in kind.find(search, Cost.WINDOWS):
                if claim is not None:
                    search.found.append(found := proved(search.problem, claim))
                    own = Bound((found,))
                    bound = bound.merged((own.of_protocol(name) if name else own).witnesses)
                yield bound


def prove(problem: Problem, *, max_flow: bool = True, tuning: Tuning = DEFAULT) -> Bound:
    """Bounds of a problem; `max_flow` also looks for the worst cut among all sets of ranks.

    A quotient problem's bounds are the whole's; they are of those kinds that say the same of both. Where an executor's
    costs are on and no protocol is chosen, each protocol's.
    """
    if problem.protocols:
        each = [
            prove(problem.under(name), max_flow=max_flow, tuning=tuning).of_protocol(name) for name in problem.protocols
        ]
        return Bound(tuple(w for bound in each for w in bound.witnesses))
    problem = countable(problem)
    search = Search(problem, tuning, [*_quick(problem, tuning, tuple(KINDS))])
    if max_flow:
        _look(search, Cost.MAX_FLOW)
    search.found.sort(key=lambda w: [*KINDS].index(w.kind))
    return Bound(tuple(_useful(search.found)))


@lru_cache(maxsize=2)
def _quick(problem: Problem, tuning: Tuning, _kinds: tuple[str, ...]) -> tuple[Witness, ...]:
    """Quick witnesses; they are asked for again where the worst cuts are to join them."""
    search = Search(problem, tuning)
    _look(search, Cost.QUICK)
    return tuple(search.found)


def _look(search: Search, cost: Cost) -> None:
    """Add what the searches of one cost find."""
    for kind in KINDS.values():
        if search.problem.quotient is None or kind.of_quotients:
            contained(f"bound {kind.name}", partial(_take, search, kind, cost), None)


def _take(search: Search, kind: Kind, cost: Cost) -> None:
    """Add what the searches of one kind and cost find."""
    for claim in kind.find(search, cost):
        if claim is not None:
            search.found.append(proved(search.problem, claim))


def _limit(witness: Witness) -> Limit:
    return witness.base_us, witness.per_byte_us, witness.cap_us


def _useful(witnesses: list[Witness]) -> list[Witness]:
    """Without those that another one beats at every size; one ahead by rounding only does not count as better."""
    kept: list[Witness] = []
    for w in sorted(witnesses, key=lambda w: (-float(f"{w.per_byte_us:.11e}"), -float(f"{w.base_us:.11e}"))):
        if w.base_us <= 0 and w.per_byte_us <= 0:
            continue
        if not any(all(a * _ROUND_OFF >= b for a, b in zip(_limit(o), _limit(w), strict=True)) for o in kept):
            kept.append(w)
    return kept or witnesses[-1:]
