"""All-reduce around a ring: every chunk passes all ranks twice, first to be reduced, then to be copied."""

from emit.language import Script


def algorithm(ranks: int = 8, protocol: str = "LL128", instances: int = 1) -> Script:
    ring = Script("ring", "allreduce", ranks, chunks=ranks, protocol=protocol, instances=instances)
    for c in range(ranks):
        part = ring.chunk(c, "i", c)
        for hop in range(1, ranks):
            part = ring.chunk((c + hop) % ranks, "i", c).reduce(part)
        for hop in range(ranks, 2 * ranks - 1):
            part = part.copy((c + hop) % ranks, "i", c)
    return ring
