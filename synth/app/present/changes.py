"""What `synth reconfigure` shows: a row for each time of changes, and the schedules behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from synth.app.present.layout import wrapped
from synth.model.collective import Bools
from synth.model.text import format_gap, format_size, format_table, format_time
from synth.reconfiguration.schedule import ChangingSchedule
from synth.reconfiguration.search import ChangesSearch


def changes_statement(search: ChangesSearch, deltas_us: Sequence[float]) -> dict[str, Any]:
    """Return the answers as values for JSON, in the form of the schema `reconfiguration`.

    Args:
        search: The search.
        deltas_us: Times of a change in µs, one row each; empty for one row with the network's own times
            (None where these differ).

    Raises:
        KeyboardInterrupt: Ctrl-C came before there was a schedule.
    """
    network, size = search.network, search.size_bytes
    names = [state.name for state in network.states]
    rows: list[dict[str, Any]] = []
    schedules: list[ChangingSchedule] = []
    stated_us = np.unique(network.delta_us[~np.eye(len(names), dtype=bool)])
    for delta_us in deltas_us or (float(stated_us[0]) if len(stated_us) == 1 else None,):
        choice = search.choose(delta_us)
        if choice.schedule not in schedules:
            schedules.append(choice.schedule)
        single = choice.single
        rows.append({
            "delta_us": delta_us,
            "changes": choice.changes,
            "states": [names[state] for state in choice.schedule.states],
            "time_us": choice.time_us,
            "bound_us": choice.bound_us,
            "gap": choice.gap,
            "proof": choice.limits.witness.text,
            "proof_states": [names[state] for state in choice.limits.claim.states],
            "proof_changes": choice.limits.changes,
            "single_state": None if single is None else names[single.states[0]],
            "single_us": choice.single_us,
            "schedule": schedules.index(choice.schedule),
        })  # fmt: skip
    return {
        "network": network.name,
        "collective": search.collective.name,
        "root": search.collective.root if search.collective.kind.rooted else None,
        "ranks": network.nranks,
        "size_bytes": size,
        "states": names,
        "interrupted": search.interrupted,
        "rows": rows,
        "schedules": [_phases(schedule, names, size) for schedule in schedules],
    }


def _phases(schedule: ChangingSchedule, names: Sequence[str], size_bytes: int) -> list[dict[str, Any]]:
    """Return the phases of a schedule as values for JSON, each with its sends from the phase's own start."""
    phases = []
    for phase, algorithm in zip(schedule.phases, schedule.algorithms, strict=True):
        timed, net, whole = algorithm.timed(size_bytes), algorithm.problem.network, algorithm.problem.collective
        # In a direct all-reduce each rank has a sum of its own, so that the blocks stand there for each rank.
        blocks = phase.blocks * (whole.nranks if whole.is_one_shot else 1)
        parts = whole.nchunks // len(blocks)
        sends = zip(
            (timed.chunk // parts).tolist(), (timed.chunk % parts).tolist(), net.src[timed.link].tolist(),
            net.dst[timed.link].tolist(), timed.reduces.tolist(), timed.start_us.tolist(), strict=True,
        )  # fmt: skip
        phases.append({
            "state": names[phase.state],
            "time_us": algorithm.time_us(size_bytes),
            "engine": algorithm.engine,
            "blocks": [list(of_chunk) for of_chunk in blocks],
            "holders": _ranks(whole.holds[::parts]),
            "goals": _ranks(whole.wants[::parts]),
            "parts": parts,
            "sends": [list(send) for send in sends],
        })  # fmt: skip
    return phases


def _ranks(flags: Bools) -> list[list[int]]:
    """Return for each chunk the ranks with a flag; `flags` has the shape (chunks, ranks)."""
    return [np.flatnonzero(of_chunk).tolist() for of_chunk in flags]


def changes_table(document: dict[str, Any], width: int | None) -> str:
    """Return the table of a statement as text, with the proof of each bound below.

    Args:
        document: What `changes_statement` returns.
        width: Most characters of a line; None for any number.
    """
    rows = [("change", "changes", "time", "bound", "gap", "best state", "states")]
    for row in document["rows"]:
        delta, single = row["delta_us"], row["single_us"]
        rows.append((
            "as stated" if delta is None else format_time(delta), str(row["changes"]), format_time(row["time_us"]),
            format_time(row["bound_us"]), format_gap(row['gap']), "–" if single is None else format_time(single),
            " → ".join(row["states"]),
        ))  # fmt: skip
    heading = f"{document['collective']} on {document['network']}, {format_size(document['size_bytes'])}"
    lines = [heading, *format_table(rows, [6])]
    lines += ["", *(f"bound: {text}" for text in dict.fromkeys(_proof(row) for row in document["rows"]))]
    return "\n".join(wrapped(lines, width))


def _proof(row: dict[str, Any]) -> str:
    """Return what proves the bound of a row as text."""
    count = row["proof_changes"]
    states = ", ".join(row["proof_states"])
    return f"{count} change{'' if count == 1 else 's'} among {states}: {row['proof']}"
