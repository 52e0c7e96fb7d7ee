"""All-to-alls of unequal blocks as `synth tune` measures them: calls that state the sizes of their blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from runtime.measure.over_torch import Case, Tensor
from runtime.torch.programs.pieces import Sizes
from runtime.torch.table import SPLIT_ALLTOALL, TableCall

_SEED = 1
_OTHER_SIZES = 64  # Runs after which sizes return; a back end keeps the plans of fewer sizes than these.
_SPREAD = 0.25  # Largest relative difference of a nearly equal block from the mean.


@dataclass(frozen=True)
class SplitCase(Case):
    """All-to-alls of unequal blocks: a run makes one call of each of `matrices`.

    The size is what ranks send in the mean. In each run the last rank has a few elements more for itself, so that the
    sizes are new, as in every step of a mixture of experts, and plans must be made anew.
    """

    @property
    def name(self) -> str:
        """Return the collective's name in tables."""
        return SPLIT_ALLTOALL

    @property
    def call(self) -> TableCall:
        """Return the properties on which the choice of a method depends."""
        return super().call._replace(has_splits=True)

    @cached_property
    def matrices(self) -> list[Sizes]:
        """Return the four matrices of a run: the elements of each block, as [giving place][taking place].

        The blocks of the first differ by a quarter at most. Those of the second have sizes by Zipf's law (exponent 1)
        over all pairs of ranks. In the last two all ranks send by the same Zipf's law over the ranks that take the
        blocks (exponents 0.5 and 1), as to experts of different popularity.
        """
        draw, n = np.random.default_rng(_SEED), len(self.ranks)

        def zipf(count: int, exponent: float) -> Any:
            """Return shares of so many parts by Zipf's law, in any order."""
            shares = draw.permutation(np.arange(1.0, count + 1) ** -exponent)
            return shares / shares.sum()

        parts = [
            draw.uniform(1 - _SPREAD, 1 + _SPREAD, (n, n)),
            zipf(n * n, 1.0).reshape(n, n) * n * n,
            *(np.tile(zipf(n, exponent) * n, (n, 1)) for exponent in (0.5, 1.0)),
        ]
        return [(part * self.block).astype(np.int64).tolist() for part in parts]

    def input_of(self, rank: int) -> Tensor:
        """Build the input of the rank at a place of the group; calls use as much of it as they send."""
        count = max(sum(sizes[rank]) for sizes in self.matrices) + _OTHER_SIZES
        return ((torch.arange(count) + 3 * rank) % 4 + 1).to(self.dtype)

    def expected_output(self, me: int) -> Tensor:
        """Compute the correct result of the last call at place `me`, without the block that has other sizes in turn."""
        sizes, blocks = self.matrices[-1], []
        for rank, row in enumerate(sizes):
            begin = sum(row[:me])
            blocks.append(self.input_of(rank)[begin : begin + row[me]])
        return torch.cat(blocks[:-1] if me == len(sizes) - 1 else blocks)

    def prepare(self, me: int, group: Any) -> tuple[Callable[[], Any], Tensor, Tensor]:
        """Build the calls of torch's group, their input, and the part of the output that `expected_output` states."""
        last = len(self.ranks) - 1
        sent = [list(sizes[me]) for sizes in self.matrices]
        received = [[row[me] for row in sizes] for sizes in self.matrices]
        input_tensor = self.input_of(me)
        room = torch.zeros(max(map(sum, received)) + _OTHER_SIZES, dtype=self.dtype)
        run = 0

        def calls() -> None:
            """Make one call of each matrix, in which the last rank has other sizes than in the run before."""
            nonlocal run
            run = (run + 1) % _OTHER_SIZES
            for to_ranks, from_ranks in zip(sent, received, strict=True):
                more = run if me == last else 0
                out_sizes, in_sizes = ([*sizes[:-1], sizes[-1] + more] for sizes in (from_ranks, to_ranks))
                output, input_part = room[: sum(out_sizes)], input_tensor[: sum(in_sizes)]
                dist.all_to_all_single(output, input_part, out_sizes, in_sizes, group=group)

        return calls, input_tensor, room[: len(self.expected_output(me))]
