"""Run the searches for bounds: quick ones (`prove`), better ones (`tighten`), and windows of time (`refute`).

`synth.bounds.registry` lists the kinds of bounds. Their searches only say what to look at. The check of each kind,
which imports no search, computes what that proves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from synth.bounds.check import proved
from synth.bounds.search import DEFAULT, BoundCost, BoundSearch, BoundTuning
from synth.bounds.witness import Witness, countable, decisive
from synth.model.collective import Floats
from synth.model.deadline import checking_deadline, now
from synth.model.defects import contained
from synth.model.problem import Problem
from synth.solvers.workers import Workers

if TYPE_CHECKING:
    from synth.bounds.registry import BoundKind

_NEVER = float("inf")
_ROUND_OFF = 1 + 1e-9
OPTIMAL = 1 + 1e-9  # time / bound up to which only rounding separates them


@dataclass(frozen=True)
class Bound:
    """Several witnesses, of which the best one counts at each message size.

    Attributes:
        witnesses: The witnesses, with the numbers that they prove.
    """

    witnesses: tuple[Witness, ...]

    def at(self, size_bytes: float) -> tuple[float, Witness]:
        """Return the bound at a message size in bytes, in µs, and the witness that proves it; see `decisive`.

        Raises:
            ValueError: There is no witness.
        """
        best = decisive(self.witnesses, size_bytes)
        return best.at(size_bytes), best

    @property
    def per_byte_us(self) -> float:
        """Return the steepest limit: µs per byte that no algorithm can beat for large messages.

        Witnesses with a cap do not count. Over more than one protocol it is that of the least protocol. Without
        witnesses it is 0.
        """
        steepest: dict[str, float] = {}
        for w in self.witnesses:
            steepest[w.protocol] = max(steepest.get(w.protocol, 0.0), w.per_byte_us if w.cap_us == _NEVER else 0.0)
        return min(steepest.values(), default=0.0)

    def documents(self) -> list[dict[str, Any]]:
        """Return each witness as values for JSON: it proves base_us + bytes × us_per_byte, at most cap_us.

        Witnesses that prove nothing are left out, unless all are such. The keys are kind, text, base_us,
        us_per_byte, cap_us (None without a cap) and, where it has one, protocol.
        """
        return [
            {
                "kind": w.kind,
                "text": w.text,
                "base_us": w.base_us,
                "us_per_byte": w.per_byte_us,
                "cap_us": None if w.cap_us == _NEVER else w.cap_us,
            }
            | ({"protocol": w.protocol} if w.protocol else {})
            for w in [w for w in self.witnesses if w.base_us > 0 or w.per_byte_us > 0] or self.witnesses
        ]

    def merged(self, witnesses: Iterable[Witness]) -> Bound:
        """Return a bound with further witnesses after this one's own; of equal witnesses only the first is kept."""
        return Bound(tuple(dict.fromkeys((*self.witnesses, *witnesses))))

    def of_protocol(self, name: str) -> Bound:
        """Return the bound of a problem under one protocol as part of a bound over all protocols.

        Every witness belongs to the protocol `name`, and its text begins with `name: `.
        """
        return Bound(tuple(replace(w, protocol=name, text=f"{name}: {w.text}") for w in self.witnesses))


@dataclass(frozen=True)
class TighteningEffort:
    """The amount of work that `tighten` does.

    The linear program gets the time until the deadline, within two limits.

    Attributes:
        max_flow: True if `tighten` looks for the worst cuts.
        tuning: Limits of the searches.
        quick_ranks: Number of ranks up to which mirror ascent takes less than a second; it then runs even after the
            deadline.
        least_linear_s: Least time of the linear program in seconds; it is skipped where no time remains.
        most_linear_s: Most time of the linear program in seconds; longer runs seldom end.
    """

    max_flow: bool = True
    tuning: BoundTuning = DEFAULT
    quick_ranks: float = 256
    least_linear_s: float = 0.0
    most_linear_s: float = 10.0


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
    """Yield better and better bounds, each from more expensive work, until one reaches `enough_us`.

    The worst cuts by max-flow come first, then link lengths from a routing's loads, then from the linear program.
    Nothing is yielded if `bound` is enough already. A bound may be no better than the one before it.

    Args:
        problem: The problem with one chunk a block, or a quotient problem.
        bound: What is proved already, with at least one witness; all its witnesses stay.
        loads_us: Returns how long a good schedule keeps each resource busy, shape (nresources,), in any unit; called
            only when it is needed. None: there is no schedule yet, or one of another network.
        size_bytes: Message size in bytes at which the bound counts.
        enough_us: The bound in µs that needs no more work.
        workers: Solver processes for the linear program.
        deadline: End of the linear program, on the clock of `now`. Work before it does not stop there; mirror ascent in
            a large network is not started after it.
        report: Receives the next kind of work, for the user.
        effort: The amount of work.

    Yields:
        The whole bound after each kind of work.

    Raises:
        TimeUp: The time of the work around is over.
    """

    def enough() -> bool:
        """Return True if the bound so far reaches `enough_us` at the message size."""
        return bound.at(size_bytes)[0] >= enough_us

    search = BoundSearch(countable(problem), effort.tuning, workers=workers)
    if effort.max_flow and not enough():
        report("bound: cuts by max-flow")
        bound = bound.merged(prove(problem, tuning=effort.tuning).witnesses)
        yield bound
    in_time = problem.nranks <= effort.quick_ranks or now() < deadline
    if loads_us is not None and in_time and not enough():
        report("bound: dual prices by mirror ascent")
        search.loads_us = loads_us()
        _look(search, BoundCost.ROUTING)
        bound = bound.merged(search.witnesses)
        yield bound
    search.budget_s = min(effort.most_linear_s, max(effort.least_linear_s, deadline - now()))
    if search.budget_s > 0 and not enough():
        report("bound: linear program")
        _look(search, BoundCost.LINEAR_PROGRAM)
        yield bound.merged(search.witnesses)


def refute(
    problem: Problem,
    bound: Bound,
    size_bytes: float,
    reached_us: float,
    workers: Workers,
    deadline: float,
    tuning: BoundTuning = DEFAULT,
) -> Iterator[Bound]:
    """Yield the bound with what windows of time prove at one message size, for which `reached_us` is reached.

    The unchanged bound is also yielded while a solver's process works, so that the caller can do other work. The
    problem's protocols are searched one after the other, the one with the least bound first, as long as no other one
    has a lower bound.

    Args:
        problem: The problem with one chunk a block.
        bound: What is proved already, with a witness for each of the problem's protocols; all its witnesses stay.
        size_bytes: Message size in bytes.
        reached_us: Time in µs that a schedule reaches at this size.
        workers: Solver processes for linear programs.
        deadline: End of the search, on the clock of `now`.
        tuning: Limits of the search.

    Yields:
        The whole bound so far.

    Raises:
        TimeUp: The time of the work around is over.
    """

    def proved_us(name: str) -> float:
        """Return what is proved of a protocol at the size, in µs."""
        return max(witness.at(size_bytes) for witness in bound.witnesses if witness.protocol == name)

    for name in sorted(problem.protocols, key=proved_us) or [""]:
        if proved_us(name) > bound.at(size_bytes)[0]:
            return
        own_witnesses = [replace(w, protocol="") for w in bound.witnesses if w.protocol == name]
        search = BoundSearch(
            countable(problem.under(name) if name else problem), tuning, own_witnesses, workers=workers
        )
        search.size_bytes, search.reached_us, search.budget_s = size_bytes, reached_us, deadline - now()
        for kind in _kinds().values():
            for claim in checking_deadline(kind.find(search, BoundCost.WINDOWS)):
                if claim is not None:
                    search.witnesses.append(witness := proved(search.problem, claim))
                    proof = Bound((witness,))
                    bound = bound.merged((proof.of_protocol(name) if name else proof).witnesses)
                yield bound


def prove(
    problem: Problem, *, max_flow: bool = True, size_bytes: float | None = None, tuning: BoundTuning = DEFAULT
) -> Bound:
    """Return the bound of a problem at all message sizes, without witnesses that others beat at every size.

    The bound of a quotient problem is that of the whole problem; it has only kinds that say the same of both. Where an
    executor's costs are on and no protocol is chosen, the bound has the witnesses of each protocol. A search that fails
    by a defect only leaves out its witnesses where defects are collected (`contained`).

    Args:
        problem: The problem, usually with one chunk a block, or a quotient problem.
        max_flow: Whether to look also for the worst cut among all sets of ranks.
        size_bytes: Message size in bytes for which witnesses of their own are sought; None for none.
        tuning: Limits of the searches.

    Raises:
        TimeUp: The time of the work around is over.
    """
    if problem.protocols:
        bounds = [
            prove(problem.under(name), max_flow=max_flow, size_bytes=size_bytes, tuning=tuning).of_protocol(name)
            for name in problem.protocols
        ]
        return Bound(tuple(w for bound in bounds for w in bound.witnesses))
    problem = countable(problem)
    names = tuple(_kinds())
    search = BoundSearch(problem, tuning, [*_witnesses(problem, tuning, BoundCost.QUICK, 0.0, names)])
    if max_flow:
        _look(search, BoundCost.MAX_FLOW)
    if size_bytes:
        search.witnesses += _witnesses(problem, tuning, BoundCost.SIZE, size_bytes, names)
    search.witnesses.sort(key=lambda w: [*_kinds()].index(w.kind))
    return Bound(tuple(_useful(search.witnesses)))


def _kinds() -> dict[str, BoundKind]:
    """Return the registry's kinds of bounds by name, in its order.

    It imports the modules of the searches, which a command that proves nothing does without.
    """
    from synth.bounds.registry import BOUND_KINDS

    return BOUND_KINDS


@lru_cache(maxsize=6)
def _witnesses(
    problem: Problem, tuning: BoundTuning, cost: BoundCost, size_bytes: float, _names: tuple[str, ...]
) -> tuple[Witness, ...]:
    """Return the witnesses that searches of a cheap cost find, with what they prove.

    The last six results are cached by all arguments, for a later call that adds other witnesses.

    Args:
        problem: The problem, as `countable` returns it.
        tuning: Limits of the searches.
        cost: QUICK or SIZE.
        size_bytes: Message size in bytes for SIZE.
        _names: Names of the registered kinds, so that a newly registered kind is searched for.

    Raises:
        TimeUp: The time of the work around is over.
    """
    search = BoundSearch(problem, tuning, size_bytes=size_bytes)
    _look(search, cost)
    return tuple(search.witnesses)


def _look(search: BoundSearch, cost: BoundCost) -> None:
    """Add the witnesses that the searches of one cost find to `search.witnesses`, with what they prove.

    Kinds that say nothing about a quotient problem, or about a network whose links are only some paths, are left out
    for one. A search that fails by a defect adds nothing further where defects are collected (`contained`).

    Raises:
        TimeUp: The time of the work around is over.
    """
    for kind in checking_deadline(_kinds().values()):
        if not kind.witness_class.says_nothing_of(search.problem):
            contained(f"bound {kind.witness_class.kind}", partial(_take, search, kind, cost), None)


def _take(search: BoundSearch, kind: BoundKind, cost: BoundCost) -> None:
    """Add the witnesses that the search of one kind and cost finds to `search.witnesses`, with what they prove.

    Raises:
        TimeUp: The time of the work around is over.
    """
    for claim in checking_deadline(kind.find(search, cost)):
        if claim is not None:
            search.witnesses.append(proved(search.problem, claim))


def _useful(witnesses: list[Witness]) -> list[Witness]:
    """Return the witnesses that no other one beats at every size, steepest first; a lead by rounding does not count.

    Of witnesses that prove the same the first counts; those that prove nothing are left out. Where no witness proves
    anything, the last one is returned, so that the result is empty only for an empty list.
    """
    useful: list[Witness] = []
    for w in sorted(witnesses, key=lambda w: (-float(f"{w.per_byte_us:.11e}"), -float(f"{w.base_us:.11e}"))):
        if w.base_us <= 0 and w.per_byte_us <= 0:
            continue
        if not any(all(a * _ROUND_OFF >= b for a, b in zip(v.claims, w.claims, strict=True)) for v in useful):
            useful.append(w)
    return useful or witnesses[-1:]
