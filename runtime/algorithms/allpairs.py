"""All-reduce in which every rank sends to every other rank: all data in one pass, or shares and then sums in two."""

from emit.language import Script


def algorithm(ranks: int = 8, passes: int = 2, protocol: str = "LL", instances: int = 1) -> Script:
    pairs = Script(f"allpairs{passes}", "allreduce", ranks, chunks=ranks, protocol=protocol, instances=instances)
    everyone = range(ranks)
    if passes == 1:
        own = [pairs.chunk(r, "i", 0, ranks) for r in everyone]
        sent = {(r, p): own[r].copy(p, "s", r * ranks) for r in everyone for p in everyone if p != r}
        for r in everyone:
            for p in everyone:
                if p != r:
                    own[r] = own[r].reduce(sent[p, r])
        return pairs
    for r in everyone:
        share = pairs.chunk(r, "i", r)
        for shift in range(1, ranks):  # In each step every rank has another partner.
            share = share.reduce(pairs.chunk((r + shift) % ranks, "i", r))
        for shift in range(1, ranks):
            share.copy((r + shift) % ranks, "i", r)
    return pairs
