"""`synth bench --backend torch`: the same rows, measured by processes of torch.distributed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from runtime.bench import Row
from runtime.torch.local_ranks import of_a_job, started
from synth.cli.bench_choice import Chosen
from topologies.errors import InputError

Measure = Callable[["Chosen", int], "Row"]


@contextmanager
def over_torch(
    path: Path, ranks: int, kind: str, op: str, iterations: int, warmup: int
) -> Iterator[tuple[Measure, bool]]:
    """What measures a file at a size, on all ranks alike; and whether this is the rank that tells.

    Outside a job it starts the ranks here, and leaves with their exit code. kind: nccl-tests' name.

    Raises InputError without PyTorch, in a job of another size, and for what torch has no call for.
    """

    if find_spec("torch") is None:
        raise InputError("the torch back end needs PyTorch: pip install 'synth-collectives[torch]'")
    if not of_a_job():
        raise SystemExit(started(ranks, sys.argv[1:]))
    os.environ["SYNTH_LIBRARY"] = str(path.parent if path.name == "index.json" else path)
    from runtime.torch.bench import joined, row

    with joined() as (me, world):
        if world != ranks:
            raise InputError(f"{path}: is for {ranks} ranks, this job has {world}")
        yield (
            lambda chosen, size: row(chosen.program, chosen.name, size, kind, op, iterations, warmup),
            me == 0,
        )
