"""A naive executor of programs, which runs one random interleaving at a time."""

from __future__ import annotations

import random
from collections import Counter

from emit.program import READS_SRC, RECEIVES, SENDS, WRITES_DST, Program

Cell = tuple[str, int]
Held = Counter[tuple[int, int]]


def execute(program: Program, depth: int, rng: random.Random) -> list[dict[Cell, Held]] | None:
    """Return the ranks' memory after one random interleaving, or None where it stops before the end.

    It serves in-place allreduce and allgather, and programs whose buffers are disjoint.
    """
    n = program.nranks
    share = program.nchunks_per_loop // n
    memory: list[dict[Cell, Held]] = []
    for rank, gpu in enumerate(program.gpus):
        if program.collective == "allgather" and program.inplace:
            memory.append({("o", rank * share + c): Counter([(rank, c)]) for c in range(share)})
        else:
            memory.append({("i", c): Counter([(rank, c)]) for c in range(gpu.i_chunks)})
    blocks = [(r, t, tb) for r, gpu in enumerate(program.gpus) for t, tb in enumerate(gpu.threadblocks)]
    at = {(r, t): 0 for r, t, _ in blocks}
    chunk = {(r, t): 0 for r, t, _ in blocks}
    fifo: dict[tuple[int, int, int], list[Held]] = {}
    unfinished = list(blocks)
    while unfinished:
        rng.shuffle(unfinished)
        progressed = False
        for r, t, tb in list(unfinished):
            if at[r, t] == len(tb.steps):
                unfinished.remove((r, t, tb))
                progressed = True
                continue
            s = tb.steps[at[r, t]]
            if s.dep_tb >= 0 and at[r, s.dep_tb] <= s.dep_step:
                continue
            into = fifo.setdefault((tb.recv, r, tb.channel), [])
            out = fifo.setdefault((r, tb.send, tb.channel), [])
            if (s.op in RECEIVES and not into) or (s.op in SENDS and len(out) >= depth):
                continue
            local = s.op in ("cpy", "re", "nop")
            for c in range(s.count) if local else [chunk[r, t]]:
                value: Held = Counter()
                if s.op in RECEIVES:
                    value = value + into.pop(0)
                if s.op in READS_SRC:
                    value = value + memory[r].get((s.src_buf, s.src_off + c), Counter())
                if s.op == "re":
                    value = value + memory[r].get((s.dst_buf, s.dst_off + c), Counter())
                if s.op in SENDS:
                    out.append(value)
                if s.op in WRITES_DST:
                    memory[r][s.dst_buf, s.dst_off + c] = value
            chunk[r, t] += 1
            if local or chunk[r, t] == s.count:
                at[r, t] += 1
                chunk[r, t] = 0
            progressed = True
            if rng.random() < 0.5:
                break
        if not progressed:
            return None
    return memory


def is_right(program: Program, memory: list[dict[Cell, Held]]) -> bool:
    """Return whether an in-place allreduce or allgather, or an alltoall, ended as it should."""
    n = program.nranks
    k = program.nchunks_per_loop
    share = k // n
    for rank, content in enumerate(memory):
        for c in range(k):
            if program.collective == "allreduce":
                cell, expected = ("i", c), Counter({(source, c): 1 for source in range(n)})
            elif program.collective == "allgather":
                cell, expected = ("o", c), Counter({(c // share, c % share): 1})
            else:
                cell, expected = ("o", c), Counter({(c // share, rank * share + c % share): 1})
            if content.get(cell) != expected:
                return False
    return True
