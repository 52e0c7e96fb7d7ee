"""Schedules whose sends all go through a switch as execution plans: operations on switch channels, and their barriers.

A plan says a sum in the switch only together with its multicast by the rank that reads it (glres), and a multicast of
what a rank has (gstore): all-reduces, broadcasts and all-gathers, but no reduce-scatter. Each threadblock has chunks of
its own, and meets its like on all ranks before the first, since others' input must be there, and after the last, since
others write its output.
"""

from __future__ import annotations

import numpy as np

from emit.mscclpp.format import check_plan
from emit.mscclpp.memory import limit_sizes
from emit.mscclpp.plan import MAX_CHANNELS, MAX_OPS, Op, Part, Plan, PlanBlock, PlanGpu, plan_text
from synth.model.pairs import ordinary
from synth.model.registry import BUFFER, EVERY, OWN, ROOT, SHARE
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
    readers, collective = _senders(algorithm), problem.collective
    n, chunks, root = len(problem.group), collective.nchunks, collective.root
    own = collective.kind.before == OWN  # a rank's input is its share
    places = np.zeros(chunks, dtype=np.int64)
    places[collective.pre[:, 1]] = collective.in_index
    waves = [np.flatnonzero(readers == rank).tolist() for rank in range(n)]
    blocks = max(1, min(_BLOCKS, max(map(len, waves))))
    plan = Plan(name, collective.name, "Simple", inplace, [])
    for rank in range(n):
        gpu = PlanGpu(
            chunks // n if own else chunks, chunks, 0, switches=[("i", tuple(range(n))), ("o", tuple(range(n)))]
        )
        for tb in range(blocks):
            data = [_op(chunk, int(places[chunk]), sums=collective.reducing) for chunk in waves[rank][tb::blocks]]
            gpu.blocks.append(_block(gpu, n, rank, data))
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
    whole = kind.unit == BUFFER and kind.before in (EVERY, ROOT)
    able = (whole or (kind.unit, kind.before) == (SHARE, OWN)) and kind.after == EVERY and not problem.relays
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


def _op(chunk: int, at: int, *, sums: bool) -> Op:
    """What sends a chunk to all; at: its place in the sender's input."""
    source = Part("W", 0, chunk, 1) if sums else Part("L", "i", at, 1)
    return Op("glres" if sums else "gstore", (source,), (Part("W", 1, chunk, 1),), channel_type="switch")


def _block(gpu: PlanGpu, n: int, rank: int, data: list[Op]) -> PlanBlock:
    """A threadblock with these operations, and with memory channels of its own."""
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
    channels = {"memory": list(range(first, len(mine))), "switch": [0, 1]}
    return PlanBlock([*meeting, *data, _NOP, *meeting], channels)
