"""A kind of bound is one file and one row: a registered kind is used by `prove` and checked like any other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from synth.bounds.check import WITNESSES, check, proved
from synth.bounds.lengths import from_loads
from synth.bounds.prove import Bound, TighteningEffort, prove, tighten
from synth.bounds.registry import BOUND_KINDS, register
from synth.bounds.search import BoundCost, BoundSearch
from synth.bounds.witness import Limit, Witness
from synth.bounds.witnesses.ends import Departures
from synth.bounds.witnesses.lengths import Lengths
from synth.model.problem import Problem, make_problem
from synth.solvers.workers import Workers
from tests.synth.bounds.cases import scan
from topologies.costed import with_costs
from topologies.errors import BadWitness
from topologies.load import load


@dataclass(frozen=True, kw_only=True)
class Lonely(Witness):
    kind: ClassVar[str] = "lonely"
    rank: int

    def limit(self, problem: Problem) -> Limit:
        """Return a limit that is visibly too high: a second per byte for each link out of the rank."""
        if self.rank >= problem.nranks:
            raise self.refusal(f"there is no rank {self.rank}; it must be one of 0..{problem.nranks - 1}")
        return 0.0, 1e6 * int((problem.network.src == self.rank).sum()), np.inf


class LonelyKind:
    witness_class = Lonely

    def find(self, search: BoundSearch, cost: BoundCost, /) -> Iterator[Lonely]:
        """Find, for a gather, the rank with the least outgoing bandwidth."""
        if cost != BoundCost.QUICK or search.problem.collective.name != "gather":
            return
        net = search.problem.network
        out = np.bincount(net.src, weights=net.bandwidth_gbs, minlength=net.nranks)
        yield Lonely(rank=int(out.argmin()), text=f"rank {int(out.argmin())}")


@pytest.fixture
def toy() -> Iterator[None]:
    before = dict(BOUND_KINDS)
    register(LonelyKind())
    yield
    BOUND_KINDS.clear()
    BOUND_KINDS.update(before)


@pytest.mark.usefixtures("toy")
def test_a_registered_kind_is_used_and_a_tampered_witness_refused() -> None:
    problem = make_problem(load("line:3"), "gather")
    limit, decisive = prove(problem).at(1.0)
    assert limit == 1e6
    assert isinstance(decisive, Lonely)
    assert decisive.rank == 0
    check(problem, decisive)
    for wrong in (
        replace(decisive, per_byte_us=1.1e6),
        replace(decisive, base_us=0.1),
        replace(decisive, rank=3),
    ):
        with pytest.raises(BadWitness, match="lonely"):
            check(problem, wrong)
    other_problem = make_problem(load("line:3"), "allgather")
    assert all(w.kind != "lonely" for w in prove(other_problem).witnesses)


def test_searches_claim_no_numbers_and_every_kind_has_a_search() -> None:
    problem = make_problem(with_costs(load("full:4,gap_us=1")), "allreduce").under("Simple")
    search = BoundSearch(problem)
    for name, kind in BOUND_KINDS.items():
        claims = [claim for claim in kind.find(search, BoundCost.QUICK) if claim is not None]
        assert claims or name in (
            "knowledge",
            "entering",
            "leaving",
            "from-afar",
            "to-afar",
            "two-steps",
            "contributions",
            "window",
        )  # They are searched for one message size.
        for claim in claims:
            assert type(claim) is kind.witness_class is WITNESSES[name]
            assert (claim.base_us, claim.per_byte_us, claim.cap_us) == (0.0, 0.0, np.inf)
            check(problem, proved(problem, claim))


def test_tightening_goes_from_cheap_to_expensive_and_stops_when_tight(workers: Workers) -> None:
    problem = make_problem(load("mesh:3x3"), "alltoall")
    loads = np.ones(problem.network.nresources)
    steps: list[str] = []

    def tightened(enough_us: float, deadline: float = np.inf, **effort: float) -> list[Bound]:
        steps.clear()
        return list(
            tighten(
                problem, prove(problem, max_flow=False), lambda: loads, 1e6, enough_us, workers, deadline,
                steps.append, TighteningEffort(**effort),  # type: ignore[arg-type]
            )
        )  # fmt: skip

    assert tightened(0.0) == []
    all_work = ["bound: cuts by max-flow", "bound: dual prices by mirror ascent", "bound: linear program"]
    bounds = tightened(np.inf)
    assert steps == all_work
    values = [bound.at(1e6)[0] for bound in bounds]
    assert values == sorted(values)
    assert {*bounds[0].witnesses} <= {*bounds[-1].witnesses}
    tightened(np.inf, max_flow=False)
    assert steps == all_work[1:]
    tightened(np.inf, deadline=0.0)
    assert steps == all_work[:2]
    tightened(np.inf, deadline=0.0, quick_ranks=1)
    assert steps == all_work[:1]
    tightened(np.inf, deadline=0.0, least_linear_s=5.0)
    assert steps == all_work


def test_no_witness_counts_data_twice_that_sums_share(tmp_path: Path) -> None:
    """Check a scan on a line, whose sums share their data: it takes as long as the message holds one link."""
    problem = scan(tmp_path)
    first = np.array([name == "0→1" for name in problem.network.resource_names])
    for witness in (
        from_loads(problem, first.astype(np.float64)),
        proved(problem, Lengths(prices=((int(first.argmax()), 1.0),))),
        proved(problem, Departures(ranks=(0,), resources=(int(first.argmax()),))),
    ):
        check(problem, witness)
        assert 0 < witness.per_byte_us <= 1e-3 * (1 + 1e-9)
