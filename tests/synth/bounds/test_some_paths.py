"""Bounds of large networks, whose links are only some of the paths through switches, hold for all paths."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from synth.bounds.borders import borders_of
from synth.bounds.check import WITNESSES, check, recompute
from synth.bounds.prove import prove
from synth.bounds.witness import Witness
from synth.bounds.witnesses.cut import Cut
from synth.bounds.witnesses.parts import Parts
from synth.concurrent.isolated import problem_digest
from synth.engines.request import Options
from synth.model.problem import Problem, make_problem
from synth.search.plans import library_plan
from synth.search.search import search
from synth.solvers.workers import Workers
from synth.symmetry.quotient import quotient_problem
from synth.symmetry.quotient_check import check_quotient
from synth.symmetry.relabelling import IsomorphicGroups
from tests.random_problems import TRANSLATABLE
from tests.synth.bounds.cases import ROUND_OFF
from tests.topologies.few_paths import bypassed, fabrics, few_paths, numbers_in
from topologies.errors import BadWitness, QuotientRefused
from topologies.topology import Topology

FABRICS = fabrics()
NAMES = (*TRANSLATABLE, "broadcast", "gather")


def both_problems(topology: Topology, name: str) -> tuple[Problem, Problem]:
    """Return a problem on the network with a link for each path, and on that with a link for some."""
    whole = make_problem(replace(topology), name)
    with few_paths():
        return whole, make_problem(replace(topology), name)


def in_network(witness: Witness, whole: Problem, part: Problem) -> Witness:
    """Return the witness about a problem with few links as one about the problem with all links."""
    return witness.renumbered(numbers_in(whole.network, part.network))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fabric", FABRICS)
def test_what_is_proved_with_few_links_is_proved_with_all(fabric: str, name: str) -> None:
    whole, part = both_problems(FABRICS[fabric], name)
    assert part.network.switch_graph is not None
    bound = prove(part, size_bytes=1 << 20)
    assert bound.per_byte_us > 0 or fabric == "bypassed"  # The links say nothing of the wide paths there.
    for witness in bound.witnesses:
        assert witness.counts_all_paths
        check(part, witness)
        check(whole, in_network(witness, whole, part))


@pytest.mark.parametrize("name", TRANSLATABLE)
@pytest.mark.parametrize("fabric", ["planes", "rails", "racks"])
def test_what_is_proved_of_a_quotient_is_proved_of_the_whole(fabric: str, name: str) -> None:
    whole, _ = both_problems(FABRICS[fabric], name)
    with few_paths():
        problem = quotient_problem(replace(FABRICS[fabric]), name)
        assert problem is not None
        check_quotient(problem)
    assert problem.quotient is not None
    assert problem.quotient.whole.switch_graph is not None
    bound = prove(problem)
    assert bound.per_byte_us >= prove(whole).per_byte_us / 2
    number = numbers_in(whole.network, problem.quotient.whole)
    for witness in bound.witnesses:
        check(whole, witness.renumbered(number))


@pytest.mark.parametrize("name", ["allreduce", "alltoall"])
def test_a_search_claims_only_what_its_check_proves(name: str) -> None:
    """Check a network with a large gap, where the search looks for more than the quick bounds."""
    with few_paths(), Workers(()) as workers:
        problem = quotient_problem(bypassed(), name)
        assert problem is not None
        plan = library_plan(1 << 20, 1 << 20, 0.2, problem.nranks)
        bound = search(problem, Options(1 << 20, budget_s=20.0), workers, None, plan).bound
        for witness in bound.witnesses:
            check(problem, witness)


def test_a_path_beside_the_links_is_counted() -> None:
    """Check two nodes: a cut through the links claims 11 times of what all paths allow, and proves nothing."""
    whole, part = both_problems(bypassed(), "alltoall")
    names = part.network.resource_names
    narrow = tuple(names.index(name) for name in ("0→r", "1→s"))
    claims: tuple[Cut | Parts, ...] = (
        Cut(ranks=(0, 1), resources=narrow),
        Cut(ranks=(0, 1), resources=tuple(range(len(names)))),
    )
    _, per_byte, _ = recompute(part, claims[0])
    assert per_byte == 0
    with pytest.raises(BadWitness, match="claims"):
        check(part, replace(claims[0], per_byte_us=1e-9))
    with pytest.raises(BadWitness, match="uses none of its resources"):
        check(whole, in_network(claims[0], whole, part))
    both = tuple(names.index(name) for name in ("0→r", "1→s", "2→r", "3→s"))
    _, summed = both_problems(bypassed(), "allreduce")
    assert recompute(summed, Parts(parts=((0, 1), (2, 3)), resources=both))[1] == 0
    assert prove(part).per_byte_us <= prove(whole).per_byte_us * ROUND_OFF


def test_kinds_that_count_links_only_are_refused() -> None:
    _, part = both_problems(FABRICS["rails"], "allreduce")
    for kind in WITNESSES.values():
        if not kind.counts_all_paths:
            with pytest.raises(BadWitness, match="links are only some of the paths through its switches; use one of"):
                check(part, kind())
    counting_all = {name for name, kind in WITNESSES.items() if kind.counts_all_paths}
    assert counting_all == {"path", "cut", "parts", "from-afar", "to-afar"}


def test_a_quotient_says_whether_it_has_all_paths() -> None:
    with few_paths():
        problem = quotient_problem(replace(FABRICS["rails"]), "allgather")
        assert problem is not None
        assert problem.quotient is not None
        forged = replace(problem.quotient, whole=replace(problem.quotient.whole, switch_graph=None))
        with pytest.raises(QuotientRefused, match="all paths through switches"):
            check_quotient(replace(problem, quotient=forged))


@pytest.mark.parametrize("name", TRANSLATABLE)
@pytest.mark.parametrize("fabric", [fabric for fabric in FABRICS if not FABRICS[fabric].limits])  # One breaks symmetry.
def test_cuts_of_a_quotient_prove_what_they_prove_of_the_whole(fabric: str, name: str) -> None:
    """Check cuts around random ranks, of which every resource out of them is a cover."""
    problem = quotient_problem(FABRICS[fabric], name)
    assert problem is not None
    assert problem.quotient is not None
    whole, net, rng = make_problem(FABRICS[fabric], name), problem.quotient.whole, np.random.default_rng(0)
    for _ in range(8):
        inside = rng.random(net.nranks) < 0.5
        crossing = inside[net.src] & ~inside[net.dst]
        if crossing.any():
            resources = np.unique(net.uses_idx[np.repeat(crossing, np.diff(net.uses_ptr))])
            cut = Cut(ranks=tuple(np.flatnonzero(inside).tolist()), resources=tuple(resources.tolist()))
            assert recompute(problem, cut)[1] == pytest.approx(recompute(whole, cut)[1])


@pytest.mark.parametrize("fabric", ["bypassed", "planes", "costs"])
def test_borders_count_all_paths(fabric: str) -> None:
    k = FABRICS[fabric].nranks
    sizes = np.random.default_rng(0).integers(1, 1000, (k, k)) * (1.0 - np.eye(k))
    whole = make_problem(replace(FABRICS[fabric]), "alltoallv", sizes=sizes)
    with few_paths():
        part = make_problem(replace(FABRICS[fabric]), "alltoallv", sizes=sizes)
        assert part.network.switch_graph is not None
        assert borders_of(part).bound_us(sizes[None]) == pytest.approx(borders_of(whole).bound_us(sizes[None]))


def test_problems_with_other_paths_have_other_digests() -> None:
    """Check two groups with the same links, of which one has wide paths beside them."""
    wide = bypassed()
    with few_paths():
        first = make_problem(wide, "alltoall")
        cut_off = replace(
            wide,
            link_src=wide.link_src[keep := (wide.link_dst < 8) & (wide.link_src < 8)],
            link_dst=wide.link_dst[keep],
            alpha_us=wide.alpha_us[keep],
            bandwidth_gbs=wide.bandwidth_gbs[keep],
            link_kind=wide.link_kind[keep],
        )
        second = make_problem(cut_off, "alltoall")
    digests = {problem_digest(problem, 1e6) for problem in (first, second)}
    assert np.array_equal(first.network.src, second.network.src)
    assert len(digests) == 2


def test_groups_of_such_networks_are_not_brought_onto_each_other() -> None:
    topology = FABRICS["rails"]
    whole = make_problem(topology, "allgather", [0, 2], range(8, 16))
    assert IsomorphicGroups(topology).find_translation(whole, whole) is not None
    with few_paths():
        part = make_problem(replace(topology), "allgather", [0, 2], range(8, 16))
        assert part.network.switch_graph is not None
        assert IsomorphicGroups(part.topology).find_translation(part, part) is None
