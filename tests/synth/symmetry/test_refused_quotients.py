"""A quotient that is wrong, or stale, is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from synth.model.collective import Collective
from synth.model.problem import Quotient
from synth.symmetry.quotient import quotient_by, quotient_problem
from synth.symmetry.quotient_check import check_quotient
from tests.random_problems import TRANSLATABLE
from tests.synth.symmetry.quotients import answer, expands, quotient
from topologies.errors import QuotientRefused
from topologies.load import load
from topologies.network import Network, network
from topologies.topology import Limit, Topology


def slower(topology: Topology, link: int) -> Topology:
    gbs = topology.bandwidth_gbs.copy()
    gbs[link] /= 2
    return replace(topology, bandwidth_gbs=gbs)


def without(topology: Topology, link: int) -> Topology:
    columns = {
        c: np.delete(getattr(topology, c), link)
        for c in ("link_src", "link_dst", "alpha_us", "bandwidth_gbs", "link_kind")
    }
    return replace(topology, **columns)


@settings(max_examples=25, derandomize=True)
@given(st.integers(0, 2**32))
def test_a_stale_quotient_is_refused(seed: int) -> None:
    rng = random.Random(seed)
    topology = load(rng.choice(("ring:6", "torus:3x4", "hypercube:3", "full:4", "mesh:4x2", "ndv2:2")))
    problem = quotient(topology, rng.choice(TRANSLATABLE))
    assert problem.quotient is not None
    change = rng.choice((slower, without))
    now = change(topology, rng.randrange(topology.nlinks)) if not topology.limits else slower(topology, 0)
    real = network(now, problem.group)
    with pytest.raises(QuotientRefused, match="its network is not that of"):
        check_quotient(replace(problem, topology=now))
    # This also holds where a file has the current network and old translations.
    assume(real.nlinks == problem.quotient.whole.nlinks)
    stale = replace(problem.network, bandwidth_gbs=real.bandwidth_gbs)
    with pytest.raises(QuotientRefused, match=r"no symmetry|does not keep"):
        check_quotient(
            replace(problem, topology=now, network=stale, quotient=Quotient(problem.quotient.translations, real))
        )
    with pytest.raises(QuotientRefused):
        quotient_by(now, problem.collective.name, 1, problem.group, problem.quotient.translations)
    fewer = quotient_problem(now, problem.collective.name)
    assert fewer is None or (fewer.quotient is not None and fewer.quotient.order < problem.quotient.order)


def test_other_links_are_refused() -> None:
    problem = quotient("torus:3x4", "allgather")
    alpha = problem.network.alpha_us + 0.1
    with pytest.raises(QuotientRefused, match="other links"):
        check_quotient(replace(problem, network=replace(problem.network, alpha_us=alpha)))
    with pytest.raises(QuotientRefused, match="must have none"):
        check_quotient(replace(problem, relays=(3,)))


def test_a_limit_that_the_translation_does_not_keep_is_refused() -> None:
    """Check equal links, two of which share one cable, where the images have a better cable."""
    t = load("ring:6")
    ahead = (t.link_dst - t.link_src) % 6 == 1
    cables = [
        Limit(f"cable{r}", np.flatnonzero(ahead & (t.link_src >= r) & (t.link_src <= r + 1)), gbs)
        for r, gbs in ((0, 75.0), (3, 80.0))
    ]
    t = replace(t, limits=tuple(cables))
    assert quotient_problem(t, "allgather") is None
    with pytest.raises(QuotientRefused, match="does not keep the resources"):
        quotient_by(t, "allgather", 1, range(6), ((3, 2),))


def with_uses(net: Network, change: Callable[[list[list[int]]], None]) -> Network:
    lists = [net.uses(link).tolist() for link in range(net.nlinks)]
    change(lists)
    ptr = np.cumsum([0, *map(len, lists)])
    return replace(net, uses_ptr=ptr, uses_idx=np.array([r for uses in lists for r in uses]))


def swap_two(lists: list[list[int]]) -> None:
    i = next(i for i, uses in enumerate(lists) if uses != lists[0])
    lists[0], lists[i] = lists[i], lists[0]


def drop_last(lists: list[list[int]]) -> None:
    last = max(max(uses) for uses in lists)
    for uses in lists:
        if last in uses:
            uses.remove(last)


def one_uses_another_too(lists: list[list[int]]) -> None:
    lists[0] += [1 - lists[0][0]]


@pytest.mark.parametrize("spec", ["torus:3x4", "dgx-a100:2"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (swap_two, "some links but not by all|not in the quotient"),
        (drop_last, "not in the quotient"),
        (one_uses_another_too, "some links but not by all"),
    ],
)
def test_resources_in_wrong_orbits_are_refused(
    spec: str, change: Callable[[list[list[int]]], None], message: str
) -> None:
    problem = quotient(spec, "allgather")
    net = problem.network
    if spec == "dgx-a100:2" and change is swap_two:
        change = one_uses_another_too
    with pytest.raises(QuotientRefused, match=message):
        check_quotient(replace(problem, network=with_uses(net, change)))


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_wrong_capacity_is_refused(factor: float) -> None:
    problem = quotient("dgx-a100:2", "allgather")
    for at in range(problem.network.nresources):
        capacity = problem.network.capacity_gbs.copy()
        capacity[at] *= factor
        with pytest.raises(QuotientRefused, match="not in the quotient"):
            check_quotient(replace(problem, network=replace(problem.network, capacity_gbs=capacity)))
    net = problem.network
    more = replace(
        net,
        uses_ptr=net.uses_ptr + np.arange(net.nlinks + 1),
        uses_idx=np.insert(net.uses_idx, net.uses_ptr[1:], net.nresources),
        capacity_gbs=np.append(net.capacity_gbs, 1.0),
        resource_names=(*net.resource_names, "invented"),
    )
    with pytest.raises(QuotientRefused, match="invented"):
        check_quotient(replace(problem, network=more))


def test_wrong_translations_are_refused() -> None:
    problem = quotient("torus:4x4", "alltoall")
    assert problem.quotient is not None
    for translations, message in (
        (((1, 16),), "no symmetry"),
        (((1, 3),), "no digit"),
        (((1, 4), (2, 4)), "no digit"),
        (((4, 4), (1, 4)), "no digit"),
        (((0, 4),), "no digit"),
        (((-1, 4),), "no digit"),
        (((1, 1), (1, 4)), "no digit"),
        (((1, 4), (4, 8)), "no digit"),
        (((1, 4),), "not in the quotient|some links"),
        ((), "not in the quotient|some links|representative"),
    ):
        with pytest.raises(QuotientRefused, match=message):
            check_quotient(replace(problem, quotient=Quotient(translations, problem.quotient.whole)))
        if translations != ((1, 4),):
            with pytest.raises(QuotientRefused):
                quotient_by(problem.topology, "alltoall", 1, problem.group, translations)
    again = quotient_by(problem.topology, "alltoall", 1, problem.group, ((1, 4),))
    assert again.collective.nchunks == 4 * 16  # Fewer translations than possible are enough.
    expands(again, answer(again))
    with pytest.raises(QuotientRefused, match="it must be"):
        quotient_by(problem.topology, "broadcast", 1, problem.group, ((1, 4),))


def test_a_crowded_resource_is_refused() -> None:
    """Check two ranks behind one NIC: their exchange is a symmetry, but a send and its copy do not fit."""
    t = load("full:4")
    leaves = t.link_src // 2 != t.link_dst // 2
    limits = [Limit(f"nic{i}", np.flatnonzero(leaves & (t.link_src // 2 == i)), 50.0) for i in range(2)]
    t = replace(t, limits=tuple(limits))
    problem = quotient(t, "allgather")
    assert problem.quotient is not None
    assert problem.quotient.order == 2
    expands(problem, answer(problem))
    with pytest.raises(QuotientRefused, match="crowd"):
        quotient_by(t, "allgather", 1, range(4), ((1, 2), (2, 2)))
    with pytest.raises(QuotientRefused, match="crowd"):
        check_quotient(replace(problem, quotient=Quotient(((1, 2), (2, 2)), problem.quotient.whole)))


def break_row(c: Collective, which: str, row: int, column: int) -> Collective:
    table = getattr(c, which).copy()
    table[row, column] = (table[row, column] + 1) % (c.nranks if column == 0 else c.nchunks)
    return replace(c, **{which: table})


@pytest.mark.parametrize("name", TRANSLATABLE)
def test_a_collective_that_the_translations_do_not_move_is_refused(name: str) -> None:
    problem = quotient("mesh:4x2", name, 2)
    check_quotient(problem)
    c = problem.collective
    rng = random.Random(name)
    wrong: list[Collective] = [
        replace(c, name="broadcast"),
        replace(c, name="alltoall" if name != "alltoall" else "allgather"),
        replace(c, chunks=c.chunks + 1),
        replace(c, nranks=c.nranks + 1),
        replace(c, nchunks=c.nchunks + 2),
        replace(c, reduces=~c.reduces),
        replace(c, fraction=c.fraction * 2),
        replace(c, pre=c.pre[1:], in_index=c.in_index[1:]),
        replace(c, post=c.post[:-1], out_index=c.out_index[:-1]),
        replace(c, post=c.post[::-1]),
        replace(c, pre=c.pre + 1000),
        replace(c, in_index=c.in_index + 1),
        replace(c, out_index=np.roll(c.out_index, 1) + (c.out_index == np.roll(c.out_index, 1))),
    ]
    for which in ("pre", "post"):
        for _ in range(4):
            rows = getattr(c, which)
            wrong.append(break_row(c, which, rng.randrange(len(rows)), rng.randrange(2)))
    for collective in wrong:
        with pytest.raises(QuotientRefused):
            check_quotient(replace(problem, collective=collective))
