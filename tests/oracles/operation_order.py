"""The order of the operations in a simulator's file, in the form that both simulator models need."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any


def order_of(ranks: Sequence[Sequence[Any]]) -> tuple[list[list[int]], list[dict[int, list[int]]]]:
    """Return how many operations each one waits for, and which operations wait for it.

    Returns:
        By rank, the number of operations that must end before each operation; and by rank, a dictionary from an
        operation to the operations that wait for it.
    """
    frees = []
    for operations in ranks:
        children: dict[int, list[int]] = defaultdict(list)
        for number, operation in enumerate(operations):
            for earlier in set(operation.after):
                children[earlier].append(number)
        frees.append(children)
    return [[len(set(operation.after)) for operation in operations] for operations in ranks], frees
