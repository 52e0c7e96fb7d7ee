"""All-reduce by recursive halving and doubling, for powers of two: distances of partners halve, then double."""

from emit.language import Script


def algorithm(ranks: int = 8, protocol: str = "Simple", instances: int = 1) -> Script:
    halves = Script("halving_doubling", "allreduce", ranks, chunks=ranks, protocol=protocol, instances=instances)
    far = ranks // 2
    while far >= 1:
        parts = [(r, (r ^ far) // far * far) for r in range(ranks)]
        chunks = [halves.chunk(r, "i", first, far) for r, first in parts]
        for (r, first), part in zip(parts, chunks, strict=True):
            halves.chunk(r ^ far, "i", first, far).reduce(part)
        far //= 2
    far = 1
    while far < ranks:
        for r in range(ranks):
            halves.chunk(r, "i", r // far * far, far).copy(r ^ far, "i", r // far * far)
        far *= 2
    return halves
