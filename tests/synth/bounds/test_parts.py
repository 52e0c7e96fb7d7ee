"""Parts between which an allreduce must send much: of concurrent groups, and the steepest of all divisions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from synth.bounds.check import check, proved, recompute
from synth.bounds.parts import find_parts_with_steps
from synth.bounds.prove import prove
from synth.bounds.resource_cover import cover
from synth.bounds.search import BoundSearch
from synth.bounds.witnesses.parts import Parts
from synth.concurrent.plans import direct
from synth.concurrent.union import Member, union_problem
from synth.model.collective import named
from synth.model.problem import Problem, make_problem
from synth.symmetry.quotient import quotient_problem
from synth.timing.simulate import time_us, timed
from topologies.costed import with_costs
from topologies.errors import BadWitness
from topologies.load import load
from topologies.topology import without_switch_ops


def test_parts_of_concurrent_groups_add_up() -> None:
    """Check that groups that share a NIC need all their sends there, and that groups within a part need none."""
    topology = load("dgx2:3")
    across = [Member((place, 16 + place, 32 + place), named("allreduce", 3, 1), 1e6) for place in (0, 1)]
    inside = Member((16, 17), named("allreduce", 2, 1), 1e6)

    def steepest(members: list[Member]) -> float:
        return max(w.per_byte_us for w in prove(union_problem(topology, members)).witnesses if w.kind == "parts")

    assert steepest(across) == pytest.approx(2 * steepest(across[:1]))
    assert steepest([*across, inside]) == pytest.approx(steepest(across))
    problem = union_problem(topology, across)
    plan = direct(problem, lambda own: problem.restated(own, "none", ()))
    assert plan is not None
    assert time_us(plan[0], timed(*plan, 1e6)) >= steepest(across) * 1e6
    lone = union_problem(topology, [inside, replace(inside, ranks=(4, 5))])
    with pytest.raises(BadWitness, match="no chunk is in two parts"):
        check(lone, Parts(parts=((0, 1), (2, 3)), resources=tuple(range(lone.network.nresources))))


def divisions(ranks: int, parts: tuple[tuple[int, ...], ...] = ()) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield all divisions of a number of ranks into parts."""
    if ranks == 0:
        yield parts
        return
    last = ranks - 1
    yield from divisions(last, (*parts, (last,)))
    for i, part in enumerate(parts):
        yield from divisions(last, (*parts[:i], (*part, last), *parts[i + 1 :]))


def slope(problem: Problem, parts: tuple[tuple[int, ...], ...]) -> float:
    """Return the µs per byte that parts prove by the checker's own count, or 0 where it refuses them."""
    net = problem.network
    side = np.empty(net.nranks, dtype=np.int64)
    for i, part in enumerate(parts):
        side[list(part)] = i
    resources = cover(net, np.flatnonzero(side[net.src] != side[net.dst]))
    claim = Parts(parts=parts, resources=tuple(resources.tolist()), text="drawn")
    try:
        return recompute(problem, claim)[1]
    except BadWitness:
        return 0.0


@pytest.mark.parametrize(
    ("spec", "group"), [("hypercube:3", (0, 1, 3, 4)), ("ring:7", (0, 1, 2, 4, 6)), ("mesh:2x3", (0, 1, 2, 3, 4, 5))]
)
def test_the_steepest_of_all_divisions_is_found(spec: str, group: tuple[int, ...]) -> None:
    topology = load(spec)
    relays = [rank for rank in range(topology.nranks) if rank not in group]
    problem = make_problem(topology, "allreduce", group, relays)
    steepest = max(w.per_byte_us for w in prove(problem).witnesses if w.kind == "parts")
    every = [slope(problem, parts) for parts in divisions(topology.nranks)]
    assert steepest == pytest.approx(max(every))


@pytest.mark.parametrize("spec", ["dgx-a100:4", "dgx-h100:8"])
def test_parts_of_a_quotient_prove_as_much_as_those_of_the_whole(spec: str) -> None:
    """Check nodes as parts, in a network that has a quotient by translations."""
    topology = without_switch_ops(load(spec))
    quotient = quotient_problem(topology, "allreduce")
    assert quotient is not None
    assert quotient.quotient is not None
    nodes = len(np.unique(topology.nodes))
    folded, whole = (
        next(w for w in prove(problem).witnesses if isinstance(w, Parts) and len(w.parts) == nodes)
        for problem in (quotient, make_problem(topology, "allreduce"))
    )
    assert folded.per_byte_us == pytest.approx(whole.per_byte_us)
    check(quotient, folded)
    with pytest.raises(BadWitness, match="ranks out"):
        recompute(quotient, replace(folded, parts=folded.parts[1:]))


def test_sends_between_nodes_take_the_latency_between_nodes() -> None:
    topology = with_costs(load("dgx-h100:2"))
    assert topology.costs is not None
    simple = topology.costs.protocols["Simple"]
    problem = make_problem(topology, "allreduce").under("Simple")
    ports = [i for i, name in enumerate(problem.network.resource_names) if "→rail" in name]
    nodes = Parts(parts=(tuple(range(8)), tuple(range(8, 16))), resources=tuple(ports))
    assert proved(problem, nodes).base_us == pytest.approx(simple.start_us + simple.latency_us["network"])


@pytest.mark.parametrize("size", [1 << 10, 1 << 20, 1 << 28])
def test_early_and_late_sends_serve_one_rank_of_a_part(size: int) -> None:
    """Check the time of two nodes by hand, for many bytes and for so few that all sends are early or late."""
    topology = with_costs(load("dgx-h100:2"))
    assert topology.costs is not None
    simple = topology.costs.protocols["Simple"]
    problem = make_problem(topology, "allreduce").under("Simple")
    witness = proved(problem, next(find_parts_with_steps(BoundSearch(problem, size_bytes=size))))
    assert len(witness.parts) == 2
    network_gbs = 2 * 8 * 50 * simple.efficiency["network"]  # eight NICs of 50 GB/s a node
    busy_us = 2 * size / network_gbs / 1e3
    inside_us = 2 * simple.latency_us["nvlink"] * 7 / 8
    expected_us = simple.start_us + simple.latency_us["network"] + min(8 * busy_us, busy_us + inside_us)
    assert witness.at(size) == pytest.approx(expected_us)
    assert (8 * busy_us < busy_us + inside_us) == (size == 1 << 10)
    check(problem, witness)
    for wrong, message in (
        (replace(witness, cap_us=witness.cap_us * 1.01), "claims"),
        (replace(witness, at_bytes=2.0 * size), "claims"),
        (replace(witness, at_bytes=-1.0), "the size is -1 bytes"),
    ):
        with pytest.raises(BadWitness, match=message):
            check(problem, wrong)


def test_steps_inside_parts_of_one_member_prove_nothing() -> None:
    problem = make_problem(with_costs(load("dgx-h100:2")), "allreduce", (0, 8)).under("Simple")
    assert not [*find_parts_with_steps(BoundSearch(problem, size_bytes=1e6))]
    with_relays = make_problem(with_costs(load("dgx-h100:2")), "allreduce", (0, 8), range(1, 8)).under("Simple")
    for claim in find_parts_with_steps(BoundSearch(with_relays, size_bytes=1e6)):
        assert proved(with_relays, claim).claims == (0.0, 0.0, np.inf)


def test_a_quotient_has_the_steps_inside_parts_of_the_whole() -> None:
    topology = without_switch_ops(with_costs(load("dgx-a100:4")))
    quotient = quotient_problem(topology, "allreduce")
    assert quotient is not None
    least_us = [
        max(proved(own, claim).at(4e6) for claim in find_parts_with_steps(BoundSearch(own, size_bytes=4e6)))
        for own in (quotient.under("Simple"), make_problem(topology, "allreduce").under("Simple"))
    ]
    assert least_us[0] == pytest.approx(least_us[1])
