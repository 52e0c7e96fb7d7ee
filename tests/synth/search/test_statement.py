"""Rows of answers: the message sizes at which a program is timed."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from synth.app.arguments import QuestionArguments
from synth.app.question import make_question
from synth.app.synthesis import synthesize
from synth.baselines import baseline
from synth.baselines.nccl.model import LibraryChoice
from synth.bounds.prove import prove
from synth.model.problem import LARGEST, SMALLEST, make_problem
from synth.search.offer import Offer
from synth.search.result import SearchResult
from synth.search.statement import compare, row, statement
from synth.verify.algorithm import Algorithm
from tests.synth.search.test_pool import Slower
from topologies.faults.apply import apply_faults
from topologies.load import load
from topologies.topology import Topology

SIZE = 1 << 20


def broken(spec: str, part: str) -> Topology:
    """Return a topology without a part."""
    return apply_faults(load(spec), (part,), ())


@dataclass(frozen=True)
class Noting(Slower):
    """A program that notes the sizes at which it is timed."""

    sizes: set[float] = field(default_factory=set)

    def time_us(self, size_bytes: float) -> float:
        self.sizes.add(size_bytes)
        return super().time_us(size_bytes)


@pytest.mark.parametrize(("spec", "is_long"), [("full:4", False), ("full:72", True)])
def test_only_a_long_program_for_one_size_is_timed_at_that_size_alone(spec: str, is_long: bool) -> None:
    """Check that commands for large clusters do not spend their last seconds on sizes that nobody asked for."""
    problem = make_problem(load(spec), "allgather")
    result = SearchResult(problem, bound=prove(problem, max_flow=False))
    algorithm = baseline(problem)[0]
    for one_size in (False, True):
        program = Noting(algorithm, 1.5)
        served = Offer(algorithm, program, low=SMALLEST, high=LARGEST, shown=SIZE)
        statement = row(result, served.at_size(SIZE) if one_size else served)
        is_timed_once = one_size and is_long
        assert (program.sizes == {SIZE}) == is_timed_once
        assert bool(statement["curve"]) != is_timed_once


@dataclass(frozen=True)
class InMultiples(Slower):
    """A program whose file takes powers of two and multiples of 1,000 bytes."""

    def serves(self, size_bytes: float) -> bool:
        return int(size_bytes) & (int(size_bytes) - 1) == 0 or size_bytes % 1000 == 0

    def unit_bytes(self, _size_bytes: float) -> int:
        return 1000


def served_result() -> tuple[SearchResult, Algorithm]:
    """Return a search result with a bound of more than one witness, and an algorithm of its problem."""
    problem = make_problem(load("torus:3x3"), "allreduce")
    return SearchResult(problem, bound=prove(problem)), baseline(problem)[0]


def test_the_worst_size_is_the_nearest_served_one_of_a_range_end_or_of_a_change_of_witnesses() -> None:
    """Check that ranges whose ends no file serves hide no gap: all multiples of 1,000 bytes are looked at."""
    result, algorithm = served_result()
    for low, high in ((0, 106480), (70001, 131071), (300_001, 523_999), (0, None)):
        offer = Offer(algorithm, InMultiples(algorithm, 1.5), low=low, high=high, shown=106480 if low else 1 << 16)
        served_sizes = range(-(-max(low, SMALLEST) // 1000) * 1000, (high or 2_000_000) + 1, 1000)
        gaps = [offer.time_us(size) / result.bound.at(size)[0] for size in served_sizes]
        assert row(result, offer)["worst"]["gap"] >= max(gaps) * (1 - 1e-9)


def test_between_two_sizes_of_a_curve_the_bound_is_at_least_what_interpolation_says() -> None:
    """Check that who reads the curve only, such as `library pick`, never states a bound that is not proved."""
    result, algorithm = served_result()
    curve = row(result, Offer(algorithm))["curve"]
    for (low, _, low_us), (high, _, high_us) in pairwise(curve):
        middle = (low + high) // 2
        interpolated_us = low_us + (middle - low) / (high - low) * (high_us - low_us)
        assert interpolated_us <= result.bound.at(middle)[0] * (1 + 1e-9)


def test_a_slowdown_is_within_what_the_bounds_of_both_networks_allow() -> None:
    """Check that a poor search of the healthy network hides no loss: the greatest ratio counts its bound."""
    hurt, healthy = (make_problem(spec, "allreduce") for spec in (broken("torus:3x3", "link:0-1"), load("torus:3x3")))
    size, slow, fast = 1 << 24, 2.0, 1.0
    for hurt_factor, healthy_factor in ((fast, slow), (slow, fast), (fast, fast)):
        result = SearchResult(hurt, bound=prove(hurt))
        offers = [Offer(a, Slower(a, factor), shown=size) for a, factor in
                  ((baseline(hurt)[0], hurt_factor), (baseline(healthy)[0], healthy_factor))]  # fmt: skip
        result.healthy = SearchResult(healthy, [offers[1]], bound=prove(healthy))
        time_us, healthy_us = (offer.time_us(size) for offer in offers)
        stated = compare(result, time_us, size)
        low, high = stated["vs_healthy_range"]
        assert stated["vs_healthy"] == max(1.0, time_us / healthy_us)
        assert low == max(1.0, result.bound.at(size)[0] / min(time_us, healthy_us))
        assert high == time_us / prove(healthy).at(size)[0]
        assert 1.0 <= low <= stated["vs_healthy"] <= high


@pytest.mark.parametrize(("group", "ranks"), [(None, (0, 1, 2, 3)), ((0, 1, 3), (0, 1, 3))])
def test_a_lost_rank_is_compared_with_all_ranks_unless_a_group_is_named(
    group: tuple[int, ...] | None, ranks: tuple[int, ...]
) -> None:
    question = make_question(QuestionArguments("allgather", "full:4", group, without=("rank:2",)))
    assert question.problem.group == (0, 1, 3)
    assert question.healthy is not None
    assert question.healthy.group == ranks


def test_ranges_of_comparisons_hold_each_size_of_the_row() -> None:
    result = synthesize("allreduce", "dgx-a100", [0, 2], engine="route", budget=2).result
    compared = 0
    for own in statement(result)["algorithms"]:
        for name, choice in own["libraries"].items():
            if "vs_range" not in choice:
                continue
            least, most = choice["vs_range"]
            last = own["max_bytes"] or 1 << 62
            for size, time_us, _ in own["curve"]:
                if own["min_bytes"] <= size <= last:
                    library = result.library(name, size)
                    assert isinstance(library, LibraryChoice)
                    assert least <= library.time_us / time_us * (1 + 1e-9)
                    assert library.time_us / time_us <= most * (1 + 1e-9)
                    compared += 1
    assert compared
