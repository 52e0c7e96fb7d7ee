"""Quotient problems with an executor's costs: each protocol has the network that its costs give, and gaps count."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from synth.app.arguments import QuestionArguments
from synth.app.question import make_question
from synth.bounds.prove import prove
from synth.engines.flow import quotients
from synth.engines.request import Options
from synth.model.problem import Problem, Quotient
from synth.search.search import search
from synth.solvers.workers import Workers
from synth.storage.check import check_stored
from synth.storage.proof import save_proof
from synth.storage.schedule_file import load_schedule, save_schedule
from synth.symmetry.quotient_check import check_quotient
from tests.synth.symmetry.quotients import answer, expands, quotient
from topologies.costed import with_costs
from topologies.costs import ANY
from topologies.errors import InputError, QuotientRefused
from topologies.load import load
from topologies.symmetry.translations import find_translations

MIB = 1 << 20
SPECS = ("ndv2:2", "dgx-a100:2", "mi300x", "star:4,gap_us=0.5,threadblock_gbs=20,start_us=7")


def costed(spec: str, name: str) -> Problem:
    return quotient(with_costs(load(spec)), name)


@pytest.mark.parametrize("name", ["allgather", "alltoall", "allreduce"])
@pytest.mark.parametrize("spec", SPECS)
def test_schedules_expand_under_each_protocol(spec: str, name: str) -> None:
    problem = costed(spec, name)
    assert problem.topology.protocol == ANY
    for protocol in problem.protocols:
        under = problem.under(protocol)
        assert under.quotient is not None
        assert under.quotient.whole.start_us == replace(problem, quotient=None).under(protocol).network.start_us
        check_quotient(under)
        expands(under, answer(under, MIB))
        assert prove(problem).at(MIB)[0] <= prove(under).at(MIB)[0] * (1 + 1e-9)
    again = problem.under(problem.protocols[0]).under(ANY)
    assert np.array_equal(again.network.capacity_gbs, problem.network.capacity_gbs)
    check_quotient(again)


def test_a_gap_that_a_translation_does_not_keep_is_refused() -> None:
    problem = costed("star:4,gap_us=0.5", "allgather").under(costed("star:4,gap_us=0.5", "allgather").protocols[0])
    assert problem.quotient is not None
    gap_us = problem.quotient.whole.gap_us.copy()
    gap_us[0] *= 2
    whole = replace(problem.quotient.whole, gap_us=gap_us)
    assert len(find_translations(whole)) < len(find_translations(problem.quotient.whole))
    with pytest.raises(QuotientRefused, match="gap_us differs"):
        check_quotient(replace(problem, network=replace(problem.network, gap_us=gap_us)))
    with pytest.raises(QuotientRefused, match="gap_us differs"):
        check_quotient(replace(problem, quotient=Quotient(problem.quotient.translations, whole)))


def test_a_protocol_that_the_costs_lack_is_refused() -> None:
    with pytest.raises(InputError, match="do not allow it"):
        costed("dgx-a100:2", "allgather").under("LL256")


def test_a_large_question_is_searched_as_a_quotient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Check that its answer expands, and that its schedule and the proof of its bound can be read again."""
    monkeypatch.setattr(quotients, "SEARCH", replace(quotients.SEARCH, expanded=100))
    question = make_question(QuestionArguments("allgather", "dgx-a100:4", costs="machine", size=MIB))
    assert question.problem.quotient is not None
    with Workers(()) as workers:
        result = search(question.problem, Options(MIB, budget_s=5.0), workers)
    algorithm = result.fastest(MIB).algorithm
    assert algorithm.problem.topology.protocol in question.problem.protocols
    expands(algorithm.problem, algorithm.schedule)
    time_us = algorithm.time_us(MIB)
    assert result.bound.at(MIB)[0] <= time_us * (1 + 1e-9)
    path = tmp_path / "a.synth"
    save_schedule(path, algorithm, MIB)
    stored = load_schedule(path)
    save_proof(path, question.problem, result.bound.witnesses, MIB, stored.claimed_us)
    checked = check_stored(path, stored)
    assert checked.wrong == ""
    assert checked.bound_us == pytest.approx(result.bound.at(MIB)[0])
