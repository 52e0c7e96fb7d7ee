"""All-reduce by recursive halving and doubling, for powers of two: distances of partners halve, then double."""

from synth import Script


def algorithm(ranks: int = 8, protocol: str = "Simple", instances: int = 1) -> Script:
    """Build the all-reduce by recursive halving and doubling; `ranks` must be a power of two, which is not checked.

    `protocol` and `instances` are as for `Script`.
    """
    script = Script("halving_doubling", "allreduce", ranks, chunks=ranks, protocol=protocol, instances=instances)
    distance = ranks // 2
    while distance >= 1:
        parts = [(r, (r ^ distance) // distance * distance) for r in range(ranks)]
        chunks = [script.chunk(r, "i", first, distance) for r, first in parts]
        for (r, first), part in zip(parts, chunks, strict=True):
            script.chunk(r ^ distance, "i", first, distance).reduce(part)
        distance //= 2
    distance = 1
    while distance < ranks:
        for r in range(ranks):
            script.chunk(r, "i", r // distance * distance, distance).copy(r ^ distance, "i", r // distance * distance)
        distance *= 2
    return script
