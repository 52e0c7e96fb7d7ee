"""Random programs: right programs with a few fields changed at random; most are wrong, some are still right."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from emit.program import OPS, Program
from tests.emit.check.equivalent_programs import cut_in_two, reordered
from tests.emit.right_programs import Right
from tests.emit.small_programs import with_block, with_gpu, with_step


def changed(right: Right, rng: random.Random, most: int = 3) -> Program:
    """Make one to `most` random changes, some of which undo a fault or change nothing that matters."""
    program = right.program
    for _ in range(rng.randint(1, most)):
        places = [(r, t, x) for r, t, x, _ in program.steps()]
        r, t, x = rng.choice(places)
        gpu = program.gpus[r]
        block = gpu.threadblocks[t]
        step = block.steps[x]
        change_kind = rng.randrange(10)
        if change_kind == 0:
            program = with_step(program, r, t, x, op=rng.choice(OPS))
        elif change_kind in (1, 2):
            side = rng.choice(["src", "dst"])
            buffers = [b for b in "ios" if getattr(gpu, f"{b}_chunks") >= step.count]
            if buffers:
                buffer = rng.choice(buffers)
                position = rng.randrange(getattr(gpu, f"{buffer}_chunks") - step.count + 1)
                program = with_step(program, r, t, x, **{f"{side}_buf": buffer, f"{side}_off": position})
        elif change_kind == 3:
            program = with_step(program, r, t, x, dep_tb=-1, dep_step=-1)
        elif change_kind in (4, 5):
            tb = rng.randrange(len(gpu.threadblocks))
            if gpu.threadblocks[tb].steps:
                position = rng.randrange(len(gpu.threadblocks[tb].steps))
                program = with_step(program, r, t, x, dep_tb=tb, dep_step=position)
                program = with_step(program, r, tb, position, has_dep=True)
        elif change_kind in (6, 7):
            order = list(range(len(block.steps)))
            order.remove(x)
            order.insert(rng.randrange(len(order) + 1), x)
            program = reordered(program, r, t, order)
        elif change_kind == 8:
            program = with_gpu(program, r, replace(gpu, s_chunks=gpu.s_chunks + 1))
            program = with_step(program, r, t, x, **{f"{rng.choice(['src', 'dst'])}_buf": "s"})
        elif len(block.steps) > 1 and -1 in (block.send, block.recv) and block.send == block.recv:
            program = cut_in_two(program, r, t, rng.randrange(1, len(block.steps)))
        else:
            # Join two threadblocks of opposite directions, where there are any.
            senders = [y for y, b in enumerate(gpu.threadblocks) if b.recv == -1 and b.send >= 0 and block.send == -1]
            if senders and block.recv >= 0:
                b = gpu.threadblocks[rng.choice(senders)]
                program = with_block(program, r, t, replace(block, send=b.send, channel=b.channel))
    return program


def sample(rights: Sequence[Right], number: int, seed: int) -> list[tuple[Right, Program]]:
    """Return `number` random programs, each with the right program from which it was made."""
    rng = random.Random(seed)
    return [(right, changed(right, rng)) for right in (rng.choice(rights) for _ in range(number))]
