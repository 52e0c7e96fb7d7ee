"""Groups whose networks are the same but for the order of their ranks are found, and answers carried between them."""

from __future__ import annotations

from itertools import combinations, permutations

import pytest

from synth.symmetry.canonical import canonical_order, network_form, reordered
from topologies.load import load
from topologies.network import network
from topologies.topology import Topology

DGX1 = load("dgx1")


def form(group: tuple[int, ...], topology: Topology = DGX1) -> bytes:
    return network_form(network(topology, group), topology.nodes[list(group)])


def test_a_form_does_not_know_the_numbers_of_ranks_and_resources() -> None:
    two = load("dgx-a100:2")
    assert form((0, 2, 4), two) == form((8, 10, 12), two)
    assert form((0, 8), two) != form((0, 2), two)  # of two nodes
    assert form((0, 1, 2)) != form((0, 1, 4))


@pytest.mark.parametrize("root", [None, 0])
def test_of_two_groups_exactly_those_are_one_problem_that_an_order_brings_onto_each_other(root: int | None) -> None:
    groups = [(first, *rest) for first, *rest in combinations(range(8), 3)][::2]
    known: dict[tuple[int, ...], bytes] = {}
    for group in groups:
        net, nodes = network(DGX1, group), DGX1.nodes[list(group)]
        order = canonical_order(net, nodes, root)
        assert root is None or order[0] == root
        ordered = tuple(group[i] for i in order)
        known[group] = form(ordered)
        assert known[group] == network_form(*reordered(net, nodes, order))
    fixed = 0 if root is None else 1
    forms = {one: {form((*one[:fixed], *rest)) for rest in permutations(one[fixed:])} for one in groups}
    for one, other in combinations(groups, 2):
        assert (known[one] == known[other]) == (form(other) in forms[one])
