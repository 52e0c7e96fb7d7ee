"""All-gather around a ring, by recursive doubling, or with direct sends between all ranks."""

from synth import Script


def algorithm(ranks: int = 8, way: str = "ring", protocol: str = "LL128", instances: int = 1) -> Script:
    gather = Script(f"allgather_{way}", "allgather", ranks, protocol=protocol, instances=instances)
    if way == "doubling":
        known = 1
        while known < ranks:
            for r in range(ranks):
                first = r // known * known
                gather.chunk(r, "o", first, known).copy(r ^ known, "o", first)
            known *= 2
        return gather
    for r in range(ranks):
        block = gather.chunk(r, "o", r)
        for hop in range(1, ranks):
            sent = block.copy((r + hop) % ranks, "o", r)
            if way == "ring":
                block = sent
    return gather
