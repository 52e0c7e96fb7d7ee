"""No witness is accepted that claims more than it proves, and accepted claims are true."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.bounds.check import check, recompute
from synth.bounds.prove import prove
from synth.bounds.witness import ResourceWitness, Witness
from synth.bounds.witnesses.cut import Cut
from synth.bounds.witnesses.ends import Arrivals, Departures
from synth.bounds.witnesses.hops import Direct, Path
from synth.bounds.witnesses.lengths import Lengths
from synth.bounds.witnesses.parts import Parts
from synth.model.collective import named
from synth.model.problem import Problem, make_problem
from synth.model.requirements import find_requirements
from synth.timing.simulate import predict_us
from tests.random_problems import answered, random_problem
from tests.synth.bounds.cases import LARGE, SEEDS, SIZES, never_beaten, uniform
from topologies.errors import BadWitness
from topologies.load import load


def witnesses(seed: int, name: str | None = None) -> tuple[Problem, tuple[Witness, ...], random.Random]:
    rng = random.Random(seed)
    problem = random_problem(rng, name=name)
    return problem, prove(problem).witnesses, rng


@settings(max_examples=25, derandomize=True)
@given(SEEDS)
def test_raised_numbers_are_refused(seed: int) -> None:
    problem, claims, _ = witnesses(seed)
    for witness in claims:
        check(problem, witness)
        lower = replace(witness, base_us=witness.base_us * 0.9, per_byte_us=witness.per_byte_us * 0.9)
        check(problem, lower)
        raised = [
            replace(witness, base_us=witness.base_us * (1 + 1e-6) + 1e-9),
            replace(witness, per_byte_us=witness.per_byte_us * (1 + 1e-6) + 1e-11),
            replace(witness, base_us=float("inf")),
            replace(witness, base_us=float("nan")),
            replace(witness, per_byte_us=float("nan")),
        ]
        if witness.kind == "direct":
            raised += [replace(witness, cap_us=c) for c in (witness.cap_us * 1.001 + 1e-9, float("inf"))]
        for more in raised:
            with pytest.raises(BadWitness, match=witness.kind):
                check(problem, more)


@settings(max_examples=25, derandomize=True)
@given(SEEDS)
def test_a_dropped_resource_is_refused(seed: int) -> None:
    problem, claims, rng = witnesses(seed)
    for witness in claims:
        if isinstance(witness, Cut | Parts | Arrivals | Departures):
            remaining = tuple(r for r in witness.resources if r != rng.choice(witness.resources))
            if len(remaining) == len(witness.resources):
                remaining = witness.resources[1:]
            with pytest.raises(BadWitness, match=r"uses none of its resources|resources are missing"):
                check(problem, replace(witness, resources=remaining))
            # More resources than needed prove less.
            extra = tuple(range(problem.network.nresources))
            if len(extra) > len(witness.resources) and witness.per_byte_us > 0:
                with pytest.raises(BadWitness, match="proves"):
                    check(problem, replace(witness, resources=extra))


def random_witness(problem: Problem, rng: random.Random) -> Witness:
    """Return a witness of a random kind that claims nothing yet, with as few resources as the check accepts."""
    net, k = problem.network, problem.collective.nranks
    kind = rng.choice(("path", "cut", "cut", "parts", "direct", "lengths", "lengths", "arrivals", "departures"))
    if kind == "path":
        return Path(ranks=(rng.randrange(k), rng.randrange(k)), text="at random")
    if kind == "direct":
        return Direct(resources=(rng.randrange(net.nresources),), text="at random")
    if kind == "lengths":
        priced = rng.sample(range(net.nresources + net.nlinks), rng.randint(1, net.nresources))
        return Lengths(prices=tuple((r, rng.choice((0.0, 0.5, 1.0, 3.0))) for r in priced), text="at random")
    everything = tuple(range(net.nresources))
    claim: ResourceWitness
    if kind == "parts":
        side = [rng.randrange(3) for _ in range(net.nranks)]
        parts = (tuple(r for r in range(net.nranks) if side[r] == p) for p in sorted(set(side)))
        claim = Parts(parts=tuple(parts), resources=everything, text="at random")
    else:
        members = rng.sample(range(net.nranks), rng.randint(1, net.nranks))
        witness_class = {"cut": Cut, "arrivals": Arrivals, "departures": Departures}[kind]
        claim = witness_class(ranks=tuple(sorted(members)), resources=everything, text="at random")
    for drop in rng.sample(claim.resources, net.nresources):
        fewer = replace(claim, resources=tuple(r for r in claim.resources if r != drop))
        if fewer.resources and limit_or_none(problem, fewer) is not None:
            claim = fewer
    return claim


def limit_or_none(problem: Problem, witness: Witness) -> tuple[float, float, float] | None:
    try:
        return recompute(problem, witness)
    except BadWitness:
        return None


@settings(max_examples=25, derandomize=True)
@given(SEEDS)
def test_accepted_witnesses_are_true(seed: int) -> None:
    """Check that random sets, parts, pairs, prices and resources, with all that the check allows, are never beaten."""
    rng = random.Random(seed)
    problem = random_problem(rng, name=rng.choice(("allreduce", None, None)))
    schedules = [answered(problem, size) for size in (1.0, 1e7)]
    for _ in range(8):
        witness = random_witness(problem, rng)
        limit = limit_or_none(problem, witness)
        if limit is None:
            with pytest.raises(BadWitness):
                check(problem, witness)
            continue
        witness = replace(witness, base_us=limit[0], per_byte_us=limit[1], cap_us=limit[2])
        check(problem, witness)
        with pytest.raises(BadWitness):
            check(problem, replace(witness, per_byte_us=limit[1] * (1 + 1e-6) + 1e-11))
        for schedule in schedules:
            for size in SIZES:
                never_beaten(witness.at(size), predict_us(problem, schedule, size))


def test_a_witness_without_resources_is_refused_without_a_crash() -> None:
    problem = make_problem(load("full:4"), "allreduce")
    for claim in (Cut(ranks=(0, 1, 2, 3)), Parts(parts=((0, 1, 2, 3),))):
        with pytest.raises(BadWitness):
            check(problem, replace(claim, base_us=1.0, per_byte_us=1.0, text="none"))


def test_the_wrong_set_is_refused() -> None:
    problem = make_problem(load("full:4"), "broadcast")
    cut = next(w for w in prove(problem).witnesses if isinstance(w, Cut))
    outside = tuple(r for r in range(4) if r not in cut.ranks)
    with pytest.raises(BadWitness):
        check(problem, replace(cut, ranks=outside))
    with pytest.raises(BadWitness, match="nothing has to get from 1 to 0"):
        check(problem, Path(ranks=(1, 0), base_us=0.1, text="1→0"))
    summed = make_problem(load("full:4"), "allreduce")
    parts = next(w for w in prove(summed).witnesses if isinstance(w, Parts))
    for wrong in (((0, 1), (2,)), ((0, 1), (1, 2, 3)), ((0, 1, 2, 3), ()), ((0,), (1,), (2,), (3,), (4,))):
        with pytest.raises(BadWitness):
            check(summed, replace(parts, parts=wrong))
    with pytest.raises(BadWitness, match="must be an allreduce"):
        check(make_problem(load("full:4"), named("reducescatter", 4, 1)), parts)


RAISED: tuple[Callable[[Witness, float], Witness], ...] = (
    lambda w, by: replace(w, base_us=w.base_us * (1 + by) + by * 1e-3),
    lambda w, by: replace(w, per_byte_us=w.per_byte_us * (1 + by) + by * 1e-5),
    lambda w, by: replace(w, cap_us=w.cap_us * (1 + by) if np.isfinite(w.cap_us) else np.nan),
    lambda w, _: replace(w, per_byte_us=np.nan),
    lambda w, _: replace(w, base_us=np.inf),
)


@cache
def witnesses_of(spec: str) -> tuple[Witness, ...]:
    return (*prove(LARGE[spec]).witnesses, *uniform(LARGE[spec]))


@settings(max_examples=25, derandomize=True)
@given(st.sampled_from(sorted(LARGE)), st.data(), st.sampled_from(RAISED), st.floats(1e-6, 1e3))
def test_one_number_raised_is_refused(
    spec: str, data: st.DataObject, raised: Callable[[Witness, float], Witness], by: float
) -> None:
    witness = data.draw(st.sampled_from(witnesses_of(spec)))
    check(LARGE[spec], witness)
    with pytest.raises(BadWitness, match="claims"):
        check(LARGE[spec], raised(witness, by))


@settings(max_examples=40, derandomize=True)
@given(SEEDS)
def test_fewer_ranks_or_more_capacity_prove_less(seed: int) -> None:
    """Check that a claim about all arrivals is refused for some of them."""
    rng = random.Random(seed)
    problem = random_problem(rng, name=rng.choice(("allgather", "alltoall", "reducescatter", "reduce", "allreduce")))
    net, k = problem.network, problem.collective.nranks
    need = find_requirements(problem.collective)
    for witness_class, ends, flags in (
        (Arrivals, problem.collective.goals[1], need.arrive),
        (Departures, problem.collective.holders[1], need.depart),
    ):
        if not flags.any():
            continue
        every = witness_class(ranks=tuple(range(net.nranks)), resources=tuple(range(net.nresources)), text="all")
        base, per_byte, _ = recompute(problem, every)
        claim = replace(every, base_us=base, per_byte_us=per_byte)
        check(problem, claim)
        gone = rng.choice(sorted(set(ends[flags].tolist())))
        assert gone < k
        with pytest.raises(BadWitness, match="proves"):
            check(problem, replace(claim, ranks=tuple(r for r in range(net.nranks) if r != gone)))


def test_ranks_and_resources_that_do_not_exist_are_refused() -> None:
    problem = LARGE["mesh:10x10"]
    wrong_witnesses: tuple[Witness, ...] = (
        Arrivals(ranks=(100,), resources=(0,)),
        Arrivals(ranks=(-1,), resources=(0,)),
        Arrivals(ranks=(0,), resources=(360,)),
        Arrivals(ranks=(0,), resources=()),
        Arrivals(ranks=(0,), resources=(0,)),  # This resource leads into another rank.
        Cut(ranks=(0, 100), resources=(0,)),
        Path(ranks=(0, 100)),
        Path(ranks=(0,)),
        Direct(resources=(-1,)),
        Parts(parts=((0,), (100,)), resources=(0,)),
        Lengths(prices=((720, 1.0),)),
        Lengths(prices=((-1, 1.0),)),
        Lengths(prices=((0, -1.0),)),
        Lengths(prices=((0, float("nan")),)),
        Lengths(prices=((0, float("inf")),)),
    )
    for wrong in wrong_witnesses:
        with pytest.raises(BadWitness):
            check(problem, wrong)
