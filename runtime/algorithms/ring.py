"""All-reduce around a ring: every chunk passes all ranks twice, first to be reduced, then to be copied."""

from synth import Script


def algorithm(ranks: int = 8, protocol: str = "LL128", instances: int = 1) -> Script:
    """Build the ring all-reduce, with a chunk for each rank; `protocol` and `instances` are as for `Script`."""
    script = Script("ring", "allreduce", ranks, chunks=ranks, protocol=protocol, instances=instances)
    for c in range(ranks):
        part = script.chunk(c, "i", c)
        for hop in range(1, ranks):
            part = script.chunk((c + hop) % ranks, "i", c).reduce(part)
        for hop in range(ranks, 2 * ranks - 1):
            part = part.copy((c + hop) % ranks, "i", c)
    return script
