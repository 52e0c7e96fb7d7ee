"""Chunks of different sizes in cells of one size: nothing overlaps, nothing is lost, and the padding is as stated."""

import numpy as np
import pytest

from synth.model.collective import Collective, named, uneven
from synth.model.common_chunk import CommonChunk, common_chunk

EVEN = [[0, 4096, 8192, 1024], [2048, 0, 4096, 512], [1024, 6144, 0, 3072], [4096, 1024, 2048, 0]]
ODD = [[0, 4097, 8191, 1024], [2047, 0, 4099, 513], [1021, 6144, 0, 3071], [4096, 1024, 2047, 0]]


def check_layout(whole: Collective, common: CommonChunk) -> None:
    """Check that every chunk has contiguous room for its bytes, and that no two chunks of a buffer overlap."""
    cells = common.cells
    assert (common.count * cells.fraction[0] >= whole.fraction * (1 - 1e-9)).all()
    sides = ((whole.pre, cells.pre, cells.in_index), (whole.post, cells.post, cells.out_index))
    for before, rows, places in sides:
        assert len(rows) == common.count[before[:, 1]].sum()
        where = {(int(r), int(c)): int(at) for (r, c), at in zip(rows, places, strict=True)}
        assert len({(r, at) for (r, _), at in where.items()}) == len(rows)
        for rank, chunk in before.tolist():
            first = int(common.first[chunk])
            own = [where[rank, first + j] for j in range(int(common.count[chunk]))]
            assert own == list(range(own[0], own[0] + len(own)))


def test_a_common_divisor_is_exact() -> None:
    whole = uneven("alltoallv", EVEN)
    common = common_chunk(whole)
    check_layout(whole, common)
    assert common.padding == 0
    assert common.count.tolist() == [n // 512 for row in EVEN for n in row if n]


@pytest.mark.parametrize("most", [100, 1024])
def test_without_a_common_divisor_blocks_are_padded_as_stated(most: int) -> None:
    whole = uneven("alltoallv", ODD)
    common = common_chunk(whole, most)
    check_layout(whole, common)
    assert 0 < common.padding < 10 / most
    most_cells = max(np.bincount(rows[:, 0]).max() for rows in (common.cells.pre, common.cells.post))
    assert most_cells <= most + len(ODD)
    assert 1 / (most_cells * common.cells.fraction[0]) == pytest.approx(1 - common.padding)


def test_equal_chunks_stay() -> None:
    whole = named("alltoall", 4, 3)
    assert common_chunk(whole).cells is whole
