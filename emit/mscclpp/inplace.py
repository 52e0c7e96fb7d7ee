"""A program for calls out of place, made to serve calls in place: results wait in scratch until inputs are read."""

from __future__ import annotations

from dataclasses import replace

from emit.program import WRITES_DST, Gpu, Program, Step, ThreadBlock


def in_place(program: Program) -> Program:
    """The same, in place: what it puts into the output is put into scratch, and copied out after all else.

    The program must have passed its check for calls out of place.
    """
    gpus = [_moved(gpu) for gpu in program.gpus]
    return replace(program, gpus=gpus, inplace=True, outofplace=False)


def _moved(gpu: Gpu) -> Gpu:
    blocks = []
    waits: list[Step] = []
    for tb, block in enumerate(gpu.threadblocks):
        steps = [_step(step, gpu.s_chunks) for step in block.steps]
        if steps:
            steps[-1] = replace(steps[-1], has_dep=True)
            waits.append(Step("nop", "i", -1, "o", -1, 0, tb, len(steps) - 1))
        blocks.append(replace(block, steps=steps))
    copies = [Step("cpy", "s", gpu.s_chunks + at, "o", at, count) for at, count in _written(gpu)]
    if copies:
        if waits:
            copies[0] = replace(copies[0], dep_tb=waits[-1].dep_tb, dep_step=waits[-1].dep_step)
        blocks.append(ThreadBlock(-1, -1, 0, [*waits[:-1], *copies]))
    return replace(gpu, s_chunks=gpu.s_chunks + gpu.o_chunks, threadblocks=blocks)


def _written(gpu: Gpu) -> list[tuple[int, int]]:
    """(first chunk, chunks) of the parts of the output that are written."""
    steps = [step for block in gpu.threadblocks for step in block.steps]
    chunks = sorted(
        {s.dst_off + n for s in steps if s.op in WRITES_DST and s.dst_buf == "o" for n in range(s.count)}
    )
    runs: list[tuple[int, int]] = []
    for chunk in chunks:
        if runs and sum(runs[-1]) == chunk:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((chunk, 1))
    return runs


def _step(step: Step, first: int) -> Step:
    """The step with `first`.. of scratch for the output."""
    if step.src_buf == "o":
        step = replace(step, src_buf="s", src_off=step.src_off + first)
    if step.dst_buf == "o":
        step = replace(step, dst_buf="s", dst_off=step.dst_off + first)
    return step
