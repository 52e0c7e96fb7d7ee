"""What the operations of a simulator's file wait for, as both models of simulators take it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any


def order_of(ranks: Sequence[Sequence[Any]]) -> tuple[list[list[int]], list[dict[int, list[int]]]]:
    """By rank: of each operation how many others must end before it; by operation those that wait for it."""
    frees = []
    for own in ranks:
        children: dict[int, list[int]] = defaultdict(list)
        for number, one in enumerate(own):
            for other in set(one.after):
                children[other].append(number)
        frees.append(children)
    return [[len(set(one.after)) for one in own] for own in ranks], frees
