"""Ways to plant faults in a plan's parsed JSON: each yields (rank, tb, faulty plan) with the fault's place."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

from emit.mscclpp.plan import ExecutionPlan, PlanBlock

Json = dict[str, Any]
FaultyPlan = tuple[int, int, Json]
DATA = ("copy", "put", "pws", "get", "re", "res", "rre", "rres")
PACKETS = ("cpkt", "upkt", "ppkt", "rppkt", "repkt", "recpkt", "respkt")


def places(plan: Json) -> list[tuple[int, int, int]]:
    """Return (rank, tb, operation) of all operations."""
    return [
        (r, t, k)
        for r, gpu in enumerate(plan["gpus"])
        for t, tb in enumerate(gpu["threadblocks"])
        for k in range(len(tb["ops"]))
    ]


def op_at(plan: Json, place: tuple[int, int, int]) -> Json:
    operation: Json = plan["gpus"][place[0]]["threadblocks"][place[1]]["ops"][place[2]]
    return operation


def without(plan: Json, names: Collection[str]) -> Iterator[FaultyPlan]:
    """Remove one operation of these names, or one of its channel or semaphore ids."""
    for r, t, k in places(plan):
        op = op_at(plan, (r, t, k))
        if op["name"] not in names:
            continue
        for n in range(max(1, len(op.get("channel_ids", op.get("semaphore_ids", ()))))):
            changed_plan = copy.deepcopy(plan)
            ids = op_at(changed_plan, (r, t, k)).get(
                "channel_ids", op_at(changed_plan, (r, t, k)).get("semaphore_ids", [])
            )
            if len(ids) > 1:
                del ids[n]
            else:
                del changed_plan["gpus"][r]["threadblocks"][t]["ops"][k]
            yield r, t, changed_plan


def changed(plan: Json, names: Collection[str], change: Callable[[Json, Json], bool]) -> Iterator[FaultyPlan]:
    """Apply `change(operation, gpu)` to each operation of these names, where it returns True."""
    for place in places(plan):
        if op_at(plan, place)["name"] in names:
            changed_plan = copy.deepcopy(plan)
            if change(op_at(changed_plan, place), changed_plan["gpus"][place[0]]):
                yield place[0], place[1], changed_plan


def swapped(plan: Json, first: Collection[str], second: Collection[str]) -> Iterator[FaultyPlan]:
    """Place an operation of `first` behind the next one of `second` in its threadblock."""
    for r, t, k in places(plan):
        ops = plan["gpus"][r]["threadblocks"][t]["ops"]
        if ops[k]["name"] not in first:
            continue
        later = next((n for n in range(k + 1, len(ops)) if ops[n]["name"] in second), None)
        if later is not None:
            changed_plan = copy.deepcopy(plan)
            changed_ops = changed_plan["gpus"][r]["threadblocks"][t]["ops"]
            changed_ops.insert(later, changed_ops.pop(k))
            yield r, t, changed_plan


def crossed(plan: Json) -> Iterator[FaultyPlan]:
    """Make two threadblocks of two ranks wait for each other's last signal before their first operation."""
    tops = [(r, t) for r, gpu in enumerate(plan["gpus"]) for t in range(len(gpu["threadblocks"]))]
    for (r, t), (q, u) in zip(tops, tops[len(tops) // 2 :], strict=False):
        if r == q:
            continue
        changed_plan = copy.deepcopy(plan)
        for rank, tb, peer in ((r, t, q), (q, u, r)):
            gpu = changed_plan["gpus"][rank]
            block = gpu["threadblocks"][tb]
            gpu["channels"].append({"channel_type": "memory", "connected_to": [peer]})
            number = sum(len(c["connected_to"]) for c in gpu["channels"] if c["channel_type"] == "memory") - 1
            used = sum(len(c["channel_ids"]) for c in block["channels"] if c["channel_type"] == "memory")
            block["channels"].append({"channel_type": "memory", "channel_ids": [number]})
            meet = {"channel_ids": [used], "channel_type": "memory"}
            block["ops"] = [{"name": "wait"} | meet, {"name": "nop"}, *block["ops"], {"name": "nop"}]
            block["ops"].append({"name": "signal"} | meet)
        yield r, t, changed_plan


def at_random(plan: Json, rng: random.Random) -> Json:
    """Make one small change at a random place; the plan may still be right."""
    changed_plan = copy.deepcopy(plan)
    place = rng.choice(places(changed_plan))
    ops = changed_plan["gpus"][place[0]]["threadblocks"][place[1]]["ops"]
    op = ops[place[2]]
    parts = [*op.get("src_buff", ()), *op.get("dst_buff", ())]
    kind = rng.randrange(5)
    if kind == 0:
        del ops[place[2]]
    elif kind == 1:
        second = rng.randrange(len(ops))
        ops[place[2]], ops[second] = ops[second], ops[place[2]]
    elif kind == 2 and parts:
        part = rng.choice(parts)
        part["index"] = max(0, part["index"] + rng.choice((-1, 1)))
    elif kind == 3 and parts:
        part = rng.choice([p for p in parts if "type" in p] or parts)
        if "type" in part:
            part["type"] = rng.choice("ios")
    else:
        ops.insert(rng.randrange(len(ops) + 1), {"name": "nop"})
    return changed_plan


def uneven_scratch(plan: Json) -> Iterator[Json]:
    """Give one rank more double scratch than the others."""
    for rank in range(len(plan["gpus"]) if plan["use_double_scratch_buffer"] else 0):
        changed_plan = copy.deepcopy(plan)
        changed_plan["gpus"][rank]["scratch_chunks"] += 8
        yield changed_plan


def beyond_offsets(plan: Json) -> Iterator[Json]:
    """Accept messages whose offsets exceed 32 bits."""
    for size in (4 << 30, 8 << 30, 1 << 40):
        yield plan | {"max_message_size": size}


def beyond_int(plan: Json) -> Iterator[Json]:
    """Set a smallest message that is read as a negative number."""
    yield plan | {"min_message_size": 1 << 31}


def single_scratch(plan: Json) -> Iterator[Json]:
    """Use one scratch buffer, so that packets of the next launch overwrite unread ones."""
    if plan["use_double_scratch_buffer"]:
        yield plan | {"use_double_scratch_buffer": False}


def unheard(plan: Json) -> Iterator[Json]:
    """Remove signals and waits, so that ranks run ahead of others."""
    changed_plan = copy.deepcopy(plan)
    if not changed_plan["use_double_scratch_buffer"]:
        return
    for gpu in changed_plan["gpus"]:
        for block in gpu["threadblocks"]:
            block["ops"] = [op for op in block["ops"] if op["name"] not in ("signal", "wait")]
    if changed_plan != plan:
        yield changed_plan


def unmet(plan: Json) -> Iterator[Json]:
    """Remove the last threadblocks, by which ranks of a broadcast or reduce learn that all others have started."""
    if plan["collective"] not in ("broadcast", "reduce"):  # Other collectives need no such threadblocks.
        return
    changed_plan = copy.deepcopy(plan)
    for gpu in changed_plan["gpus"]:
        last = gpu["threadblocks"].pop()
        assert {op["name"] for op in last["ops"]} <= {"signal", "wait", "nop"}
    yield changed_plan


def unordered(plan: Json) -> Iterator[Json]:
    """Remove a rank's waits before or after its data in a plan in switches, so that it runs ahead or behind."""
    for rank in range(len(plan["gpus"])):
        for first in (True, False):
            changed_plan = copy.deepcopy(plan)
            blocks = changed_plan["gpus"][rank]["threadblocks"]
            for block in blocks:
                ops = block["ops"]
                waits = [k for k, op in enumerate(ops) if op["name"] == "wait"]
                half = [k for k in waits if (k < len(ops) // 2) == first]
                block["ops"] = [op for k, op in enumerate(ops) if k not in half]
            yield changed_plan


# Faults that the first launch, a small message or a single plan does not show.
LATER_FAULTS: dict[str, Callable[[Json], Iterator[Json]]] = {
    "scratch of another size on one rank": uneven_scratch,
    "offsets beyond 32 bits": beyond_offsets,
    "a smallest message beyond an int": beyond_int,
    "one scratch for all launches": single_scratch,
    "launches ahead of other ranks": unheard,
    "launches ahead of ranks that it does not write to": unmet,
}


def with_changed_op(plan: ExecutionPlan, rng: random.Random) -> ExecutionPlan:
    """Return a plan with one changed operation of a rank that has any."""
    gpus = list(plan.gpus)
    rank = rng.choice([rank for rank, gpu in enumerate(gpus) if any(block.ops for block in gpu.blocks)])
    blocks = list(gpus[rank].blocks)
    at = rng.choice([at for at, block in enumerate(blocks) if block.ops])
    ops = list(blocks[at].ops)
    n = rng.randrange(len(ops))
    fault = rng.choice(("drop", "swap", "repeat", "src", "dst"))
    op = ops[n]
    if fault == "drop":
        del ops[n]
    elif fault == "swap":
        m = rng.randrange(len(ops))
        ops[n], ops[m] = ops[m], ops[n]
    elif fault == "repeat":
        ops.insert(n, op)
    elif op.src:
        parts = [part._replace(first=max(0, part.first + rng.choice((-1, 1)))) for part in getattr(op, fault)]
        ops[n] = op._replace(**{fault: parts})
    blocks[at] = PlanBlock(ops, blocks[at].channels, blocks[at].buffers)
    gpus[rank] = replace(gpus[rank], blocks=blocks)
    return replace(plan, gpus=gpus)
