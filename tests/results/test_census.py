"""Tests of the census: its questions can be answered, and a sample of a DGX-1's groups is fair."""

from __future__ import annotations

from itertools import pairwise

from results.scripts.census import (
    COLLECTIVES,
    SIZES,
    STRIDES,
    Question,
    answered,
    cluster_question,
    dgx1_questions,
    groups_up_to_symmetry,
    question,
    summary,
)


def test_an_answer_states_gap_engine_and_file() -> None:
    answer = answered(Question(0, 0, "line:2", (0, 1), "none", "broadcast", 1024), 5.0, "none")
    assert 1 <= answer.gap < 1.001
    assert answer.engine
    assert answer.vs_nccl is None
    assert answer.why_no_file == ""
    assert summary("all", [answer])[-1] == "100%"


def test_cluster_questions_take_every_so_many_ranks() -> None:
    for drawn in (cluster_question(1, number) for number in range(12)):
        assert drawn == cluster_question(1, drawn.number)
        strides = {second - first for first, second in pairwise(drawn.group)}
        assert len(strides) == 1
        assert strides <= set(STRIDES)
        assert drawn.group[-1] < drawn.topology.nranks


def test_a_quarter_of_the_groups_covers_collectives_and_sizes() -> None:
    all_questions = dgx1_questions()
    assert sorted(q.number for q in all_questions) == list(range(len(all_questions)))
    sample = all_questions[::4]
    for values, drawn in ((COLLECTIVES, [q.collective for q in sample]), (SIZES, [q.size for q in sample])):
        assert min(map(drawn.count, values)) > len(sample) / len(values) / 2


def test_a_seed_reproduces_its_questions() -> None:
    assert question(1, 7) == question(1, 7)
    assert question(1, 0).topology.nranks == question(1, 0).topology.nranks


def test_equivalent_groups_are_counted_once() -> None:
    assert [group for group in groups_up_to_symmetry("ring:4") if len(group) == 2] == [(0, 1), (0, 2)]
    assert len(groups_up_to_symmetry("dgx1")) == 73  # (247 groups + fixed points of the symmetries) / 4
