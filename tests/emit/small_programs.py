"""Small right programs, and functions that replace parts of a program."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from emit.program import Gpu, Program, Step, ThreadBlock


def ring_allgather(n: int, protocol: str = "LL128") -> Program:
    gpus = []
    for r in range(n):
        steps = [Step("s", "o", r, "o", r, 1)]
        for k in range(1, n - 1):
            at = (r - k) % n
            steps.append(Step("rcs", "o", at, "o", at, 1))
        last = (r + 1) % n
        steps.append(Step("r", "o", last, "o", last, 1))
        gpus.append(Gpu(0, n, 0, [ThreadBlock((r + 1) % n, (r - 1) % n, 0, steps)]))
    return Program("ring_allgather", "allgather", protocol, n, n, True, False, gpus)


def ring_allreduce(n: int, channels: int = 1, protocol: str = "LL128") -> Program:
    gpus = []
    for r in range(n):
        blocks = []
        for channel in range(channels):
            base = channel * n
            steps = [Step("s", "i", base + r, "i", base + r, 1)]
            for k in range(1, n):
                at = base + (r - k) % n
                steps.append(Step("rrs" if k < n - 1 else "rrcs", "i", at, "i", at, 1))
            for k in range(n - 1):
                at = base + (r - k) % n
                steps.append(Step("rcs" if k < n - 2 else "r", "i", at, "i", at, 1))
            blocks.append(ThreadBlock((r + 1) % n, (r - 1) % n, channel, steps))
        gpus.append(Gpu(n * channels, 0, 0, blocks))
    return Program("ring_allreduce", "allreduce", protocol, n, n * channels, True, False, gpus)


def allpairs_allreduce(n: int, cnt: int = 1, protocol: str = "LL") -> Program:
    """Build an all-reduce in which every rank reduces its own block of `cnt` chunks.

    Threadblock 0 reduces, threadblock t exchanges with the t-th peer.
    """
    gpus = []
    for r in range(n):
        peers = [p for p in range(n) if p != r]
        nops = [Step("nop", dep_tb=t, dep_step=1) for t in range(1, n - 1)]
        reduces = []
        for t in range(n - 1):
            last = t == n - 2
            dep = (n - 1, 1) if t == 0 else (-1, -1)
            reduces.append(Step("re", "s", t * cnt, "i", r * cnt, cnt, *dep, has_dep=last))
        blocks = [ThreadBlock(-1, -1, 0, nops + reduces)]
        last_step = len(nops) + len(reduces) - 1
        for t, p in enumerate(peers):
            blocks.append(
                ThreadBlock(
                    p,
                    p,
                    0,
                    [
                        Step("s", "i", p * cnt, "s", 0, cnt),
                        Step("r", "i", 0, "s", t * cnt, cnt, has_dep=True),
                        Step("s", "i", r * cnt, "i", r * cnt, cnt, 0, last_step),
                        Step("r", "i", p * cnt, "i", p * cnt, cnt),
                    ],
                )
            )
        gpus.append(Gpu(n * cnt, 0, (n - 1) * cnt, blocks))
    return Program("allpairs_allreduce", "allreduce", protocol, n, n * cnt, True, False, gpus)


def doubling_allgather(n: int, protocol: str = "LL") -> Program:
    """Build recursive doubling on n ranks, a power of two; round j exchanges 2^j chunks in a threadblock of its own."""
    gpus = []
    for r in range(n):
        blocks = []
        j = 0
        while 1 << j < n:
            peer, size = r ^ (1 << j), 1 << j
            own_offset, peer_offset = (r >> j) << j, (peer >> j) << j
            steps = [Step("nop", dep_tb=t, dep_step=len(blocks[t].steps) - 1) for t in range(j - 1)]
            dep = (j - 1, len(blocks[j - 1].steps) - 1) if j else (-1, -1)
            steps.append(Step("s", "o", own_offset, "o", own_offset, size, *dep))
            steps.append(Step("r", "o", peer_offset, "o", peer_offset, size, has_dep=2 << j < n))
            blocks.append(ThreadBlock(peer, peer, 0, steps))
            j += 1
        gpus.append(Gpu(0, n, 0, blocks))
    return Program("doubling_allgather", "allgather", protocol, n, n, True, False, gpus)


def alltoall(n: int, k: int = 1, protocol: str = "Simple") -> Program:
    gpus = []
    for r in range(n):
        blocks = [ThreadBlock(-1, -1, 0, [Step("cpy", "i", r * k, "o", r * k, k)])]
        for p in range(n):
            if p != r:
                blocks.append(ThreadBlock(p, -1, 0, [Step("s", "i", p * k, "o", r * k, k)]))
                blocks.append(ThreadBlock(-1, p, 0, [Step("r", "i", r * k, "o", p * k, k)]))
        gpus.append(Gpu(n * k, n * k, 0, blocks))
    return Program("alltoall", "alltoall", protocol, n, n * k, False, True, gpus)


def ring_reducescatter(n: int) -> Program:
    gpus = []
    for r in range(n):
        steps = [Step("s", "i", (r - 1) % n, "i", (r - 1) % n, 1)]
        for k in range(2, n + 1):
            at = (r - k) % n
            steps.append(Step("rrs" if k < n else "rrc", "i", at, "i", at, 1))
        gpus.append(Gpu(n, 0, 0, [ThreadBlock((r + 1) % n, (r - 1) % n, 0, steps)]))
    return Program("ring_reducescatter", "reducescatter", "LL", n, n, True, False, gpus)


def chain_broadcast(n: int, root: int, chunks: int = 3) -> Program:
    gpus: list[Gpu] = []
    for r in range(n):
        place = (r - root) % n
        op = "s" if place == 0 else "r" if place == n - 1 else "rcs"
        source = "i" if place == 0 else "o"
        steps = [Step(op, source, c, "o", c, 1) for c in range(chunks)]
        send = -1 if place == n - 1 else (r + 1) % n
        recv = -1 if place == 0 else (r - 1) % n
        blocks = [ThreadBlock(send, recv, 0, steps)]
        if place == 0:
            blocks.append(ThreadBlock(-1, -1, 0, [Step("cpy", "i", 0, "o", 0, chunks)]))
        gpus.append(Gpu(chunks, chunks, 0, blocks))
    return Program("chain_broadcast", "broadcast", "Simple", n, chunks, False, True, gpus, root=root)


def chain_reduce(n: int, root: int) -> Program:
    gpus: list[Gpu] = []
    for r in range(n):
        place = (root - r) % n  # Hops to the root.
        op = "s" if place == n - 1 else "rrc" if place == 0 else "rrs"
        send = -1 if place == 0 else (r + 1) % n
        recv = -1 if place == n - 1 else (r - 1) % n
        gpus.append(Gpu(1, 1, 0, [ThreadBlock(send, recv, 0, [Step(op, "i", 0, "o", 0, 1)])]))
    return Program("chain_reduce", "reduce", "LL", n, 1, False, True, gpus, root=root)


def direct_gather(n: int, root: int, inplace: bool = False) -> Program:
    gpus: list[Gpu] = []
    for r in range(n):
        if r != root:
            gpus.append(Gpu(2, 0, 0, [ThreadBlock(root, -1, 0, [Step("s", "i", 0, "o", 0, 2)])]))
            continue
        blocks = [ThreadBlock(-1, p, 0, [Step("r", "i", 0, "o", 2 * p, 2)]) for p in range(n) if p != root]
        if not inplace:
            blocks.append(ThreadBlock(-1, -1, 0, [Step("cpy", "i", 0, "o", 2 * r, 2)]))
        gpus.append(Gpu(2, 2 * n, 0, blocks))
    return Program("direct_gather", "gather", "LL", n, 2, inplace, not inplace, gpus, root=root)


def direct_scatter(n: int, root: int, inplace: bool = False) -> Program:
    gpus: list[Gpu] = []
    for r in range(n):
        if r != root:
            gpus.append(Gpu(0, 2, 0, [ThreadBlock(-1, root, 0, [Step("r", "i", 0, "o", 0, 2)])]))
            continue
        blocks = [ThreadBlock(p, -1, 0, [Step("s", "i", 2 * p, "o", 0, 2)]) for p in range(n) if p != root]
        if not inplace:
            blocks.append(ThreadBlock(-1, -1, 0, [Step("cpy", "i", 2 * r, "o", 0, 2)]))
        gpus.append(Gpu(2 * n, 2, 0, blocks))
    return Program("direct_scatter", "scatter", "LL", n, 2, inplace, not inplace, gpus, root=root)


RIGHT = {
    "ring_allgather": ring_allgather(4),
    "ring_allreduce": ring_allreduce(4, 2),
    "allpairs_allreduce": allpairs_allreduce(4),
    "allpairs_allreduce_wide": allpairs_allreduce(3, 4),
    "doubling_allgather": doubling_allgather(8),
    "alltoall": alltoall(4, 2),
    "ring_reducescatter": ring_reducescatter(4),
    "chain_broadcast": chain_broadcast(4, 2),
    "chain_reduce": chain_reduce(4, 1),
    "direct_gather": direct_gather(3, 1),
    "direct_gather_inplace": direct_gather(3, 1, inplace=True),
    "direct_scatter": direct_scatter(3, 2),
    "direct_scatter_inplace": direct_scatter(3, 2, inplace=True),
}


def with_gpu(program: Program, rank: int, gpu: Gpu) -> Program:
    gpus = list(program.gpus)
    gpus[rank] = gpu
    return replace(program, gpus=gpus)


def with_block(program: Program, rank: int, tb: int, block: ThreadBlock) -> Program:
    blocks = list(program.gpus[rank].threadblocks)
    blocks[tb] = block
    return with_gpu(program, rank, replace(program.gpus[rank], threadblocks=blocks))


def with_steps(program: Program, rank: int, tb: int, steps: list[Step]) -> Program:
    block = program.gpus[rank].threadblocks[tb]
    return with_block(program, rank, tb, replace(block, steps=steps))


def with_step(program: Program, rank: int, tb: int, step: int, **changes: Any) -> Program:
    steps = list(program.gpus[rank].threadblocks[tb].steps)
    steps[step] = replace(steps[step], **changes)
    return with_steps(program, rank, tb, steps)
