"""The engine `one-shot`: an all-reduce as a sum of its own for every rank, for short messages on any network.

Sums that meet at one place and are spread from there need the way there and back. Where every rank adds up its own, no
contribution goes further than the longest shortest path, and partial sums are added on the way (where all ranks are
linked that is the one-shot all-reduce of TensorRT-LLM and MSCCL++). It sends more: a tree for every rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from synth.engines.lns import search as lns
from synth.engines.request import Candidate, Options, Outcome, Request
from synth.model.collective import one_shot
from synth.model.problem import Problem

NAME = "one-shot"


def accepts(problem: Problem, options: Options) -> str:
    """All-reduce of one group that `lns` accepts too; no shape."""
    if not problem.collective.kind.in_shares:
        return f"{NAME} is for allreduce"
    return lns.accepts(problem, options).replace(lns.NAME, NAME)


def solve(problem: Problem, request: Request) -> Iterator[Outcome]:
    """Trees for all sums by `lns`, for sizes at which so many sends may be worth it."""
    sends = problem.collective.nranks * (problem.collective.nranks - 1)
    bytes_a_us = float(problem.network.bandwidth_gbs.sum()) * 1e3
    sizes = tuple(size for size in request.sizes if sends * size / bytes_a_us < request.known.best_us(size))
    if sizes:
        apart = replace(problem, collective=one_shot(problem.collective))
        for found in lns.solve(apart, replace(request, sizes=sizes)):
            yield replace(found, engine=NAME) if isinstance(found, Candidate) else found
