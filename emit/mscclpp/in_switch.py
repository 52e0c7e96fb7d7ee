"""Schedules whose sends all go through a switch as execution plans: operations on switch channels, and their barriers.

A plan says a sum in the switch only together with its multicast by the rank that reads it (glres), and a multicast of
what a rank has (gstore): all-reduces and broadcasts. Each threadblock has chunks of its own, and meets its like on all
ranks before the first, since others' input must be there, and after the last, since others write its output.
"""

from __future__ import annotations

import numpy as np

from emit.mscclpp.format import check_plan
from emit.mscclpp.memory import limit_sizes
from emit.mscclpp.plan import MAX_CHANNELS, MAX_OPS, Op, Part, Plan, PlanBlock, PlanGpu, plan_text
from synth.model.pairs import ordinary
from synth.model.registry import BUFFER, EVERY, ROOT
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError

_BLOCKS = 16  # threadblocks a rank: with two, the switch reduces for one while it multicasts for the other
_NOP = Op("nop")


def is_in_switch(algorithm: Algorithm) -> bool:
    """Whether it sends through switches that multicast or reduce."""
    return not ordinary(algorithm.problem.network, algorithm.schedule.link)


def write_in_switch(algorithm: Algorithm, name: str, *, inplace: bool = True) -> str:
    """The text of its plan, checked. name: of the plan.

    Raises InputError where plans cannot say it, or more than the executor holds.
    """
    problem = algorithm.problem
    readers, root = _senders(algorithm), problem.collective.root
    n, chunks = len(problem.group), problem.collective.nchunks
    waves = [np.flatnonzero(readers == rank).tolist() for rank in range(n)]
    blocks = max(1, min(_BLOCKS, max(map(len, waves))))
    plan = Plan(name, problem.collective.name, "Simple", inplace, [])
    sums = problem.collective.reducing
    for rank in range(n):
        gpu = PlanGpu(chunks, chunks, 0, switches=[("i", tuple(range(n))), ("o", tuple(range(n)))])
        for tb in range(blocks):
            gpu.blocks.append(_block(gpu, n, rank, waves[rank][tb::blocks], sums=sums))
        plan.gpus.append(gpu)
    limit_sizes(plan, 0, 0)
    most = max(len(block.ops) for gpu in plan.gpus for block in gpu.blocks)
    if most > MAX_OPS:
        raise InputError(
            f"{name}: {most} operations in a threadblock; plans take {MAX_OPS}; use fewer chunks (--chunks)"
        )
    text = plan_text(plan)
    check_plan(text, None, root).raise_if_wrong(f"execution plan of {name}")
    return text


def _senders(algorithm: Algorithm) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Of every chunk the rank that multicasts it, having read its sum where it is one."""
    problem, schedule = algorithm.problem, algorithm.schedule
    kind, h = problem.collective.kind, problem.network.hyperlinks
    able = kind.unit == BUFFER and kind.before in (EVERY, ROOT) and kind.after == EVERY and not problem.relays
    over = schedule.link - problem.network.nlinks
    wrong = (
        f"{problem.collective.name}: a plan says sums in switches only where the reader multicasts them, to all ranks"
    )
    if h is None or not able or (over < 0).any() or len(np.unique(h.group[over])) > 1:
        raise InputError(wrong)
    if len(h.members(int(over[0]))) != len(problem.group):
        raise InputError(wrong)
    found = {}
    for forth in (True, False):
        rows = np.flatnonzero(h.multicast[over] == forth)
        found[forth] = np.full(problem.collective.nchunks, -1, dtype=np.int64)
        found[forth][schedule.chunk[rows]] = h.one[over[rows]]
        if len(np.unique(schedule.chunk[rows])) < len(rows):
            raise InputError(wrong)
    if (found[True] < 0).any() or (problem.collective.reducing and not np.array_equal(found[True], found[False])):
        raise InputError(wrong)
    return found[True]


def _block(gpu: PlanGpu, n: int, rank: int, chunks: list[int], *, sums: bool) -> PlanBlock:
    """A threadblock for some chunks, with memory channels of its own."""
    peers: list[int] = []
    rounds = []
    step = 1
    while step < n:  # by dissemination: after round i a rank has heard of 2^(i + 1) - 1 others
        ends = ((rank + step) % n, (rank - step) % n)
        peers += [peer for peer in dict.fromkeys(ends) if peer not in peers]
        rounds.append(ends)
        step *= 2
    if len(peers) > MAX_CHANNELS:
        raise InputError(f"{n} ranks meet over {len(peers)} channels a threadblock; plans take {MAX_CHANNELS}")
    mine = gpu.peers.setdefault("memory", [])
    first = len(mine)
    mine += peers
    meeting: list[Op] = []
    for ends in rounds:
        to, source = (Op(word, channels=(peers.index(peer),), channel_type="memory")
                      for word, peer in zip(("signal", "wait"), ends, strict=True))  # fmt: skip
        meeting += [to, source, _NOP]  # what all threads know then is what the next signal says
    data = [
        Op(
            "glres" if sums else "gstore",
            (Part("W", 0, chunk, 1) if sums else Part("L", "i", chunk, 1),),
            (Part("W", 1, chunk, 1),),
            channel_type="switch",
        )
        for chunk in chunks
    ]
    channels = {"memory": list(range(first, len(mine))), "switch": [0, 1]}
    return PlanBlock([*meeting, *data, _NOP, *meeting], channels)
