"""What is known when the ranks of a plan end: of data that is still under way, and of ranks that are behind."""

from __future__ import annotations

import numpy as np

from emit.check.clocks import Row
from emit.findings import Findings
from emit.mscclpp.plan import Plan
from emit.mscclpp.replay import Access, Replay

_SPELT_OUT = 8  # cautions; the others are counted


def check_ends(run: Replay, found: Findings, notes: list[str]) -> None:
    """What is still under way when a rank's kernel ends meets what its caller does next with its buffers."""
    made, clocks, over = run.made, run.clocks, _known(run)
    seen: set[tuple[int, int, int]] = set()
    cautions: list[str] = []

    def late(cell: int, access: Access, word: str) -> None:
        actor, tick, block, op = access[:4]
        owner = run.memory.rank(cell)
        own = clocks.rank[actor] == owner
        if actor < len(made.acts) and own:
            return
        if (len(over[owner]) and over[owner][actor] >= tick + 2) or (block, op, owner) in seen:
            return
        seen.add((block, op, owner))
        name, at = run.memory.name(cell)
        if not own:
            what = f"{made.name(block, op)} {word} {name}[{at}] of rank {owner}, which can end before that"
            found.add("race", f"{what}; it must wait for a signal", *made.place(block, op), cell=(name, at))
        elif name != "s" or not run.memory.plan.double:  # else the next call uses the other half
            cautions.append(
                f"caution: rank {owner} can end while a port channel still reads {name}[{at}] for the "
                f"{made.name(block, op)} of tb {made.tb[block]} step {op}; pwsf and flush do not wait for it in the "
                "executor"
            )

    for cell, access in sorted(run.written.items()):
        late(cell, access, "writes")
    for cell, readers in sorted(run.read.items()):
        for _, access in sorted(readers.items()):
            late(cell, access, "reads")
    notes += cautions[:_SPELT_OUT]
    if len(cautions) > _SPELT_OUT:
        notes.append(f"caution: {len(cautions) - _SPELT_OUT} more of that kind")


def check_hearing(run: Replay, found: Findings, notes: list[str]) -> None:
    """Who hears nothing of another rank can be two launches ahead of it, where the same half of scratch is in use.

    A plan of packets that could see to it, since its channels connect the two, must: it meets others like itself.
    """
    plan, first = run.memory.plan, run.clocks.first
    deaf = (
        (rank, other)
        for rank, known in enumerate(_known(run))
        for other in range(len(plan.gpus))
        if rank != other and not (other in first and len(known) and known[first[other]] > run.begun[other])
    )
    pair = next(deaf, None)
    if pair is None:
        return
    what = f"hears nothing of rank {pair[1]} in a launch, and can be two ahead of it"
    if plan.packets and plan.double and _connected(plan, *pair):
        right = "it must hear that it has started, before it ends"
        found.add("race", f"{what}: packets that are not yet read are overwritten; {right}", pair[0])
    else:
        notes.append(f"caution: rank {pair[0]} {what}, which plans of packets (LL) before and after it do not bear")


def _known(run: Replay) -> list[Row]:
    """Of each rank what it knows to be over when its launch ends; of one without threadblocks nothing."""
    of_rank: list[list[int]] = [[] for _ in run.memory.plan.gpus]
    for block, rank in enumerate(run.made.rank):
        of_rank[rank].append(block)
    return [run.clocks.ended(blocks) if blocks else np.zeros(0, dtype=np.int32) for blocks in of_rank]


def _connected(plan: Plan, rank: int, other: int) -> bool:
    """Whether channels lead from one rank to the other, by way of others too."""
    reached, todo = {rank}, [rank]
    while todo:
        gpu = plan.gpus[todo.pop()]
        groups = [*gpu.peers.values(), *(ranks for _, ranks in gpu.switches)]
        todo += (new := {peer for peers in groups for peer in peers} - reached)
        reached |= new
    return other in reached
