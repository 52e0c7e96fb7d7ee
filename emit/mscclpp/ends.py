"""Check what is still in flight when ranks of a plan end, and whether ranks can be launches apart."""

from __future__ import annotations

import numpy as np

from emit.check.clocks import Row
from emit.findings import Findings
from emit.mscclpp.plan import ExecutionPlan
from emit.mscclpp.replay import Access, Replay

_SPELT_OUT = 8  # cautions that are written out; further ones are counted


def check_ends(run: Replay, findings: Findings, notes: list[str]) -> None:
    """Add findings and cautions for accesses that can still happen after a rank's kernel has ended.

    The caller may then use its buffers.
    """
    plan_acts, clocks, known_at_end = run.plan_acts, run.clocks, _known(run)
    reported: set[tuple[int, int, int]] = set()
    cautions: list[str] = []

    def late(cell: int, access: Access, word: str) -> None:
        """Report an access of a cell if its owner can end before it."""
        actor, tick, block, op = access[:4]
        owner = run.memory.rank(cell)
        is_own = clocks.rank[actor] == owner
        if actor < len(plan_acts.acts) and is_own:
            return
        if (len(known_at_end[owner]) and known_at_end[owner][actor] >= tick + 2) or (block, op, owner) in reported:
            return
        reported.add((block, op, owner))
        name, at = run.memory.name(cell)
        if not is_own:
            subject = f"{plan_acts.name(block, op)} {word} {name}[{at}] of rank {owner}, which can end before that"
            findings.add("race", f"{subject}; it must wait for a signal", *plan_acts.place(block, op), cell=(name, at))
        elif name != "s" or not run.memory.plan.double:  # With double scratch, the next call uses the other half.
            cautions.append(
                f"caution: rank {owner} can end while a port channel still reads {name}[{at}] for the "
                f"{plan_acts.name(block, op)} of tb {plan_acts.tb[block]} step {op}; pwsf and flush do not wait "
                "for it in the executor"
            )

    for cell, access in sorted(run.written.items()):
        late(cell, access, "writes")
    for cell, readers in sorted(run.read.items()):
        for _, access in sorted(readers.items()):
            late(cell, access, "reads")
    notes += cautions[:_SPELT_OUT]
    if len(cautions) > _SPELT_OUT:
        notes.append(f"caution: {len(cautions) - _SPELT_OUT} more of that kind")


def check_hearing(run: Replay, findings: Findings, notes: list[str]) -> None:
    """Add a finding or a caution if a rank hears nothing of another rank, and so can be two launches ahead of it.

    Such launches use the same half of scratch. A plan of packets whose channels connect the two ranks must prevent it,
    because its launches mix with those of other packet plans.
    """
    plan, first = run.memory.plan, run.clocks.first
    unaware_pairs = (
        (rank, peer)
        for rank, known_row in enumerate(_known(run))
        for peer in range(len(plan.gpus))
        if rank != peer and not (peer in first and len(known_row) and known_row[first[peer]] > run.begun[peer])
    )
    pair = next(unaware_pairs, None)
    if pair is None:
        return
    subject = f"hears nothing of rank {pair[1]} in a launch, and can be two ahead of it"
    if plan.packets and plan.double and _connected(plan, *pair):
        requirement = "it must hear that it has started, before it ends"
        findings.add("race", f"{subject}: packets that are not yet read are overwritten; {requirement}", pair[0])
    else:
        notes.append(f"caution: rank {pair[0]} {subject}, which breaks plans of packets (LL) before and after it")


def _known(run: Replay) -> list[Row]:
    """Return for each rank the events that it knows to be over when its launch ends; empty without threadblocks."""
    of_rank: list[list[int]] = [[] for _ in run.memory.plan.gpus]
    for block, rank in enumerate(run.plan_acts.rank):
        of_rank[rank].append(block)
    return [run.clocks.ended(blocks) if blocks else np.zeros(0, dtype=np.int32) for blocks in of_rank]


def _connected(plan: ExecutionPlan, rank: int, target: int) -> bool:
    """Return True if channels lead from one rank to the other, perhaps through further ranks."""
    reached, todo = {rank}, [rank]
    while todo:
        gpu = plan.gpus[todo.pop()]
        groups = [*gpu.peers.values(), *(ranks for _, ranks in gpu.switches)]
        todo += (new := {peer for peers in groups for peer in peers} - reached)
        reached |= new
    return target in reached
