"""Schedules whose sends all go through a switch as execution plans: operations on switch channels, and their barriers.

A plan says a sum in the switch only together with its multicast by the rank that reads it (glres), and a multicast of
what a rank has (gstore): all-reduces, broadcasts and all-gathers, but no reduce-scatter. Each threadblock has chunks of
its own. Ranks meet before the first, since others' input must be there, and after the last, since others write its
output; a rank's threadblocks have the others between them, so that this takes the latency of one signal.
"""

from __future__ import annotations

import numpy as np

from emit.mscclpp.as_program import header
from emit.mscclpp.format import check_plan
from emit.mscclpp.memory import limit_sizes
from emit.mscclpp.plan import MAX_CHANNELS, MAX_OP_CHANNELS, MAX_OPS, Op, Part, Plan, PlanBlock, PlanGpu, plan_text
from emit.mscclpp.read import read_plan
from emit.program import Program
from synth.model.common_chunk import CommonChunk, common_chunk
from synth.model.pairs import ordinary
from synth.model.registry import BUFFER, EVERY, OWN, ROOT, SHARE
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError

_BLOCKS = 16  # threadblocks a rank: with two, the switch reduces for one while it multicasts for the other


def is_in_switch(algorithm: Algorithm) -> bool:
    """Whether it sends through switches that multicast or reduce."""
    return not ordinary(algorithm.problem.network, algorithm.schedule.link)


def write_in_switch(
    algorithm: Algorithm, name: str, *, inplace: bool = True, common: CommonChunk | None = None, sms: int = 0
) -> str:
    """The text of its plan, checked. name: of the plan.

    common: the cells of its chunks; None: one each, as far as these are of one size. sms: threadblocks that a rank may
    have; 0: any number. Raises InputError where plans cannot say it, or more than the executor holds.
    """
    problem = algorithm.problem
    readers, collective = _senders(algorithm), problem.collective
    common = common or common_chunk(collective)
    n, cells, root = len(problem.group), common.cells, collective.root
    own = collective.kind.before == OWN  # a rank's input is its share
    places = np.zeros(cells.nchunks, dtype=np.int64)
    places[cells.pre[:, 1]] = cells.in_index
    waves = [np.flatnonzero(readers == rank).tolist() for rank in range(n)]
    parts = max(1, min(_BLOCKS, sms or _BLOCKS, max(map(len, waves))))
    blocks = max(parts, -(-(n - 1) // MAX_CHANNELS))
    plan = Plan(name, collective.name, "Simple", inplace, [])
    for rank in range(n):
        gpu = PlanGpu(
            cells.nchunks // n if own else cells.nchunks,
            cells.nchunks,
            0,
            switches=[("i", tuple(range(n))), ("o", tuple(range(n)))],
        )
        for tb in range(blocks):
            data = [
                _op(int(common.first[chunk]), int(places[common.first[chunk]]), count, sums=collective.reducing)
                for chunk in (waves[rank][tb::parts] if tb < parts else ())
                if (count := int(common.count[chunk]))
            ]
            others = [(rank + step) % n for step in range(1 + tb, n, blocks)]
            gpu.blocks.append(_block(gpu, others, data, blocks))
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


def write_program(algorithm: Algorithm, common: CommonChunk, inplace: bool, sms: int) -> tuple[str, Program]:
    """The text of its plan, and what that says of itself; arguments and errors as those of `write_in_switch`."""
    collective = algorithm.problem.collective
    text = write_in_switch(algorithm, collective.name, inplace=inplace, common=common, sms=sms)
    return text, header(read_plan(text), collective.root)


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


def _op(first: int, at: int, count: int, *, sums: bool) -> Op:
    """What sends `count` cells to all; at: the place of the first in the sender's input."""
    source = Part("W", 0, first, count) if sums else Part("L", "i", at, count)
    return Op("glres" if sums else "gstore", (source,), (Part("W", 1, first, count),), channel_type="switch")


def _block(gpu: PlanGpu, peers: list[int], data: list[Op], blocks: int) -> PlanBlock:
    """A threadblock with these operations, one of so many of its rank, that hears of `peers`."""
    mine = gpu.peers.setdefault("memory", [])
    channels = {"memory": list(range(len(mine), len(mine) + len(peers))), "switch": [0, 1]}
    mine += peers
    meeting = [
        Op(word, channels=tuple(range(len(peers))[low : low + MAX_OP_CHANNELS]), channel_type="memory")
        for word in ("signal", "wait")
        for low in range(0, len(peers), MAX_OP_CHANNELS)
    ]
    # all threads of all threadblocks know then what one has heard, and have done what one says
    joined = Op("barrier", barrier=0, blocks=blocks) if blocks > 1 else Op("nop")
    return PlanBlock([*meeting, joined, *data, joined, *meeting], channels)
