"""One rank that runs random programs of calls on overlapping groups and several back ends: run by a test.

python -m tests.runtime.torch.several_backends PROGRAMS SEED RANK RANKS ADDRESS RESULT
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import synth.torch as ours

NAMES = ("gloo", "synth", "second", "third")
KINDS = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "broadcast")


def another_gloo(store: Any, rank: int, ranks: int, timeout: timedelta) -> Any:
    return dist.ProcessGroupGloo(store, rank, ranks, timeout=timeout)


def begun(kind: str, group: Any, members: list[int], count: int, number: int) -> tuple[Any, Callable[[], bool]]:
    """Start a call with async_op, and return its work and what tells whether its result is right."""
    me, n = members.index(dist.get_rank()), len(members)
    values = [torch.arange(count * n, dtype=torch.int64) + 1000 * number + 7 * rank for rank in members]
    total = sum(values[1:], start=values[0].clone())
    tensor = values[me].clone()
    if kind == "all_reduce":
        return dist.all_reduce(tensor, group=group, async_op=True), lambda: torch.equal(tensor, total)
    if kind == "broadcast":
        work = dist.broadcast(tensor, members[-1], group=group, async_op=True)
        return work, lambda: torch.equal(tensor, values[-1])
    if kind == "all_gather_into_tensor":
        wide = torch.empty(count * n * n, dtype=torch.int64)
        work = dist.all_gather_into_tensor(wide, tensor, group=group, async_op=True)
        return work, lambda: torch.equal(wide, torch.cat(values))
    output = torch.empty(count if kind == "reduce_scatter_tensor" else count * n, dtype=torch.int64)
    if kind == "reduce_scatter_tensor":
        work = dist.reduce_scatter_tensor(output, tensor, group=group, async_op=True)
        return work, lambda: torch.equal(output, total[me * count : (me + 1) * count])
    work = dist.all_to_all_single(output, tensor, group=group, async_op=True)
    return work, lambda: torch.equal(output, torch.cat([v[me * count : (me + 1) * count] for v in values]))


def run_program(generator: random.Random, groups: list[tuple[list[int], Any]], me: int) -> list[str]:
    """Start some random calls, wait for them in an order of this rank's own, and return what was wrong."""
    calls = []
    for number in range(generator.randrange(2, 9)):
        members, group = generator.choice(groups)
        kind, name, count = generator.choice(KINDS), generator.choice(NAMES), generator.choice([1, 3, 64, 2000])
        if me in members:
            with ours.using(name):
                work, is_right = begun(kind, group, members, count, number)
            calls.append((f"{kind} of {members} on {name}", work, is_right))
    random.Random(me).shuffle(calls)
    for _, work, _ in calls:
        work.wait()
    return [text for text, _, is_right in calls if not is_right()]


def main(programs: str, seed: str, rank: str, ranks: str, address: str, result: str) -> None:
    for name in NAMES[2:]:
        ours.register(name, another_gloo)
    me, n = int(rank), int(ranks)
    limit = timedelta(seconds=60)
    dist.init_process_group("cpu:synth", init_method=address, rank=me, world_size=n, timeout=limit)
    generator = random.Random(int(seed))
    groups: list[tuple[list[int], Any]] = [(list(range(n)), None)]
    for size in range(2, n):
        members = sorted(generator.sample(range(n), size))
        groups.append((members, dist.new_group(members)))
    wrong = [text for _ in range(int(programs)) for text in run_program(generator, groups, me)]
    served: Counter[str] = Counter()
    for row in ours.statistics()["calls"]:
        served[row["backend"].split()[0]] += row["calls"]
    Path(result).write_text(json.dumps({"wrong": wrong[:5], "served": served}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
