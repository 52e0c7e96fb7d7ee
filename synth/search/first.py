"""The first programs for a question: of algorithms that others run, made in a fraction of a second before the search.

They do not take part in the search, so that its answer is the same without them unless its time is too short.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from synth.baselines import baseline_named
from synth.bounds.prove import prove
from synth.engines.estimates import estimated_sends
from synth.engines.registry import AUTO
from synth.model.deadline import now
from synth.model.problem import Problem
from synth.search.executor import Executor
from synth.search.offer import Offer
from synth.search.pool import offer_of
from synth.search.question import Question
from synth.search.result import SearchResult
from topologies.errors import InputError, TooManySends

_LEAST_BUDGET_S = 2.0  # The shortest budget for which there are first programs: a shorter search needs its time.
_USUAL_BYTES = 64 << 10  # The message size at which the first program is the fastest, if the question names none.
_RING_RANKS = 8  # The most ranks among which rings are sought, which takes long among many.
_MOST_RANKS = 32  # The most ranks: among 72, sends to all others are made and lowered for seconds.
_MOST_S = 0.2  # The longest estimated time to lower one first program and to write its file, in seconds.
_SHARE = 0.1  # The same as a share of the budget, where that is less.


def first_result(question: Question, executor: Executor | None) -> SearchResult:
    """Return programs of algorithms that others run, with a first bound, as the result of a search that is to come.

    There are no ranges if the answer must have a pinned shape or comes from a named engine, if the budget is short,
    ranks are many or programs take long, or if the executor can hold none of the algorithms.

    Args:
        question: The question.
        executor: The target's lowering, which no search may use as well; None for no programs.
    """
    problem, options = question.problem, question.options
    result = SearchResult(problem)
    if executor is None or options.pinned or options.engine != AUTO or options.budget_s < _LEAST_BUDGET_S:
        return result
    most_s = min(_MOST_S, _SHARE * options.budget_s)
    most_sends = int(most_s / (executor.writing * executor.send_s))
    if problem.nranks > _MOST_RANKS or estimated_sends(problem) > most_sends:
        return result
    size = options.size or _USUAL_BYTES
    offers = [
        offer
        for offer in _offers(problem, executor, size)
        if executor.sends(offer.algorithm) <= most_sends and not executor.refusal(offer.algorithm)
    ]
    if offers:
        fastest = min(offers, key=lambda offer: offer.rank_at(size))
        served = replace(fastest, shown=size) if options.size is None else fastest.at_size(size)
        with suppress(InputError):
            execution = executor.lower(fastest.algorithm, now(), (size,))
            result.ranges = executor.files([replace(served, execution=execution)])
            result.bound = prove(problem, max_flow=False, size_bytes=options.size)
    return result


def add_first(result: SearchResult, first: SearchResult, size_bytes: int | None) -> None:
    """Replace what a search found by a first program if no program of the search is as fast, for want of time.

    Its own schedules without a program move to `refused`. Searches for all sizes keep what they have, unless it has no
    program at all.

    Args:
        result: The result of the search, which changes.
        first: What `first_result` returned for the same question.
        size_bytes: The only message size in bytes that counts; None for all sizes.
    """
    programs = [offer for offer in result.ranges if offer.execution is not None]
    if not first.ranges or (programs and size_bytes is None):
        return
    offers = [*programs, *first.ranges]
    if size_bytes is not None and min(offers, key=lambda offer: offer.rank_at(size_bytes)) in programs:
        return
    result.unused += programs
    result.refused += [offer for offer in result.ranges if offer.execution is None]
    result.ranges = first.ranges


def _offers(problem: Problem, executor: Executor, size_bytes: int) -> Iterator[Offer]:
    """Yield offers of algorithms that are made fast for a message size, under each protocol that the executor has."""
    protocols = executor.able(problem.protocols) if problem.protocols else ()
    for under in [problem.under(name) for name in protocols] or [problem]:
        least_bytes = executor.least_bytes(under) if protocols else 0
        for name in ("direct in turns", "ring") if problem.nranks <= _RING_RANKS else ("direct in turns",):
            with suppress(TooManySends):
                for algorithm in baseline_named(under, name, size_bytes):
                    yield offer_of(algorithm, least_bytes)
