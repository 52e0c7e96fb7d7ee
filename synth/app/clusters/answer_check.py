"""The check of an answer that another user may have made: an answer of a cache or of a cluster's worker.

The answer is written into a library of its own, which is then checked as `synth library check` does it. So nothing in
the answer is believed that its files do not prove.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from emit.library.checking.check import check_library
from emit.library.entry import check_types
from emit.library.index import index_text, parse_index
from synth.app.clusters.placing import in_its_name
from synth.app.clusters.plan import BuildShare
from synth.app.clusters.task import Answer
from synth.baselines import baseline
from synth.engines.estimates import estimated_sends
from synth.search.plans import LIBRARY_BASELINE_SENDS
from synth.verify.algorithm import Algorithm
from topologies.errors import HOSTILE, InputError
from topologies.text.fields import Fields

_NAMES = ("file", "schedule", "proof_file")
_WITHOUT_SCHEDULE = {"target", "refused", "min_bytes", "max_bytes"}  # fields of a range without a schedule
_MOST_WORDS = 300  # characters of a reason for a missing file


def checked_answer(share: BuildShare, answer: Answer) -> Answer:
    """Return an answer after a check of each schedule, program, time and bound for a share of a plan.

    Comparisons with the baselines, which no file proves, and the largest gap are computed anew in the result.

    Args:
        share: The questions that the answer is for.
        answer: The answer, whose content may be wrong or hostile.

    Raises:
        InputError: Something in the answer is not right.
    """
    if answer.key != share.task.key:
        raise InputError("it is the answer to another problem")
    try:
        placed_answer = in_its_name(share, answer)
        with tempfile.TemporaryDirectory() as folder:
            _check_as_library(share, placed_answer, Path(folder))
        problem = replace(share.task, group=share.first.group, root=share.first.root).problem()
        has_baselines = problem.quotient is None and estimated_sends(problem) <= LIBRARY_BASELINE_SENDS
        baselines = baseline(problem) if has_baselines else []
        rows, unfiled = (
            [_compared(row, baselines) for row in part_rows] for part_rows in (answer.rows, answer.unfiled)
        )
        gaps = ((row.get("worst") or row)["gap"] for row in (*rows, *unfiled) if row.get("gap") is not None)
        gap = max(gaps, default=1.0)
        return replace(answer, rows=rows, unfiled=unfiled, gap=gap)
    except InputError:
        raise
    except HOSTILE as error:
        raise InputError(f"{type(error).__name__}: {error}") from None


def _check_as_library(share: BuildShare, answer: Answer, folder: Path) -> None:
    """Write an answer into a folder as a library and check it.

    Args:
        share: The questions that the answer is for.
        answer: The answer, with the names and ranks of the share's first question.
        folder: An empty folder.

    Raises:
        InputError: Something is wrong or not proved; the first such thing is named. Other errors of `HOSTILE` are
            possible.
    """
    for name, data in answer.files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in answer.files.items()}
    rows = [{**row, "sha256": {key: digests[row[key]] for key in _NAMES if row.get(key)}} for row in answer.rows]
    entries = parse_index(index_text(rows), "its index", folder)
    root = None if share.first.root is None else share.first.group.index(share.first.root)
    about = {"collective": share.first.collective, "groups": [list(share.first.group)], "root": root}
    unfiled = [{**row, **about} for row in answer.unfiled if row.get("schedule")]
    report = check_library(folder, entries, share.task.topology, unfiled)
    for row in answer.unfiled:
        check_types(Fields(row, "", "its schedules without a file"))
        if not isinstance(row.get("target"), str) or (not row.get("schedule") and row.keys() - _WITHOUT_SCHEDULE):
            raise InputError("unfiled: a row without a schedule must state only its sizes and why there is no file")
        why = row.get("refused")
        if not isinstance(why, str) or not why.isprintable() or len(why) > _MOST_WORDS:
            raise InputError("refused: must be one line that says why there is no file")
    if report.wrong:
        raise InputError(": ".join(report.wrong[0]))
    if report.unproved_files:
        property_name = next(
            property_name for property_name, names in sorted(report.unproved.items()) if names & report.unproved_files
        )
        raise InputError(f"{min(report.unproved_files)}: does not prove {property_name}")


def _compared(row: Mapping[str, Any], baselines: Sequence[Algorithm]) -> dict[str, Any]:
    """Return a copy of a row with vs_baseline, the best baseline's time / the row's, computed anew if it states one.

    Without baselines it is None.
    """
    if row.get("vs_baseline") is None:
        return dict(row)
    size = row["shown_bytes"]
    times_us = [algorithm.time_us(size) for algorithm in baselines]
    return {**row, "vs_baseline": min(times_us) / row["time_us"] if times_us else None}
