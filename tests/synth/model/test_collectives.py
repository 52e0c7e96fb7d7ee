"""The pre- and postcondition of every collective against an independent statement in plain loops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.model.collective import (
    MOST_CELLS,
    Collective,
    in_chunks,
    is_cut_of,
    make_collective,
    named,
    subdivided,
    uneven,
    with_whole_blocks,
)
from synth.model.common_chunk import common_chunk
from synth.model.registry import COLLECTIVE_KINDS, parse_name
from tests.random_problems import NAMED, NAMES, ROOTED, TRANSLATABLE, UNEVEN
from topologies.errors import InputError

# For each collective: the (rank, place in its input) pairs that hold data before, the (rank, place in its output) pairs
# that hold data after, and for each place of an output the places of inputs that it is made of, in blocks. There are k
# ranks, with root r.
Place = tuple[int, int]
Fact = Callable[[int, int], dict[Place, list[Place]]]
FACTS: dict[str, Fact] = {
    "allreduce": lambda k, _: {(i, 0): [(j, 0) for j in range(k)] for i in range(k)},
    "allgather": lambda k, _: {(i, j): [(j, 0)] for i in range(k) for j in range(k)},
    "reducescatter": lambda k, _: {(i, 0): [(j, i) for j in range(k)] for i in range(k)},
    "alltoall": lambda k, _: {(i, j): [(j, i)] for i in range(k) for j in range(k)},
    "broadcast": lambda k, r: {(i, 0): [(r, 0)] for i in range(k)},
    "reduce": lambda k, r: {(r, 0): [(j, 0) for j in range(k)]},
    "scatter": lambda k, r: {(i, 0): [(r, i)] for i in range(k)},
    "gather": lambda k, r: {(r, j): [(j, 0)] for j in range(k)},
    "sendrecv": lambda k, _: {((i + 1) % k, 0): [(i, 0)] for i in range(k)},
    "alltonext": lambda k, _: {(i + 1, 0): [(i, 0)] for i in range(k - 1)},
}
WHOLE = ("allreduce", "broadcast", "reduce", "sendrecv", "alltonext")  # Their block is the whole message.


def made_of(collective: Collective) -> dict[Place, list[Place]]:
    """Return, for every place of an output, the places of inputs whose sum or copy it is."""
    pre = zip(collective.pre.tolist(), collective.in_index.tolist(), strict=True)
    sources: dict[int, list[Place]] = {}
    for (rank, chunk), place in pre:
        sources.setdefault(chunk, []).append((rank, place))
    post = zip(collective.post.tolist(), collective.out_index.tolist(), strict=True)
    return {(rank, place): sources[chunk] for (rank, chunk), place in post}


def check_form(collective: Collective) -> None:
    """Check what holds for every Collective."""
    for table, index in ((collective.pre, collective.in_index), (collective.post, collective.out_index)):
        assert [tuple(row) for row in table.tolist()] == sorted({tuple(row) for row in table.tolist()})
        assert len(index) == len(table)
        assert table[:, 0].min() >= 0
        assert table[:, 0].max() < collective.nranks
        assert table[:, 1].min() >= 0
        assert table[:, 1].max() < collective.nchunks
    assert collective.reduces.shape == collective.fraction.shape == (collective.nchunks,)
    assert (collective.fraction > 0).all()
    assert set(collective.pre[:, 1].tolist()) == set(range(collective.nchunks))
    out = [
        (rank, place) for (rank, _), place in zip(collective.post.tolist(), collective.out_index.tolist(), strict=True)
    ]
    assert len(set(out)) == len(out)
    for rank in range(collective.nranks):  # A buffer has no gaps.
        for table, index in ((collective.pre, collective.in_index), (collective.post, collective.out_index)):
            places = index[table[:, 0] == rank]
            assert sorted(set(places.tolist())) == list(range(len(set(places.tolist()))))


@settings(max_examples=75, derandomize=True)
@given(st.sampled_from(list(NAMED)), st.integers(2, 9), st.integers(1, 5), st.data())
def test_named(name: str, k: int, chunks: int, data: st.DataObject) -> None:
    root = data.draw(st.integers(0, k - 1)) if name in ROOTED else 0
    collective = named(name, k, chunks, root)
    check_form(collective)
    expected = {
        (rank, place * chunks + part): [(r, p * chunks + part) for r, p in sources]
        for (rank, place), sources in FACTS[name](k, root).items()
        for part in range(chunks)
    }
    assert made_of(collective) == expected
    assert (collective.name, collective.nranks, collective.chunks) == (name, k, chunks)
    assert collective.root == root
    assert (collective.reduces == (name in ("allreduce", "reducescatter", "reduce"))).all()
    np.testing.assert_allclose(collective.fraction, (1 if name in WHOLE else 1 / k) / chunks)


@settings(max_examples=60, derandomize=True)
@given(st.sampled_from(list(NAMED)), st.integers(2, 7), st.integers(1, 4), st.integers(1, 4))
def test_cutting_keeps_totals(name: str, k: int, first: int, second: int) -> None:
    whole, cut = named(name, k, first), subdivided(named(name, k, first), second)
    direct = named(name, k, first * second)
    for a, b in ((cut.pre, direct.pre), (cut.post, direct.post), (cut.in_index, direct.in_index)):
        assert a.tolist() == b.tolist()
    assert cut.out_index.tolist() == direct.out_index.tolist()
    assert cut.chunks == first * second
    for table in ("pre", "post"):  # Bytes at every rank, before and after.
        per_rank = [
            np.bincount(getattr(c, table)[:, 0], c.fraction[getattr(c, table)[:, 1]], minlength=k) for c in (whole, cut)
        ]
        np.testing.assert_allclose(*per_rank)
    np.testing.assert_allclose(cut.chunk_bytes(1e6).sum(), whole.chunk_bytes(1e6).sum())


def test_the_registry_rows_state_the_kind_of_each_collective() -> None:
    assert sorted(COLLECTIVE_KINDS) == sorted(NAMES)
    for flag, named_so in (("by_name", NAMED), ("rooted", ROOTED), ("translatable", TRANSLATABLE)):
        assert sorted(name for name, kind in COLLECTIVE_KINDS.items() if getattr(kind, flag)) == sorted(named_so)
    assert sorted(name for name, kind in COLLECTIVE_KINDS.items() if kind.even) == sorted({*UNEVEN, "alltoallv"})
    for name in NAMED:
        collective, kind = named(name, 5, 1), COLLECTIVE_KINDS[name]
        assert kind.entries(5) >= max(len(collective.pre), len(collective.post))
        assert kind.reduces == collective.reducing
        assert kind.in_shares == (name == "allreduce")


def test_holds_and_wants_are_the_tables() -> None:
    for name in NAMED:
        collective = named(name, 5, 2)
        held_cells = {(r, c) for c, r in np.argwhere(collective.holds).tolist()}
        wanted_cells = {(r, c) for c, r in np.argwhere(collective.wants).tolist()}
        assert held_cells == {tuple(row) for row in collective.pre.tolist()}
        assert wanted_cells == {tuple(row) for row in collective.post.tolist()}


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("all_reduce", "allreduce"),
        ("ALLREDUCE", "allreduce"),
        ("all-gather", "allgather"),
        ("all_gather_into_tensor", "allgather"),
        ("reduce_scatter", "reducescatter"),
        ("reduce_scatter_tensor", "reducescatter"),
        ("all_to_all", "alltoall"),
        ("all_to_all_single", "alltoall"),
        ("bcast", "broadcast"),
        ("AllToAllV", "alltoallv"),
        ("send_recv", "sendrecv"),
        ("all_to_next", "alltonext"),
        *((name, name) for name in NAMES),
    ],
)
def test_spellings(spelling: str, name: str) -> None:
    assert parse_name(spelling) == name


@pytest.mark.parametrize(
    ("ask", "fragments"),
    [
        (lambda: parse_name("alreduce"), ["'alreduce'", "allreduce"]),
        (lambda: parse_name(""), ["''", "allgather"]),
        (lambda: named("alltoallv", 4, 1), ["sizes of its blocks", "--sizes"]),
        (lambda: named("allgather", 4, 1, sizes=np.ones(4)), ["allgather", "allgatherv"]),
        (lambda: named("gatherv", 4, 1, sizes=np.ones(3)), ["3 ranks", "4"]),
        (lambda: named("allreduce", 1, 1), ["1 rank", "at least 2"]),
        (lambda: named("allreduce", 4, 0), ["chunks", "0"]),
        (lambda: named("broadcast", 4, 1, 4), ["root", "4"]),
        (lambda: named("broadcast", 4, 1, -1), ["root", "-1"]),
        (lambda: named("alltoall", 4096, 4096), ["4096 ranks", "4096 chunks"]),
    ],
)
def test_refusals(ask: Callable[[], object], fragments: list[str]) -> None:
    with pytest.raises(InputError) as error:
        ask()
    assert "\n" not in str(error.value)
    for word in fragments:
        assert word in str(error.value)


@settings(max_examples=40, derandomize=True)
@given(st.integers(2, 7), st.data())
def test_alltoallv_layout(k: int, data: st.DataObject) -> None:
    size = st.sampled_from([0, 0, 1, 3, 1000, 2.5])
    sizes = data.draw(st.lists(st.lists(size, min_size=k, max_size=k), min_size=k, max_size=k))
    sizes[k - 1][0] = 4
    collective = uneven("alltoallv", sizes)
    check_form(collective)
    largest = max(map(sum, [*sizes, *zip(*sizes, strict=True)]))  # of all send and receive buffers
    expected: dict[Place, list[Place]] = {}
    received = [0] * k
    fractions = []
    for i in range(k):
        full = [j for j in range(k) if sizes[i][j]]
        for place, j in enumerate(full):  # An empty block takes no place.
            expected[j, received[j]] = [(i, place)]
            received[j] += 1
            fractions.append(sizes[i][j] / largest)
    assert made_of(collective) == expected
    np.testing.assert_allclose(collective.fraction, fractions)


@settings(max_examples=40, derandomize=True)
@given(st.sampled_from(UNEVEN), st.integers(2, 7), st.data())
def test_uneven_blocks_are_those_of_the_even_collective_without_the_empty_ones(
    name: str, k: int, data: st.DataObject
) -> None:
    root = data.draw(st.integers(0, k - 1)) if name in ROOTED else 0
    sizes = data.draw(st.lists(st.sampled_from([0, 0, 1, 3, 1000, 2.5]), min_size=k, max_size=k))
    sizes[(root + 1) % k] = 4
    collective = uneven(name, sizes, root)
    check_form(collective)
    kept = [block for block in range(k) if sizes[block]]
    made_of_blocks = made_of(named(COLLECTIVE_KINDS[name].even, k, 1, root))
    in_order = name in ("allgatherv", "gatherv"), name in ("reducescatterv", "scatterv")  # Which buffer has all blocks.
    expected: dict[Place, list[Place]] = {}
    for (rank, place), sources in made_of_blocks.items():
        block = place if in_order[0] else rank
        if sizes[block]:
            new_place = kept.index(place) if in_order[0] else 0
            expected[rank, new_place] = [(r, kept.index(p) if in_order[1] else 0) for r, p in sources]
    assert made_of(collective) == expected
    np.testing.assert_allclose(collective.fraction, [sizes[block] / sum(sizes) for block in kept])
    assert collective.root == root
    assert collective.reducing == (name == "reducescatterv")


@settings(max_examples=20, derandomize=True)
@given(
    st.sampled_from((*UNEVEN, "alltoallv")),
    st.integers(2, 6),
    st.lists(st.sampled_from([0, 1, 3, 7, 1000, 123457]), min_size=36, max_size=36),
    st.sampled_from([2, 3, 8, 64]),
)
def test_large_blocks_are_cut_into_more_chunks_and_files_need_little_padding(
    name: str, k: int, drawn: list[int], chunks: int
) -> None:
    sizes = [5, *drawn[: k - 1]][::-1] if name != "alltoallv" else [[9, 5, *drawn[i : i + k - 2]] for i in range(k)]
    whole = uneven(name, sizes)
    cut = in_chunks(whole, chunks)
    check_form(cut)
    assert cut.block is not None
    assert whole.block is not None
    assert cut.chunks == chunks
    np.testing.assert_allclose(np.bincount(cut.block, cut.fraction), whole.fraction)
    for condition, whole_condition in ((cut.pre, whole.pre), (cut.post, whole.post)):
        blocks = {(rank, int(cut.block[chunk])) for rank, chunk in condition.tolist()}
        assert blocks == {(rank, int(whole.block[chunk])) for rank, chunk in whole_condition.tolist()}
        assert len(condition) == sum(np.bincount(cut.block)[block] for _, block in blocks)
    # A chunk is larger than the average of all blocks by less than a cell, of which a message has 64 to 1024.
    assert cut.fraction.max() <= whole.fraction.mean() / chunks + 1 / 64
    assert cut.nchunks <= whole.nchunks * (chunks + 1)
    assert common_chunk(cut).padding <= common_chunk(whole, MOST_CELLS).padding + 1 / 64


@pytest.mark.parametrize("name", UNEVEN)
@pytest.mark.parametrize("unit", [1 << 24, 7 << 10])
def test_a_message_of_units_divides_into_the_cells_of_its_blocks(name: str, unit: int) -> None:
    """Check that blocks of 9, 2, … units are cut into cells that a message of these units divides into."""
    sizes = [9 * unit, 2 * unit, 36 * unit, 0]
    common = common_chunk(in_chunks(uneven(name, sizes), 16))
    assert common.padding == 0
    cell_bytes = common.cells.chunk_bytes(sum(sizes))
    assert np.all(cell_bytes == np.round(cell_bytes))


@pytest.mark.parametrize("name", [*UNEVEN, "alltoallv"])
def test_a_cut_of_a_collective_is_known_from_other_data_and_other_places(name: str) -> None:
    sizes = [7, 0, 3, 12] if name != "alltoallv" else [[1, 7, 0, 3], [5, 0, 2, 2], [0, 9, 4, 1], [8, 8, 1, 0]]
    whole, other = uneven(name, sizes), uneven(name, sizes[::-1])
    cut = in_chunks(whole, 3)
    order = np.random.default_rng(1).permutation(cut.nchunks)  # Engines number chunks in any order.
    renumbered = make_collective(
        name,
        4,
        cut.fraction[np.argsort(order)],
        np.column_stack([cut.pre[:, 0], order[cut.pre[:, 1]]]),
        np.column_stack([cut.post[:, 0], order[cut.post[:, 1]]]),
        cut.in_index,
        cut.out_index,
        nchunks=cut.nchunks,
        reduces=bool(cut.reduces[0]),
    )
    for right in (whole, cut, subdivided(whole, 2), subdivided(cut, 2), renumbered):
        assert is_cut_of(right, whole)
        assert not is_cut_of(right, other)
    for index in ("in_index", "out_index"):
        places = getattr(cut, index).copy()
        rank = int((cut.pre if index == "in_index" else cut.post)[np.argmax(places), 0])
        same_rank = np.flatnonzero((cut.pre if index == "in_index" else cut.post)[:, 0] == rank)
        places[same_rank[[0, -1]]] = places[same_rank[[-1, 0]]]
        assert not is_cut_of(replace(cut, **{index: places}), whole)
    moved = cut.fraction.copy()
    moved[[0, -1]] += [1e-3, -1e-3]
    assert not is_cut_of(replace(cut, fraction=moved), whole)
    assert not is_cut_of(replace(cut, reduces=~cut.reduces), whole)
    assert not is_cut_of(replace(cut, post=np.column_stack([(cut.post[:, 0] + 1) % 4, cut.post[:, 1]])), whole)


@pytest.mark.parametrize(
    ("sizes", "fragments"),
    [
        ([[0, 1]], ["(1, 2)", "k rows of k"]),
        ([[1]], ["(1, 1)"]),
        ([], ["k rows of k"]),
        ([[0, 1], [1]], ["k rows of k"]),
        ([[0, "x"], [1, 0]], ["k rows of k"]),
        ([[0, -1], [1, 0]], ["size[0][1]", "-1"]),
        ([[0, 1], [float("nan"), 0]], ["size[1][0]", "nan"]),
        ([[0, 1], [float("inf"), 0]], ["size[1][0]", "inf"]),
        ([[5, 0], [0, 5]], ["at least one pair"]),
        ([[[1, 2]]], ["(1, 1, 2)"]),
    ],
)
def test_alltoallv_refusals(sizes: list[list[float]], fragments: list[str]) -> None:
    with pytest.raises(InputError) as error:
        uneven("alltoallv", sizes)
    assert "\n" not in str(error.value)
    for word in fragments:
        assert word in str(error.value)


def test_alltoallv_of_more_than_a_float_holds() -> None:
    with pytest.raises(InputError):
        uneven("alltoallv", [[0, 1e308, 1e308], [0, 0, 0], [0, 0, 0]])


@pytest.mark.parametrize("chunks", [1, 2, 3, 7])
def test_whole_blocks_are_those_before_the_cut(chunks: int) -> None:
    whole = make_collective(
        "halo", 3, np.array([2, 1, 1]) / 3, np.array([[1, 0], [2, 1], [0, 2]]), np.array([[0, 0], [0, 1], [2, 2]]),
        np.array([0, 0, 0]), np.array([0, 1, 0]), nchunks=3,
    )  # fmt: skip
    cut = subdivided(whole, chunks)
    assert with_whole_blocks(cut).equals(whole)
    if chunks > 1:  # A chunk that lies elsewhere is no part of a block.
        moved = replace(cut, in_index=cut.in_index + (np.arange(len(cut.in_index)) == 1))
        assert with_whole_blocks(moved) is moved
