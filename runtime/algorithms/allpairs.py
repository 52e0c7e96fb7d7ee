"""All-reduce in which every rank sends to every other rank: all data in one pass, or shares and then sums in two."""

from synth import Script


def algorithm(ranks: int = 8, passes: int = 2, protocol: str = "LL", instances: int = 1) -> Script:
    """Build the all-pairs all-reduce: one pass sends all data, two passes are a reduce-scatter and an all-gather.

    Args:
        ranks: Number of ranks.
        passes: 1 or 2; any other number counts as 2.
        protocol: Protocol of the program.
        instances: As for `Script`.
    """
    script = Script(f"allpairs{passes}", "allreduce", ranks, chunks=ranks, protocol=protocol, instances=instances)
    all_ranks = range(ranks)
    if passes == 1:
        inputs = [script.chunk(r, "i", 0, ranks) for r in all_ranks]
        copies = {(r, p): inputs[r].copy(p, "s", r * ranks) for r in all_ranks for p in all_ranks if p != r}
        for r in all_ranks:
            for p in all_ranks:
                if p != r:
                    inputs[r] = inputs[r].reduce(copies[p, r])
        return script
    for r in all_ranks:
        share = script.chunk(r, "i", r)
        for shift in range(1, ranks):  # In each step every rank has another partner.
            share = share.reduce(script.chunk((r + shift) % ranks, "i", r))
        for shift in range(1, ranks):
            share.copy((r + shift) % ranks, "i", r)
    return script
