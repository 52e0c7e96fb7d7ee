"""Send every rank's buffer to the next rank; between two nodes, each link carries a part of the buffer."""

from synth import Goal, Script


def algorithm(nodes: int = 2, gpus: int = 4, protocol: str = "Simple") -> Script:
    ranks = nodes * gpus
    rows = [(r, k) for r in range(ranks) for k in range(gpus)]
    start = (*zip(*((r, "i", k, r, k) for r, k in rows), strict=True),)
    end = (*zip(*((r + 1, "o", k, r, k) for r, k in rows if r + 1 < ranks), strict=True),)
    script = Script(
        "alltonext",
        "custom",
        ranks,
        chunks=gpus,
        protocol=protocol,
        goal=Goal.from_arrays(ranks, start, end),
    )
    for r in range(ranks - 1):
        if (r + 1) % gpus:
            script.chunk(r, "i", 0, gpus).copy(r + 1, "o", 0)
            continue
        for k in range(gpus):  # over the link from GPU k of this node to GPU k of the next node
            part = script.chunk(r, "i", k)
            near = part if r % gpus == k else part.copy(r - gpus + 1 + k, "s", 0)
            far = near.copy(r + 1 + k, "s" if k else "o", 1 if k else 0)
            if k:
                far.copy(r + 1, "o", k)
    return script
