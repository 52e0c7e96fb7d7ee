"""Ways to spoil a plan, on its parsed JSON: each yields (rank, tb, spoilt plan), the place where it was spoilt."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Collection, Iterator
from typing import Any

Json = dict[str, Any]
Spoilt = tuple[int, int, Json]
DATA = ("copy", "put", "pws", "get", "re", "res", "rre", "rres")
PACKETS = ("cpkt", "upkt", "ppkt", "rppkt", "repkt", "recpkt", "respkt")


def places(plan: Json) -> list[tuple[int, int, int]]:
    """(rank, tb, operation) of all operations."""
    return [
        (r, t, k)
        for r, gpu in enumerate(plan["gpus"])
        for t, tb in enumerate(gpu["threadblocks"])
        for k in range(len(tb["ops"]))
    ]


def op_at(plan: Json, place: tuple[int, int, int]) -> Json:
    found: Json = plan["gpus"][place[0]]["threadblocks"][place[1]]["ops"][place[2]]
    return found


def without(plan: Json, names: Collection[str]) -> Iterator[Spoilt]:
    """One operation of these names, or one of the ids that it is about, left out."""
    for r, t, k in places(plan):
        op = op_at(plan, (r, t, k))
        if op["name"] not in names:
            continue
        for n in range(max(1, len(op.get("channel_ids", op.get("semaphore_ids", ()))))):
            made = copy.deepcopy(plan)
            ids = op_at(made, (r, t, k)).get("channel_ids", op_at(made, (r, t, k)).get("semaphore_ids", []))
            if len(ids) > 1:
                del ids[n]
            else:
                del made["gpus"][r]["threadblocks"][t]["ops"][k]
            yield r, t, made


def changed(plan: Json, names: Collection[str], change: Callable[[Json, Json], bool]) -> Iterator[Spoilt]:
    """Every operation of these names as `change(operation, its gpu)` leaves it, where it says that it did."""
    for place in places(plan):
        if op_at(plan, place)["name"] in names:
            made = copy.deepcopy(plan)
            if change(op_at(made, place), made["gpus"][place[0]]):
                yield place[0], place[1], made


def swapped(plan: Json, first: Collection[str], second: Collection[str]) -> Iterator[Spoilt]:
    """An operation of `first` put after the next one of `second` in its threadblock."""
    for r, t, k in places(plan):
        ops = plan["gpus"][r]["threadblocks"][t]["ops"]
        if ops[k]["name"] not in first:
            continue
        later = next((n for n in range(k + 1, len(ops)) if ops[n]["name"] in second), None)
        if later is not None:
            made = copy.deepcopy(plan)
            moved = made["gpus"][r]["threadblocks"][t]["ops"]
            moved.insert(later, moved.pop(k))
            yield r, t, made


def crossed(plan: Json) -> Iterator[Spoilt]:
    """Two threadblocks of two ranks that each wait, before all else, for what the other does after all else."""
    tops = [(r, t) for r, gpu in enumerate(plan["gpus"]) for t in range(len(gpu["threadblocks"]))]
    for (r, t), (q, u) in zip(tops, tops[len(tops) // 2 :], strict=False):
        if r == q:
            continue
        made = copy.deepcopy(plan)
        for rank, tb, peer in ((r, t, q), (q, u, r)):
            gpu = made["gpus"][rank]
            block = gpu["threadblocks"][tb]
            gpu["channels"].append({"channel_type": "memory", "connected_to": [peer]})
            number = sum(len(c["connected_to"]) for c in gpu["channels"] if c["channel_type"] == "memory") - 1
            used = sum(len(c["channel_ids"]) for c in block["channels"] if c["channel_type"] == "memory")
            block["channels"].append({"channel_type": "memory", "channel_ids": [number]})
            meet = {"channel_ids": [used], "channel_type": "memory"}
            block["ops"] = [{"name": "wait"} | meet, {"name": "nop"}, *block["ops"], {"name": "nop"}]
            block["ops"].append({"name": "signal"} | meet)
        yield r, t, made


def at_random(plan: Json, rng: random.Random) -> Json:
    """One small change anywhere; the plan that comes of it may still be right."""
    made = copy.deepcopy(plan)
    place = rng.choice(places(made))
    ops = made["gpus"][place[0]]["threadblocks"][place[1]]["ops"]
    op = ops[place[2]]
    parts = [*op.get("src_buff", ()), *op.get("dst_buff", ())]
    kind = rng.randrange(5)
    if kind == 0:
        del ops[place[2]]
    elif kind == 1:
        other = rng.randrange(len(ops))
        ops[place[2]], ops[other] = ops[other], ops[place[2]]
    elif kind == 2 and parts:
        part = rng.choice(parts)
        part["index"] = max(0, part["index"] + rng.choice((-1, 1)))
    elif kind == 3 and parts:
        part = rng.choice([p for p in parts if "type" in p] or parts)
        if "type" in part:
            part["type"] = rng.choice("ios")
    else:
        ops.insert(rng.randrange(len(ops) + 1), {"name": "nop"})
    return made


def uneven_scratch(plan: Json) -> Iterator[Json]:
    """One rank has more double scratch than the others."""
    for rank in range(len(plan["gpus"]) if plan["use_double_scratch_buffer"] else 0):
        made = copy.deepcopy(plan)
        made["gpus"][rank]["scratch_chunks"] += 8
        yield made


def beyond_offsets(plan: Json) -> Iterator[Json]:
    """Messages for which 32 bits do not hold the offsets."""
    for size in (4 << 30, 8 << 30, 1 << 40):
        yield plan | {"max_message_size": size}


def beyond_int(plan: Json) -> Iterator[Json]:
    """A smallest message that is read as less than 0."""
    yield plan | {"min_message_size": 1 << 31}


def single_scratch(plan: Json) -> Iterator[Json]:
    """Packets of the next launch overwrite those that are not yet read."""
    if plan["use_double_scratch_buffer"]:
        yield plan | {"use_double_scratch_buffer": False}


def unheard(plan: Json) -> Iterator[Json]:
    """Ranks no longer hear that others have begun, or are done: they run ahead."""
    made = copy.deepcopy(plan)
    if not made["use_double_scratch_buffer"]:
        return
    for gpu in made["gpus"]:
        for block in gpu["threadblocks"]:
            block["ops"] = [op for op in block["ops"] if op["name"] not in ("signal", "wait")]
    if made != plan:
        yield made


def unmet(plan: Json) -> Iterator[Json]:
    """Without the threadblocks, the last of few ranks, by which they hear that all others have started."""
    if plan["collective"] not in ("broadcast", "reduce"):  # in others they hear of all by what they receive
        return
    made = copy.deepcopy(plan)
    for gpu in made["gpus"]:
        last = gpu["threadblocks"].pop()
        assert {op["name"] for op in last["ops"]} <= {"signal", "wait", "nop"}
    yield made


def unordered(plan: Json) -> Iterator[Json]:
    """A rank of a plan in switches meets no others before its data, or after it: they may run ahead or behind."""
    for rank in range(len(plan["gpus"])):
        for first in (True, False):
            made = copy.deepcopy(plan)
            blocks = made["gpus"][rank]["threadblocks"]
            for block in blocks:
                ops = block["ops"]
                waits = [k for k, op in enumerate(ops) if op["name"] == "wait"]
                half = [k for k in waits if (k < len(ops) // 2) == first]
                block["ops"] = [op for k, op in enumerate(ops) if k not in half]
            yield made


# What the first launch, a small message or a single plan does not show.
LATER_FAULTS: dict[str, Callable[[Json], Iterator[Json]]] = {
    "scratch of another size on one rank": uneven_scratch,
    "offsets beyond 32 bits": beyond_offsets,
    "a smallest message beyond an int": beyond_int,
    "one scratch for all launches": single_scratch,
    "launches ahead of other ranks": unheard,
    "launches ahead of ranks that it does not write to": unmet,
}
