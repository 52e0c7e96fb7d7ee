"""The census: its questions can be asked, and a sample of a DGX-1's groups is fair."""

from __future__ import annotations

from results.scripts.census import (
    COLLECTIVES,
    SIZES,
    Question,
    answered,
    dgx1_questions,
    groups_up_to_symmetry,
    question,
    summary,
)
from synth.solvers.workers import Workers


def test_an_answer_says_its_gap_and_what_found_and_proved_it() -> None:
    with Workers(()) as workers:
        answer = answered(Question(0, 0, "line:3", (0, 1, 2), "none", "broadcast", 1024), 5.0, workers)
    assert 1 <= answer.gap < 1.001
    assert answer.proof in ("path", "cut")
    assert answer.engine
    assert summary("all", [answer])[-1] == "100%"


def test_every_fourth_group_is_of_all_collectives_and_sizes() -> None:
    every = dgx1_questions()
    assert sorted(q.number for q in every) == list(range(len(every)))
    some = every[::4]
    for values, of in ((COLLECTIVES, [q.collective for q in some]), (SIZES, [q.size for q in some])):
        assert min(map(of.count, values)) > len(some) / len(values) / 2


def test_the_same_seed_draws_the_same() -> None:
    assert question(1, 7) == question(1, 7)
    assert question(1, 0).topology.nranks == question(1, 0).topology.nranks


def test_groups_of_a_kind_are_counted_once() -> None:
    assert [group for group in groups_up_to_symmetry("ring:4") if len(group) == 2] == [(0, 1), (0, 2)]
    assert len(groups_up_to_symmetry("dgx1")) == 73  # (247 groups + those that a symmetry maps to themselves) / 4
