"""Groups whose networks are equal up to the order of their ranks are recognised, and answers carried between them."""

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


def test_a_form_does_not_depend_on_the_numbers_of_ranks_and_resources() -> None:
    two = load("dgx-a100:2")
    assert form((0, 2, 4), two) == form((8, 10, 12), two)
    assert form((0, 8), two) != form((0, 2), two)  # It spans two nodes.
    assert form((0, 1, 2)) != form((0, 1, 4))


@pytest.mark.parametrize("root", [None, 0])
def test_two_groups_have_one_form_exactly_if_an_order_maps_one_onto_the_other(root: int | None) -> None:
    groups = [(first, *later_ranks) for first, *later_ranks in combinations(range(8), 3)][::2]
    form_of: dict[tuple[int, ...], bytes] = {}
    for group in groups:
        net, nodes = network(DGX1, group), DGX1.nodes[list(group)]
        order = canonical_order(net, nodes, root)
        assert root is None or order[0] == root
        ordered = tuple(group[i] for i in order)
        form_of[group] = form(ordered)
        assert form_of[group] == network_form(*reordered(net, nodes, order))
    fixed = 0 if root is None else 1
    forms = {
        group: {form((*group[:fixed], *permutation)) for permutation in permutations(group[fixed:])} for group in groups
    }
    for first_group, second_group in combinations(groups, 2):
        assert (form_of[first_group] == form_of[second_group]) == (form(second_group) in forms[first_group])
