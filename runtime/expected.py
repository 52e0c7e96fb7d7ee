"""What a collective must leave behind, computed from its goal alone: nothing here looks at a program's steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from emit.goal import Goal
from runtime.buffers import Layout
from runtime.dtypes import Array, average, narrow, reducer, widen


def make_input(layout: Layout, rank: int, kind: str, op: str, seed: int = 0) -> Array:
    """An input buffer of small numbers whose reductions are exact in every type."""
    rng = np.random.default_rng([seed, rank])
    values = rng.integers(1, 3 if op == "prod" else 5, layout.sizes(rank)[0])
    return narrow(values.astype(np.float32), kind)


def count_wrong(
    goal: Goal,
    layout: Layout,
    given: Sequence[Array],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    kind: str,
    op: str,
) -> int:
    """How many elements of the results are not what they must be; averages are compared within a rounding.

    given: per rank the input as it was before. inputs, outputs: the buffers afterwards.
    """
    reduce = reducer(op, kind)
    place = {}
    for rank, buffer, index, source, chunk in zip(*(c.tolist() for c in goal.initial), strict=True):
        if buffer == 0:
            place[source, chunk] = (rank, index)
    wrong = 0
    made: dict[int, Array] = {}
    for rank, buffer, index, number in zip(*(c.tolist() for c in goal.required), strict=True):
        if number not in made:
            parts = []
            for row in range(int(goal.sets.start[number]), int(goal.sets.start[number + 1])):
                r, at = place[int(goal.sets.source[row]), int(goal.sets.chunk[row])]
                first, end = layout.spans(at + 1)[at : at + 2].tolist()
                parts.append(given[r][first:end])
            total = parts[0].copy()
            for part in parts[1:]:
                reduce(total, part, total)
            if op == "avg" and len(parts) > 1:
                average(total, kind, layout.program.nranks)
            made[number] = total
        first, end = layout.spans(index + 1)[index : index + 2].tolist()
        has = (inputs, outputs)[buffer][rank][first:end]
        want = made[number]
        if has.shape != want.shape:
            wrong += max(has.size, want.size)
        elif op == "avg":
            close = np.isclose(widen(has, kind).astype(float), widen(want, kind).astype(float), rtol=1e-2)
            wrong += int((~close).sum())
        else:
            wrong += int((has != want).sum())
    return wrong
