"""Collectives in groups of devices, executed on counters: how often each contribution is in each partial sum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

Memory = list[dict[int, Counter[int]]]  # [device][piece]: how often each device's contribution is in what is held


def begin(devices: int, pieces: int) -> Memory:
    return [{piece: Counter([device]) for piece in range(pieces)} for device in range(devices)]


def run(collective: str, groups: Iterable[Sequence[int]], memory: Memory) -> Memory | None:
    """What is held afterwards, whatever it is worth; None where the devices have nothing in common to work on."""
    after = [dict(own) for own in memory]
    for group in groups:
        if not any(memory[device] for device in group):
            continue
        names = [sorted(memory[device]) for device in group]
        everywhere = all(own == names[0] for own in names)
        sums = {
            piece: sum((memory[d].get(piece, Counter()) for d in group), Counter()) for own in names for piece in own
        }
        if collective in ("allreduce", "reduce", "reducescatter"):
            if not everywhere or (collective == "reducescatter" and len(names[0]) % len(group)):
                return None
            share = len(names[0]) // len(group)
            for place, device in enumerate(group):
                kept = names[0]
                if collective == "reducescatter":
                    kept = names[0][place * share : (place + 1) * share]
                after[device] = {piece: sums[piece] for piece in kept}
                if collective == "reduce" and place:
                    after[device] = {}
        elif collective == "allgather":
            if len({len(own) for own in names}) > 1 or len(sums) < sum(map(len, names)):
                return None
            for device in group:
                after[device] = dict(sums)
        else:
            for device in group:
                after[device] = dict(memory[group[0]])
    return after


def is_right(memory: Memory, group: Sequence[int]) -> bool:
    """Whether every device holds every piece with each contribution of its own group, each exactly once."""
    pieces = range(group.count(group[0]))
    return all(
        own == {piece: Counter(d for d, g in enumerate(group) if g == group[device]) for piece in pieces}
        for device, own in enumerate(memory)
    )
