"""Which calls of frameworks the files of a library serve, by their executors' own rules.

    python -m results.scripts.served [--budget S] [--every N] [--only TOPOLOGY …] [--target TARGET]

makes served.md. Sizes are the powers of two of 1 KiB to 1 GiB and 25 MiB (a bucket of PyTorch's DDP), of float32; where
a message is of a block a rank, the block is of such a size. Calls in place and out of place; beside them buckets with a
tail of 4 bytes, which divide into nothing.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import synth
from emit.library.index import Entry, load_index
from emit.library.lookup import choose
from emit.library.save import save
from emit.targets import TARGETS
from results.measuring.measure import grid, page, write
from synth.model.registry import find_kind
from topologies.errors import InputError
from topologies.load import load

MACHINES = ("dgx1", "dgx-a100", "dgx-h100", "torus:4x4")
COLLECTIVES = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce")
SIZES = (*(1 << e for e in range(10, 31)), 25 << 20)
TAIL = (25 << 20) + 4
ELEMENT_BYTES = 4


def measured(spec: str, collective: str, ranks: int, budget_s: float, target: str) -> tuple[Counter[str], str] | None:
    """Of one question: calls "served", left to the "executor", and of the tail; why there is no file, if so."""
    group = tuple(range(ranks))
    try:
        answer = synth.synthesize(collective, load(spec), group, budget=budget_s, target=target)
    except InputError:
        return None  # not connected
    with tempfile.TemporaryDirectory() as folder:
        save(answer.found, folder, target)
        entries = load_index(folder) if Path(folder, "index.json").exists() else []
    found: Counter[str] = Counter()
    kind = find_kind(collective)
    blocks = ranks if kind.blocks_a_rank else 1
    forms = (True, False) if kind.whole else (False,)
    for inplace in forms:
        for size in SIZES:
            found[_serves(entries, collective, group, size * blocks, inplace)] += 1
        found[f"tail {_serves(entries, collective, group, TAIL * blocks, inplace)}"] += 1
    return found, "" if entries else answer.algorithms[0]["refused"]


def _serves(entries: Sequence[Entry], collective: str, group: Sequence[int], size: int, inplace: bool) -> str:
    """Who serves a call: "served" by a file, or the "executor" itself."""
    root = 0 if find_kind(collective).rooted else None
    asked = {"root": root, "element_bytes": ELEMENT_BYTES}
    return "executor" if choose(entries, collective, len(group), group, size, inplace, **asked) is None else "served"


def main(arguments: Sequence[str] | None = None) -> None:
    """Count, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--budget", type=float, default=2.0, help="seconds a search")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each N-th question only")
    parser.add_argument("--only", nargs="+", metavar="TOPOLOGY")
    parser.add_argument("--target", default="executor-nccl", choices=TARGETS)
    given = parser.parse_args(arguments)
    asked = [(s, c, k) for s in MACHINES if not given.only or s in given.only for c in COLLECTIVES for k in range(2, 9)]
    rows, total = [], Counter[str]()
    for spec, collective, ranks in asked[:: given.every]:
        one = measured(spec, collective, ranks, given.budget, given.target)
        if one is not None:
            found, refused = one
            total += found
            kinds = ("served", "executor", "tail served", "tail executor")
            rows.append((f"{collective} {spec} 0-{ranks - 1}", *(found[key] for key in kinds), refused))
            print(rows[-1], flush=True)
    usual, tails = total["served"] + total["executor"], total["tail served"] + total["tail executor"]
    otherwise = TARGETS[given.target].otherwise
    about = (
        f"Target {given.target}, budget {given.budget:g} s a search, {len(rows)} of {len(asked)} questions. Files serve"
        f" {total['served']} of {usual} calls ({total['served'] / max(usual, 1):.1%}), and {total['tail served']} of"
        f" {tails} with a tail; the rest is what `choose` has no entry for and the table says: {otherwise} serves it."
    )
    titles = ("question", "served", "by the executor", "tail: served", "tail: by the executor", "no file")
    write(__file__, page(__file__, "Calls that the files serve", [about, grid(titles, rows)]))


if __name__ == "__main__":
    main()
