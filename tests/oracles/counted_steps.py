"""Collectives in groups of devices, executed on counters: how often each contribution is in each partial sum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

Memory = list[dict[int, Counter[int]]]  # [device][piece]: how often each device's contribution is in what is held


def begin(devices: int, pieces: int) -> Memory:
    """Return the memory in which every device holds its own contribution to every piece."""
    return [{piece: Counter([device]) for piece in range(pieces)} for device in range(devices)]


def run(collective: str, groups: Iterable[Sequence[int]], memory: Memory) -> Memory | None:
    """Return the memory after a collective in each group; None where a group's pieces do not fit the collective.

    The result is returned even if sums count a contribution twice.
    """
    new_memory = [dict(device_pieces) for device_pieces in memory]
    for group in groups:
        if not any(memory[device] for device in group):
            continue
        names = [sorted(memory[device]) for device in group]
        everywhere = all(device_pieces == names[0] for device_pieces in names)
        sums = {
            piece: sum((memory[d].get(piece, Counter()) for d in group), Counter())
            for device_pieces in names
            for piece in device_pieces
        }
        if collective in ("allreduce", "reduce", "reducescatter"):
            if not everywhere or (collective == "reducescatter" and len(names[0]) % len(group)):
                return None
            share = len(names[0]) // len(group)
            for place, device in enumerate(group):
                kept_pieces = names[0]
                if collective == "reducescatter":
                    kept_pieces = names[0][place * share : (place + 1) * share]
                new_memory[device] = {piece: sums[piece] for piece in kept_pieces}
                if collective == "reduce" and place:
                    new_memory[device] = {}
        elif collective == "allgather":
            if len({len(device_pieces) for device_pieces in names}) > 1 or len(sums) < sum(map(len, names)):
                return None
            for device in group:
                new_memory[device] = dict(sums)
        else:
            for device in group:
                new_memory[device] = dict(memory[group[0]])
    return new_memory


def is_right(memory: Memory, group: Sequence[int]) -> bool:
    """Return whether every device holds every piece with each contribution of its group exactly once."""
    pieces = range(group.count(group[0]))
    return all(
        content == {piece: Counter(d for d, g in enumerate(group) if g == group[device]) for piece in pieces}
        for device, content in enumerate(memory)
    )
