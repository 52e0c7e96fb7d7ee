"""Plans of all-to-alls on all ranks: every block arrives, over the messages of the plan, and all ranks choose alike."""

from __future__ import annotations

from functools import cache, partial
from importlib.util import find_spec

import pytest

if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: pip install '.[torch]'", allow_module_level=True)

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.torch.programs.blocks import Blocks, Buffers
from runtime.torch.programs.planned import RankPlan, RankPlanner, run_planned
from runtime.torch.programs.transport import Transport
from tests.runtime.torch.test_pieces import wrong_after
from topologies.errors import InputError
from topologies.load import load

ELEMENT_BYTES = 8
GROUPS = (
    ("dgx-h100:2", (0, 1, 2, 8, 9, 10)),
    ("dgx-h100:3", (0, 1, 8, 9, 16)),
    ("dgx-h100:2", (9, 0, 1, 8)),
    ("dgx2:2", (17, 0, 1, 16)),  # Two ranks share a NIC.
    ("torus:2x3", (0, 1, 2, 3, 4, 5)),  # No nodes: chunks share the links.
    ("dgx1", (4, 0, 1, 2, 3, 7)),
)
GAINING = (GROUPS[0], GROUPS[2])  # In each node the ranks have a NIC each, so that a hot rank's data can be spread.
HOT = 100_000  # Elements of a block that takes longer than latencies.


@cache
def planners(group: tuple[str, tuple[int, ...]]) -> list[RankPlanner]:
    name, ranks = group
    made = [RankPlanner(load(name), ranks, me) for me in range(len(ranks))]
    for planner in made:
        planner._least_bytes = planner._planning_us = 0.0  # On such fast links only larger sizes are worth a plan.
    return made


def parts_of(group: tuple[str, tuple[int, ...]], sizes: list[list[int]]) -> list[RankPlan | None]:
    in_bytes = [[size * ELEMENT_BYTES for size in row] for row in sizes]
    return [planner.plan(in_bytes) for planner in planners(group)]


@settings(max_examples=40)
@given(st.data(), st.sampled_from(GROUPS), st.booleans())
def test_every_block_arrives_whatever_the_sizes(
    data: st.DataObject, group: tuple[str, tuple[int, ...]], early: bool
) -> None:
    n = len(group[1])
    size = st.one_of(st.just(0), st.integers(1, 40), st.integers(1, 30_000))
    sizes = data.draw(st.lists(st.lists(size, min_size=n, max_size=n), min_size=n, max_size=n))
    sizes[data.draw(st.integers(0, n - 1))] = [HOT] * n
    parts = parts_of(group, sizes)
    assert len({part is None for part in parts}) == 1
    assert parts[0] is not None or group not in GAINING

    def execute(_: Buffers, blocks: Blocks, transport: Transport) -> None:
        blocks.exchange(transport, partial(run_planned, parts[transport.rank]))

    if parts[0] is not None:
        assert wrong_after(execute, sizes, early) == []


def skewed(n: int) -> list[list[int]]:
    """Return sizes of which the first rank sends nearly all, to the last one."""
    sizes = np.ones((n, n), dtype=int)
    sizes[0, -1] = HOT
    return sizes.tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("group", GAINING)
def test_a_hot_rank_sends_over_the_nics_of_its_node(group: tuple[str, tuple[int, ...]]) -> None:
    parts = parts_of(group, skewed(len(group[1])))
    node = [rank // 8 for rank in group[1]]
    sent_to_others = [
        sum(chunk.length for _, chunk, peer in part.sends if node[peer] != node[me])
        for me, part in enumerate(parts)
        if part is not None
    ]
    of_first_node = [sent for sent, place in zip(sent_to_others, node, strict=True) if place == node[0]]
    assert max(of_first_node) < 1.1 * sum(of_first_node) / len(of_first_node)


def test_even_sizes_are_sent_straight_between_ranks_with_links() -> None:
    group = ("mi300x", (0, 1, 2, 5))
    n = len(group[1])
    assert parts_of(group, [[HOT] * n] * n) == [None] * n
    assert parts_of(group, skewed(n)) != [None] * n


def test_a_chunk_from_the_wrong_place_is_noticed() -> None:
    sizes = skewed(len(GROUPS[0][1]))
    parts = parts_of(GROUPS[0], sizes)
    hot = parts[0]
    assert hot is not None
    is_part = [chunk.goal == len(sizes) - 1 and chunk.offset == 0 for _, chunk, _ in hot.sends]
    number, chunk, peer = hot.sends[is_part.index(True)]
    wrong_sends = [
        (number, chunk._replace(offset=chunk.offset + ELEMENT_BYTES), peer) if send[0] == number else send
        for send in hot.sends
    ]
    parts[0] = hot._replace(sends=wrong_sends)

    def execute(_: Buffers, blocks: Blocks, transport: Transport) -> None:
        blocks.exchange(transport, partial(run_planned, parts[transport.rank]))

    faults = wrong_after(execute, sizes, True)
    assert faults == [f"rank {len(sizes) - 1}, block of rank 0"]


def test_sizes_that_cost_more_to_plan_than_to_send_are_not_planned() -> None:
    n = len(GROUPS[0][1])
    name, ranks = GROUPS[0]
    assert parts_of(GROUPS[0], skewed(n))[0] is not None
    assert RankPlanner(load(name), ranks, 0).plan(skewed(n)) is None


def test_a_group_in_one_node_whose_links_share_ports_is_refused() -> None:
    with pytest.raises(InputError, match="in one node"):
        RankPlanner(load("dgx-h100"), (1, 2, 6), 0)


@pytest.mark.parametrize("group", [GROUPS[4], GROUPS[5]])
def test_blocks_for_ranks_without_a_link_are_passed_on_by_other_ranks(group: tuple[str, tuple[int, ...]]) -> None:
    name, ranks = group
    network = load(name)
    linked = set(zip(network.link_src.tolist(), network.link_dst.tolist(), strict=True))
    n = len(ranks)
    for part, me in zip(parts_of(group, [[HOT] * n] * n), ranks, strict=True):
        assert part is not None
        assert all((me, ranks[peer]) in linked for _, _, peer in part.sends)
