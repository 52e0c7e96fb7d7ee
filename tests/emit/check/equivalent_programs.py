"""Changes of a program that keep its meaning: steps moved, threadblocks split, chunks refined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from emit.program import Gpu, Program, Step, ThreadBlock

Places = Callable[[int, int], tuple[int, int] | None]


def with_blocks(program: Program, rank: int, blocks: list[ThreadBlock]) -> Program:
    gpus = list(program.gpus)
    gpus[rank] = replace(gpus[rank], threadblocks=blocks)
    return replace(program, gpus=gpus)


def renumbered(program: Program, rank: int, blocks: list[ThreadBlock], place: Places) -> Program:
    """Set a rank's threadblocks and redirect dependencies to where `place(tb, step)` says that a step moved."""
    new = []
    for block in blocks:
        steps = []
        for s in block.steps:
            to = place(s.dep_tb, s.dep_step) if s.dep_tb >= 0 and s.dep_step >= 0 else None
            steps.append(s if to is None else replace(s, dep_tb=to[0], dep_step=to[1]))
        new.append(replace(block, steps=steps))
    return with_blocks(program, rank, new)


def reordered(program: Program, rank: int, tb: int, order: list[int]) -> Program:
    """Return the program with a threadblock's steps in another order, some missing or repeated; waits follow."""
    blocks = list(program.gpus[rank].threadblocks)
    steps = blocks[tb].steps
    blocks[tb] = replace(blocks[tb], steps=[steps[x] for x in order])
    went = {x: position for position, x in enumerate(order)}
    return renumbered(program, rank, blocks, lambda t, s: (t, went[s]) if t == tb and s in went else None)


def awaited(program: Program, rank: int, tb: int) -> set[int]:
    """Return the positions of the threadblock's steps that other steps wait for."""
    blocks = program.gpus[rank].threadblocks
    return {s.dep_step for b in blocks for s in b.steps if s.dep_tb == tb}


def cut_in_two(program: Program, rank: int, tb: int, at: int) -> Program:
    """Return the program with the steps from `at` on in a new threadblock, which waits for the first part."""
    blocks = list(program.gpus[rank].threadblocks)
    old, last = blocks[tb], len(blocks)
    head, tail = list(old.steps[:at]), list(old.steps[at:])
    head[-1] = replace(head[-1], has_dep=True)
    wait = Step("nop", dep_tb=tb, dep_step=at - 1)
    if tail[0].dep_tb < 0:
        tail[0] = replace(tail[0], dep_tb=tb, dep_step=at - 1)
        shift = 0
    else:
        tail.insert(0, wait)
        shift = 1
    blocks[tb] = replace(old, steps=head)
    blocks.append(replace(old, steps=tail))

    def place(t: int, s: int) -> tuple[int, int] | None:
        return (last, s - at + shift) if t == tb and s >= at else None

    return renumbered(program, rank, blocks, place)


def finer(program: Program, times: int) -> Program:
    """Split every chunk into `times` parts, each moved by a step of its own."""
    gpus = []
    for gpu in program.gpus:
        ends: list[list[int]] = []
        for block in gpu.threadblocks:
            last, end_of_step = -1, []
            for s in block.steps:
                last += max(1, s.count * times)
                end_of_step.append(last)
            ends.append(end_of_step)
        blocks = []
        for block in gpu.threadblocks:
            steps: list[Step] = []
            for s in block.steps:
                dep = (s.dep_tb, ends[s.dep_tb][s.dep_step]) if s.dep_tb >= 0 else (-1, -1)
                if s.op == "nop":
                    steps.append(replace(s, dep_tb=dep[0], dep_step=dep[1]))
                    continue
                parts = s.count * times
                for part in range(parts):
                    wait = dep if part == 0 else (-1, -1)
                    src = s.src_off * times + part if s.src_off >= 0 else -1
                    dst = s.dst_off * times + part if s.dst_off >= 0 else -1
                    says = s.has_dep and part == parts - 1
                    steps.append(Step(s.op, s.src_buf, src, s.dst_buf, dst, 1, *wait, says))
            blocks.append(replace(block, steps=steps))
        gpus.append(Gpu(gpu.i_chunks * times, gpu.o_chunks * times, gpu.s_chunks * times, blocks))
    return replace(program, gpus=gpus, nchunks_per_loop=program.nchunks_per_loop * times)


def on_channels_from(program: Program, first: int, start: tuple[int, int]) -> tuple[Program, set[tuple[int, int]]]:
    """Return the program with all threadblocks connected with `start` on channels higher by `first`.

    The second result is the set of those threadblocks.
    """
    ends: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for r, gpu in enumerate(program.gpus):
        for t, b in enumerate(gpu.threadblocks):
            for key in ((r, b.send, b.channel), (b.recv, r, b.channel)):
                if -1 not in key:
                    ends.setdefault(key, []).append((r, t))
    connected, waiting = {start}, [start]
    while waiting:
        block = waiting.pop()
        for group in ends.values():
            if block in group:
                waiting += [member for member in group if member not in connected]
                connected |= set(group)
    gpus = [
        replace(gpu, threadblocks=[
            replace(b, channel=b.channel + first * ((r, t) in connected)) for t, b in enumerate(gpu.threadblocks)
        ])
        for r, gpu in enumerate(program.gpus)
    ]  # fmt: skip
    return replace(program, gpus=gpus), connected
