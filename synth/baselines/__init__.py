"""Algorithms that others run, in the same model of time, and closed forms of papers, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

from synth.baselines.algorithms.direct import direct_baselines
from synth.baselines.algorithms.patterns import PATTERNS, pattern_baselines
from synth.baselines.algorithms.ring import RINGED, ring_baselines
from synth.baselines.algorithms.tree import tree_baselines
from synth.baselines.algorithms.two_level import two_level_baselines
from synth.baselines.fifo import Unordered, is_new
from synth.baselines.tuning import TUNING
from synth.model.problem import Problem
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError, NoRoute, TooManySends, did_you_mean


def baseline(problem: Problem) -> list[Algorithm]:
    """Return the algorithms that a vendor library would choose from; empty where it has none (see `each_baseline`).

    Raises:
        InputError: The problem has more than one chunk a block, or is a quotient.
    """
    return list(each_baseline(problem))


def each_baseline(problem: Problem) -> Iterator[Algorithm]:
    """Yield the algorithms that a vendor library would choose from; none where it has none for this group.

    For allreduce, allgather, reducescatter, broadcast and reduce rings come first (as many as the links can carry), for
    other copying collectives direct. Further distinct ones of `BASELINES` follow if they suit the problem and have few
    enough sends; with two ranks there are none. An algorithm with too many sends, or a message without a route, is left
    out without an error.

    Raises:
        InputError: The problem has more than one chunk a block, or is a quotient.
    """
    _check(problem)
    collective = problem.collective
    if collective.name in RINGED:
        most = dict.fromkeys(("ring", "recursive doubling", "two-level"), TUNING.likely_sends)
        most |= {"direct": TUNING.further_sends, "direct in turns": TUNING.further_sends}
    elif collective.reducing:  # Sums of more than one goal have no direct algorithm.
        most = {"direct": TUNING.most_sends, "direct in turns": TUNING.likely_sends}
    else:
        most = {"direct": TUNING.most_sends, "direct in turns": TUNING.likely_sends, "two-level": TUNING.likely_sends}
    algorithms: list[Algorithm] = []
    for name, sends in most.items() if collective.nranks > 2 else list(most.items())[:1]:
        with suppress(TooManySends):
            for algorithm in _build(problem, name, sends):
                if is_new(algorithm.schedule, algorithms):
                    algorithms.append(algorithm)
                    yield algorithm


def of_few_sends(problem: Problem) -> list[Algorithm]:
    """Return an all-reduce over double binary trees in one piece, as a list of one; empty for other problems.

    It has few sends, so a program of it is made fast. Other collectives have such algorithms among those of `baseline`,
    or no algorithm has few sends. The list is also empty for quotients, with more than one chunk a block, where a
    member has no route, and where the memory would not hold the sends.
    """
    if problem.quotient is not None or problem.collective.chunks != 1:
        return []
    try:
        return [
            algorithm for plan in tree_baselines(problem, numbers_of_pieces=(1,)) for algorithm in plan.algorithms(None)
        ][:1]
    except (NoRoute, TooManySends):
        return []


def baseline_named(problem: Problem, name: str, size_bytes: float | None = None) -> list[Algorithm]:
    """Return the algorithms of one name of `BASELINES`; empty where there is none or a message has no route.

    Args:
        problem: A problem with one chunk a block.
        name: A name of `BASELINES`.
        size_bytes: Message size for whose queues the sends are ordered; None: two sizes, and by step where that is
            known.

    Raises:
        InputError: The name is unknown, or the problem has more than one chunk a block or is a quotient.
        TooManySends: The memory would not hold the sends.
    """
    _check(problem)
    if name not in BASELINES:
        hint = did_you_mean(name, list(BASELINES), "; ")
        raise InputError(f"baseline: {name[:40]!r} is not known{hint} It is one of: {', '.join(BASELINES)}")
    return _build(problem, name, TUNING.most_sends, size_bytes)


def _check(problem: Problem) -> None:
    """Raise InputError unless the problem has one chunk a block and is no quotient; other things are not checked."""
    if problem.collective.chunks != 1:
        raise InputError(
            f"baseline: the problem has {problem.collective.chunks} chunks a block; state it with 1, since"
            " baselines cut blocks themselves"
        )
    if problem.quotient is not None:
        raise InputError("baseline: the problem is a quotient; pass the whole problem")


BASELINES: dict[str, Callable[[Problem, int], list[Unordered]]] = {
    "direct": direct_baselines,
    "direct in turns": partial(direct_baselines, turns=True),
    "ring": ring_baselines,
    "recursive doubling": partial(pattern_baselines, "recursive doubling"),
    "two-level": two_level_baselines,
    "tree": tree_baselines,
    **{name: partial(pattern_baselines, name) for name in PATTERNS},
}
LIBRARY = ("direct", "direct in turns", "ring", "recursive doubling", "two-level", "tree")
"""Names of the algorithms that libraries run today."""
CLOSED_FORMS = tuple(name for name in PATTERNS if name not in LIBRARY)
"""Names of the algorithms that the engine of closed forms builds, the likeliest first."""


def _build(problem: Problem, name: str, most: int, size_bytes: float | None = None) -> list[Algorithm]:
    """Return the algorithms of one name with at most `most` sends; empty where a message has no route.

    Args:
        problem: A problem with one chunk a block.
        name: A name of `BASELINES`.
        most: Most sends of an algorithm, as the builder of the name counts them.
        size_bytes: Message size for whose queues the sends are ordered; None: two sizes, and by step where that is
            known.

    Raises:
        TooManySends: An algorithm has more than `most` sends.
    """
    try:
        return [algorithm for plan in BASELINES[name](problem, most) for algorithm in plan.algorithms(size_bytes)]
    except NoRoute:
        return []
