"""Random indices of libraries."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from emit.targets import TARGETS

Row = dict[str, Any]
ROOTED = ("broadcast", "reduce")


def entry_row(**changes: Any) -> Row:
    row: Row = {
        "collective": "allreduce", "topology": "dgx1", "nranks": 4, "group": [0, 2, 4, 6], "relays": [],
        "root": None, "communicator": [0, 2, 4, 6], "file": "msccl/a.xml", "target": "executor-nccl",
        "protocol": "LL", "inplace": True, "min_bytes": 0, "max_bytes": None, "schedule": None,
        "proof_file": None, "goal": None, "time_us": 1.5,
    }  # fmt: skip
    return row | changes


@st.composite
def questions(draw: st.DrawFn) -> Row:
    """Draw a question and its target."""
    ranks = draw(st.lists(st.integers(0, 5), min_size=1, max_size=5, unique=True))
    cut = draw(st.integers(1, len(ranks)))
    group, relays = ranks[:cut], ranks[cut:]
    collective = draw(st.sampled_from(["allreduce", "broadcast", "halo"]))
    return entry_row(
        collective=collective,
        topology=draw(st.sampled_from(["dgx1", "a b"])),
        nranks=len(group),
        group=group,
        relays=relays,
        root=draw(st.sampled_from(group)) if collective in ROOTED else None,
        communicator=group + relays,
        target=draw(st.sampled_from(sorted(TARGETS))),
        inplace=draw(st.booleans()),
    )


def asked_of(row: Row) -> str:
    return json.dumps([row[k] for k in ("collective", "topology", "group", "relays", "root", "target", "inplace")])


@st.composite
def indices(draw: st.DrawFn) -> list[Row]:
    """Draw entries in any order whose sizes do not overlap; some sizes are not served."""
    rows: list[Row] = []
    for question in draw(st.lists(questions(), max_size=5, unique_by=asked_of)):
        ends = sorted(draw(st.sets(st.integers(0, 40), min_size=1, max_size=5)))
        for i, low in enumerate(ends):
            last = i == len(ends) - 1
            high = None if last and draw(st.booleans()) else draw(st.integers(low, 60 if last else ends[i + 1] - 1))
            target = TARGETS[question["target"]]
            name = f"file{len(rows)}"
            stored = draw(st.booleans())
            rows.append(
                question
                | {
                    "min_bytes": low,
                    "max_bytes": high,
                    "file": f"{target.folder}/{name}{target.suffix}",
                    "schedule": f"schedules/{name}.synth" if stored else None,
                    "proof_file": f"schedules/{name}.proof.json" if stored and draw(st.booleans()) else None,
                }
            )
    return draw(st.permutations(rows))
