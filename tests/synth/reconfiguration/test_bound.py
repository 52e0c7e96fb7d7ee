"""The bound over all sequences of states: every schedule is one on the relaxed network; forged claims are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from scipy.optimize import linprog

from synth.bounds.witness import Witness
from synth.bounds.witnesses.hops import Direct
from synth.reconfiguration.bound import _priced, find_bound
from synth.reconfiguration.relaxed import relaxed
from synth.reconfiguration.states import ChangingNetwork, read_states
from synth.reconfiguration.witness import ChangesBound, check_bound, least_changing_us, relaxed_problem
from synth.solvers.workers import Workers
from tests.synth.reconfiguration.test_schedule import make_exchange, make_schedule
from topologies.errors import BadWitness, VerificationError
from topologies.topology import Limit

MIB = 1 << 20
SPEC = "ring:4,bw=50 + axes:2x2,bw=100"


@pytest.fixture(scope="module")
def network() -> ChangingNetwork:
    return read_states(SPEC)


@pytest.fixture(scope="module")
def bound(network: ChangingNetwork) -> ChangesBound:
    with Workers() as workers:
        return find_bound([network], "alltoall", 0, 64 * MIB, workers, 2.0)


def test_the_relaxed_network_is_no_better_than_the_best_state_anywhere(network: ChangingNetwork) -> None:
    both = relaxed(network, (0, 1, 2))
    ring = network.states[0]
    limits = {limit.name: limit.bandwidth_gbs for limit in both.limits}
    assert (both.nlinks, limits["all links"], limits["sends of rank 0"], limits["receipts of rank 3"]) == (
        12,
        400,
        100,
        100,
    )
    assert relaxed(network, (1,)) is network.states[1]
    narrow = replace(ring, name="narrow", limits=(Limit("nic", np.arange(8), 80.0),))
    slower = ChangingNetwork("n", (narrow, network.states[1]), np.zeros((2, 2)))
    assert {limit.name: limit.bandwidth_gbs for limit in relaxed(slower, (0, 1)).limits}["all links"] == 400


def test_schedules_over_states_keep_the_limits_of_the_relaxed_network() -> None:
    with Workers() as workers:
        schedule = make_schedule("alltoall", (1, 2), workers)
    both = relaxed(schedule.network, (0, 1, 2))
    number = {ends: i for i, ends in enumerate(zip(both.link_src.tolist(), both.link_dst.tolist(), strict=True))}
    sent_bytes = np.zeros(both.nlinks)
    for algorithm in schedule.algorithms:
        problem, timed = algorithm.problem, algorithm.timed(64 * MIB)
        links = [
            number[ends]
            for ends in zip(
                problem.network.src[timed.link].tolist(), problem.network.dst[timed.link].tolist(), strict=True
            )
        ]
        np.add.at(sent_bytes, links, problem.collective.chunk_bytes(64 * MIB)[timed.chunk])
    time_us = schedule.sending_us(64 * MIB)
    assert (sent_bytes <= both.bandwidth_gbs * 1e3 * time_us).all()
    for limit in both.limits:
        assert sent_bytes[limit.links].sum() <= limit.bandwidth_gbs * 1e3 * time_us


@pytest.mark.parametrize("name", ["allreduce", "allgather", "reducescatter", "alltoall", "broadcast"])
def test_no_schedule_is_faster_than_the_bound(name: str, network: ChangingNetwork) -> None:
    with Workers() as workers:
        bound = find_bound([network], name, 0, MIB, workers, 0.2)
        schedules = [make_schedule(name, sequence, workers) for sequence in ((0,), (1, 2), (2, 1), (0, 1), (1, 2, 1))]
        if name == "allreduce":
            pairwise = make_exchange((1, 2), workers, SPEC)
            assert pairwise is not None
            schedules.append(pairwise)
    check_bound(network, bound)
    for size in (1, MIB, 64 * MIB):
        for delta_us in (0.0, 1.0, 1e3):
            timed = network.with_delta(delta_us)
            bound_us, limits = bound.at(timed, size)
            assert limits.changing_us == limits.changes * delta_us
            for schedule in schedules:
                assert bound_us <= (schedule.sending_us(size) + timed.changing_us(schedule.states)) * (1 + 1e-9)


def test_two_axes_need_a_change() -> None:
    axes = read_states("axes:2x2,bw=100")
    with Workers() as workers:
        bound = find_bound([axes], "allgather", 0, MIB, workers, 0.2)
    assert bound.at(axes.with_delta(1e6), MIB)[0] >= 1e6
    assert all(not claim.witnesses for claim in bound.claims[0])


def test_sets_that_do_not_join_the_ranks_count_without_any_time() -> None:
    for start in (None, 1):
        cube = replace(read_states("axes:2x2x2").with_delta(1e6), start=start)
        with Workers() as workers:
            bound = find_bound([cube], "allreduce", 0, MIB, workers, 0.0)
        check_bound(cube, bound)
        assert bound.at(cube, MIB)[0] >= 2e6
        assert not any(claim.witnesses for claim in bound.claims[1])


def forged(bound: ChangesBound, changes: int, change: Callable[[Witness], Witness]) -> ChangesBound:
    """Return a bound in which the first claim for some number of changes has other witnesses."""
    first, *others = bound.claims[changes]
    claims = list(bound.claims)
    claims[changes] = (replace(first, witnesses=tuple(map(change, first.witnesses))), *others)
    return replace(bound, claims=tuple(claims))


def test_forged_bounds_are_refused(network: ChangingNetwork, bound: ChangesBound) -> None:
    check_bound(network, bound)
    assert len(bound.claims) == 3
    with pytest.raises(BadWitness, match="claims"):
        check_bound(network, forged(bound, 1, lambda w: replace(w, per_byte_us=2 * w.per_byte_us + 1e-6)))
    with pytest.raises(BadWitness, match="claims"):
        check_bound(network, forged(bound, 0, lambda w: replace(w, base_us=w.base_us + 1.0)))
    with pytest.raises(VerificationError, match="numbers of changes"):
        check_bound(network, replace(bound, claims=bound.claims[:-1]))
    with pytest.raises(VerificationError, match="no claim of 1 change"):
        check_bound(network, replace(bound, claims=(bound.claims[0], bound.claims[1][1:], bound.claims[2])))
    one_state = replace(bound.claims[1][0], states=(0,))
    with pytest.raises(VerificationError, match="no claim"):
        check_bound(network, replace(bound, claims=(bound.claims[0], (one_state,), bound.claims[2])))
    with pytest.raises(VerificationError, match="no set of states"):
        check_bound(
            network, replace(bound, claims=(*bound.claims[:2], (*bound.claims[2], replace(one_state, states=(2, 9)))))
        )
    empty = replace(bound.claims[2][0], witnesses=())
    with pytest.raises(VerificationError, match="must be a witness"):
        check_bound(network, replace(bound, claims=(*bound.claims[:2], (empty,))))


def test_links_of_several_bandwidths_need_a_witness_that_counts_bytes() -> None:
    network = read_states("ring:4,bw=50 + full:4,bw=20")
    with Workers() as workers:
        bound = find_bound([network], "alltoall", 0, MIB, workers, 0.2)
    kinds = {witness.kind for claim in bound.claims[1] for witness in claim.witnesses}
    assert kinds <= {"path", "cut", "arrivals", "departures", "from-afar", "to-afar", "lengths", "state-prices"}
    claim = replace(bound.claims[1][0], witnesses=(Direct(resources=(0,)),))
    with pytest.raises(BadWitness, match="says nothing about these states"):
        check_bound(network, replace(bound, claims=(bound.claims[0], (claim,))))


def least_time(network: ChangingNetwork, size_bytes: float) -> float:
    """Return the least time in µs of an all-to-all without latencies, if the states share the time as they like.

    The linear program has a flow of each source over each link, and the time of each state.
    """
    count, nstates = network.nranks, len(network.states)
    links = [(s, i, *ends) for s, state in enumerate(network.states) for i, ends in enumerate(
        zip(state.link_src.tolist(), state.link_dst.tolist(), strict=True))]  # fmt: skip
    flows = {(source, link): n for n, (source, link) in enumerate(product(range(count), range(len(links))))}
    kept, wanted = np.zeros((count * count, len(flows) + nstates)), np.zeros(count * count)
    full = np.zeros((len(links), len(flows) + nstates))
    for (source, link), n in flows.items():
        state, i, src, dst = links[link]
        kept[source * count + dst, n] += 1
        kept[source * count + src, n] -= 1
        full[link, n] = 1
        full[link, len(flows) + state] = -network.states[state].bandwidth_gbs[i] * 1e3
    for source, rank in product(range(count), repeat=2):
        wanted[source * count + rank] = size_bytes / count * (1 if rank != source else 1 - count)
    costs = np.append(np.zeros(len(flows)), np.ones(nstates))
    return float(linprog(costs, full, np.zeros(len(links)), kept, wanted).fun)


@pytest.mark.parametrize("spec", ["strides:4,bw=50", "ring:4,bw=50 + axes:2x2,bw=70", "strides:5"])
def test_prices_come_near_to_the_best_shares_of_the_time(spec: str) -> None:
    network = read_states(spec)
    states = tuple(range(len(network.states)))
    problem = relaxed_problem(network, "alltoall", 0, states)
    assert problem is not None
    priced = _priced(network, states, problem)
    optimum_us = least_time(network, MIB)
    assert 0.97 * optimum_us <= priced.per_byte_us * MIB <= optimum_us * (1 + 1e-9)


def test_forged_prices_are_refused(network: ChangingNetwork) -> None:
    with Workers() as workers:
        bound = find_bound([network], "alltoall", 0, 64 * MIB, workers, 1.0)
    problem = relaxed_problem(network, "alltoall", 0, (0, 1, 2))
    assert problem is not None
    priced = _priced(network, (0, 1, 2), problem)
    whole = bound.claims[2][0]

    def with_prices(witness: Witness) -> ChangesBound:
        """Return the bound with one witness about all states."""
        return replace(bound, claims=(*bound.claims[:2], (replace(whole, witnesses=(witness,)),)))

    check_bound(network, with_prices(priced))
    for fault in (
        replace(priced, per_byte_us=priced.per_byte_us * 1.001),
        replace(priced, base_us=priced.base_us + 1),
        replace(priced, prices=priced.prices[1:]),
        replace(priced, prices=(-1.0, *priced.prices[1:])),
        replace(priced, prices=(float("nan"), *priced.prices[1:])),
    ):
        with pytest.raises(BadWitness):
            check_bound(network, with_prices(fault))
    with pytest.raises(BadWitness):
        priced.limit(problem)


def test_changes_one_after_the_other_take_at_least_the_shortest_walk() -> None:
    states = read_states("strides:6").states
    times = np.array([[0.0, 5.0, 9.0], [7.0, 0.0, 1.0], [9.0, 8.0, 0.0]])
    for start in (None, 0, 1, 2):
        network = ChangingNetwork("n", states, times, start)
        for chosen, changes in product(((0, 1), (1, 2), (0, 1, 2)), range(4)):
            walks = [
                sum(times[here, there] for here, there in pairwise(walk))
                for walk in product(chosen, repeat=changes + 1)
                if start in (None, walk[0]) and all(here != there for here, there in pairwise(walk))
            ]
            assert least_changing_us(network, chosen, changes) == min(walks, default=np.inf)
