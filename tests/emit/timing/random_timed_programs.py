"""Random programs that end at any FIFO depth; their results do not matter."""

from __future__ import annotations

import random
from collections.abc import Sequence

from emit.program import RECEIVES, SENDS, Gpu, Program, Step, ThreadBlock

MOVES = SENDS | RECEIVES
_CELLS = 64


def random_program(rng: random.Random, nranks: int, pairs: Sequence[tuple[int, int]], channels: int = 2) -> Program:
    """Return a program of transmissions between some pairs, with several channels, fused steps, copies and waits.

    Steps are appended in an order in which they could be executed one after the other, so nothing deadlocks.
    """
    connections = {(u, v, rng.randrange(channels)) for u, v in rng.sample(pairs, rng.randint(1, len(pairs)))}
    blocks: list[list[tuple[int, int, int]]] = [[] for _ in range(nranks)]  # (send, recv, channel)
    for rank in range(nranks):
        for channel in range(channels):
            outs = sorted(v for u, v, c in connections if (u, c) == (rank, channel))
            ins = sorted(u for u, v, c in connections if (v, c) == (rank, channel))
            rng.shuffle(outs)
            rng.shuffle(ins)
            while outs and ins and rng.random() < 0.7:
                blocks[rank].append((outs.pop(), ins.pop(), channel))
            blocks[rank] += [(v, -1, channel) for v in outs] + [(-1, u, channel) for u in ins]
        if not blocks[rank] or rng.random() < 0.3:
            blocks[rank].append((-1, -1, 0))
    steps: list[list[list[Step]]] = [[[] for _ in tbs] for tbs in blocks]
    sender = {(r, v, c): t for r, tbs in enumerate(blocks) for t, (v, _, c) in enumerate(tbs) if v >= 0}
    receiver = {(u, r, c): t for r, tbs in enumerate(blocks) for t, (_, u, c) in enumerate(tbs) if u >= 0}

    def add(rank: int, tb: int, op: str, count: int) -> None:
        other_tbs = [t for t in range(len(blocks[rank])) if t != tb and steps[rank][t]]
        dep = (-1, -1)
        if other_tbs and (op == "nop" or rng.random() < 0.3):
            t = rng.choice(other_tbs)
            signalling_steps = [
                operands for operands, step in enumerate(steps[rank][t]) if step.op != "nop"
            ]  # Steps that signal their completion.
            dep = (t, rng.choice(signalling_steps)) if signalling_steps else dep
        if op == "nop" and dep == (-1, -1):
            return
        operands = [rng.choice("ios"), rng.randrange(_CELLS), rng.choice("ios"), rng.randrange(_CELLS)]
        steps[rank][tb].append(Step(op, *operands, count, *dep, has_dep=True))

    for _ in range(rng.randint(1, 40)):
        rank = rng.randrange(nranks)
        tb = rng.randrange(len(blocks[rank]))
        add(rank, tb, rng.choice(("cpy", "re")), 1) if rng.random() < 0.5 else add(rank, tb, "nop", 0)
        u, v, c = rng.choice(sorted(connections))
        count = rng.choice((1, 1, 2, 5))
        out = steps[u][sender[u, v, c]]
        if out and out[-1].op in ("r", "rrc") and out[-1].count == count:
            # The step that received last also sends.
            s = out.pop()
            op = rng.choice(("rcs", "rrs", "rrcs"))
            out.append(Step(op, s.src_buf, s.src_off, s.dst_buf, s.dst_off, count, s.dep_tb, s.dep_step, True))
        else:
            add(u, sender[u, v, c], "s", count)
        add(v, receiver[u, v, c], rng.choice(("r", "rrc")), count)
    gpus = [
        Gpu(_CELLS * 2, _CELLS * 2, _CELLS * 2, [ThreadBlock(*b, s) for b, s in zip(tbs, steps_of_rank, strict=True)])
        for tbs, steps_of_rank in zip(blocks, steps, strict=True)
    ]
    return Program("random", "custom", rng.choice(("Simple", "LL")), nranks, 8, True, False, gpus)
