"""Axes, parallelism matrices and the groups that they define."""

from __future__ import annotations

import math
from itertools import permutations, product

import numpy as np
import pytest

from synth.parallelism.axes import Axis, axes_named, matrices, mesh, parse_axes, process_groups
from topologies.errors import InputError
from topologies.levels.hierarchy import Hierarchy, Level


def hierarchy(*sizes: int) -> Hierarchy:
    levels = tuple(Level(f"l{i}", size) for i, size in enumerate(sizes))
    return Hierarchy(levels, np.random.default_rng(1).permutation(math.prod(sizes)))


def axes(*sizes: int) -> tuple[Axis, ...]:
    return tuple(Axis(f"a{i}", size) for i, size in enumerate(sizes))


CASES = [
    ((2, 2, 8), (4, 8)),
    ((4, 8), (2, 2, 8)),
    ((6, 6), (4, 9)),
    ((12,), (3, 4)),
    ((2, 3, 2), (12,)),
    ((1, 8), (8,)),
]


@pytest.mark.parametrize(("rows", "columns"), CASES)
def test_matrices_are_all_that_brute_force_yields(rows: tuple[int, ...], columns: tuple[int, ...]) -> None:
    listed = list(matrices(axes(*rows), hierarchy(*columns)))
    divisors = [[d for d in range(1, c + 1) if c % d == 0] for _ in rows for c in columns]
    shape = (len(rows), len(columns))
    tables = (np.array(entries).reshape(shape) for entries in product(*divisors))
    expected = {
        tuple(map(tuple, t.tolist()))
        for t in tables
        if tuple(t.prod(axis=1)) == rows and tuple(t.prod(axis=0)) == columns
    }
    assert len(listed) == len(set(listed))
    assert set(listed) == expected
    assert listed


def test_exchanged_levels_count_once() -> None:
    every = list(matrices(axes(4, 4), hierarchy(2, 2, 2, 2)))
    once = list(matrices(axes(4, 4), hierarchy(2, 2, 2, 2), orbits=[(0, 1, 2, 3)]))
    assert len(every) == 6
    assert len(once) == 1
    pair = set(matrices(axes(4, 4), hierarchy(2, 2, 2, 2), orbits=[(0, 2)]))
    swapped = {tuple((r[2], r[1], r[0], r[3]) for r in matrix) for matrix in pair}
    assert pair | swapped == set(every)


@pytest.mark.parametrize(("rows", "columns"), CASES)
def test_every_rank_is_in_exactly_one_group_of_every_request(rows: tuple[int, ...], columns: tuple[int, ...]) -> None:
    levels = hierarchy(*columns)
    for matrix in matrices(axes(*rows), levels):
        ranks = mesh(levels, matrix)
        assert ranks.shape == rows
        for size in range(1, len(rows) + 1):
            for over in permutations(range(len(rows)), size):
                groups = process_groups(ranks, over)
                assert groups.shape[1] == math.prod(rows[axis] for axis in over)
                assert sorted(groups.reshape(-1).tolist()) == list(range(ranks.size))


def test_a_matrix_splits_every_level_as_stated() -> None:
    levels = hierarchy(4, 6)
    for matrix in matrices(axes(4, 6), levels):
        where = np.argsort(levels.ranks)
        coordinates = np.array(np.unravel_index(where, levels.sizes))  # Shape (levels, ranks).
        for axis, row in enumerate(matrix):
            for group in process_groups(mesh(levels, matrix), [axis]):
                assert tuple(len(set(digits.tolist())) for digits in coordinates[:, group]) == row


def test_filling_from_the_innermost_is_the_default_order() -> None:
    levels = Hierarchy((Level("node", 4), Level("gpu", 8)), np.arange(32))
    assert (mesh(levels, ((2, 1), (2, 1), (1, 8))).reshape(-1) == np.arange(32)).all()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("dp=4,tp=4", r"4·4 = 16, but l0:4,l1:8 has 32 devices"),
        ("dp=3,tp=8", "dp=3 fits no level of l0:4,l1:8"),
        ("dp=4,dp=8", "'dp' is named twice"),
        ("dp=0", "'dp=0' is no axis"),
        ("dp:4", "'dp:4' is no axis"),
    ],
)
def test_wrong_axes_are_refused(text: str, line: str) -> None:
    with pytest.raises(InputError, match=line):
        parse_axes(text, hierarchy(4, 8))


def test_axes_by_name() -> None:
    parsed_axes = parse_axes("pp=2,dp=2,tp=8", hierarchy(4, 8))
    assert axes_named(["tp", "pp"], parsed_axes) == (0, 2)
    for names, line in ((["td"], "did you mean tp or dp"), (["dp", "dp"], "twice"), ([], "names no axis")):
        with pytest.raises(InputError, match=line):
            axes_named(names, parsed_axes)
