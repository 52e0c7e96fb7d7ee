"""The checks of a group of processes; each rank runs all of them and writes down which failed.

Started by test_process_group.py: python -m tests.runtime.torch.checks SESSION RANK SIZE ADDRESS RESULT
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

import runtime.torch.process_group as ours
from tests.runtime.torch.collectives import COLLECTIVES, falls_back, large, ran_where_it_should
from tests.runtime.torch.faults import FAULTS, Losses, absent
from tests.runtime.torch.groups import GROUPS, again
from tests.runtime.torch.like_gloo import gaps, like_gloo
from tests.runtime.torch.surroundings import SURROUNDINGS
from tests.runtime.torch.training import TRAINING
from tests.runtime.torch.uneven import UNEVEN, by_rows_for_splits, by_table, planned, with_programs
from tests.runtime.torch.values import Check
from tests.runtime.torch.watchers import WATCHERS

BOTH = COLLECTIVES | {"gaps": gaps} | GROUPS | SURROUNDINGS | WATCHERS


def _within(mode: str, check: Check) -> Check:
    def run() -> None:
        with ours.using(mode):
            check()

    return run


MAIN: dict[str, Check] = {"falls back": falls_back, "ran where it should": ran_where_it_should}
MAIN |= {f"{name} synth": _within("synth", check) for name, check in BOTH.items()}
MAIN |= {"ddp synth": _within("synth", TRAINING["ddp"])}
MAIN |= UNEVEN | {"unequal blocks, with programs": partial(with_programs, Path(sys.argv[-1]).parent)}
MAIN |= {"unequal blocks, by a table": partial(by_table, Path(sys.argv[-1]).parent)}
MAIN |= {"unequal blocks, planned": partial(planned, Path(sys.argv[-1]).parent)}
MAIN |= {"unequal blocks, by their own rows": partial(by_rows_for_splits, Path(sys.argv[-1]).parent)}
MAIN |= FAULTS | {"again": partial(again, Path(sys.argv[-1]).parent)}
MORE: dict[str, Check] = {f"{name} auto": _within("auto", check) for name, check in BOTH.items()}
MORE["like gloo synth"] = _within("synth", like_gloo)  # Left to Gloo, the check would compare Gloo with itself.
MORE |= {f"{name} synth": _within("synth", check) for name, check in TRAINING.items()}
MORE |= {
    f"{name} auto": _within("auto", TRAINING[name])
    for name in ("ddp", "ddp compiled", "ddp built-in hooks", "ddp fused", "fsdp2")
}
MORE["large synth"] = large
MORE["absent"] = absent
SESSIONS = {"main": list(MAIN), "more": list(MORE), "losses": list(Losses.DIES)}
SIZES = {"main": 4, "more": 4, "losses": 5}


def main(session: str, rank: int, size: int, address: str, result: Path) -> None:
    """Run a session's checks on this rank; the file `result` states for each what failed."""
    torch.set_num_threads(1)
    faults: dict[str, str | None] = {}

    def says(name: str, fault: str | None = None) -> None:
        faults[name] = fault
        result.write_text(json.dumps(faults))

    dist.init_process_group(
        "cpu:synth,cuda:synth", init_method=address, rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    checks = {"main": MAIN, "more": MORE}.get(session) or Losses(says).checks()
    for name, check in checks.items():
        try:
            check()
            says(name)
        except Exception:
            says(name, traceback.format_exc())
    if session != "losses":
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], Path(sys.argv[5]))
    if sys.argv[1] == "losses":  # Broken connections are not worth waiting for.
        os._exit(0)
