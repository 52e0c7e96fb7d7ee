"""Compare the check with executed runs: both must give the same verdict on any program, right or wrong."""

from __future__ import annotations

from emit.check.program import check
from emit.findings import MAX_OF_A_KIND
from emit.goal import Goal
from emit.program import Program
from tests.oracles.delayed_runs import execute, goals_of, memory_cell, overlaps, races, wrong_cells

BY_RUNNING = {"deadlock", "race", "read before write", "wrong result"}


def differences(program: Program, goal: Goal | None, depth: int, split: bool = True) -> list[str] | None:
    """Return the differences between the check and runs; None where a program's numbers allow no run."""
    report = check(program, goal, depth, target=None, split=split)
    if any(f.kind not in BY_RUNNING for f in report.findings):
        return None
    findings_of_kind = {kind: [f for f in report.findings if f.kind == kind] for kind in BY_RUNNING}
    messages = []
    goals = goals_of(program, goal)
    stops = not execute(program, goals[0], depth, split=split).complete
    if stops != bool(findings_of_kind["deadlock"]):
        messages.append(f"deadlock: runs {stops}, check {len(findings_of_kind['deadlock'])}")
    if not execute(program, goals[0]).complete:
        return messages
    true_races, true_wrong, true_unwritten = set(), set(), set()
    for g in goals:
        pairs = races(program, g)
        true_races |= {(event[:3], cell) for a, b, cell in pairs for event in (a, b)}
        true_races |= {(place, None) for place in overlaps(program, g)}
        run = execute(program, g)
        true_wrong |= wrong_cells(program, g, run)
        true_unwritten |= run.unwritten
    for f in findings_of_kind["race"]:
        place, cell = (f.rank, f.tb, f.step), f.cell
        assert cell is not None
        assert f.rank is not None
        cells = {memory_cell(g, f.rank, *cell) for g in goals} | {None}
        if not any((place, c) in true_races for c in cells):
            messages.append(f"race at {place} {cell} that cannot happen")
    if bool(findings_of_kind["race"]) != bool(true_races):
        messages.append(f"races: runs {sorted(true_races, key=str)[:2]}, check {len(findings_of_kind['race'])}")
    if true_races:
        return messages  # After a race, results depend on the order.
    for kind, right in (("wrong result", true_wrong), ("read before write", true_unwritten)):
        if kind == "wrong result":
            cells_reported = {(f.rank, *f.cell) for f in findings_of_kind[kind] if f.cell is not None}
        else:
            cells_reported = {((f.rank, f.tb, f.step), *f.cell) for f in findings_of_kind[kind] if f.cell is not None}
        if not cells_reported <= right or (
            len(cells_reported) < len(right) and len(findings_of_kind[kind]) < MAX_OF_A_KIND
        ):
            messages.append(f"{kind}: runs {sorted(right)[:3]}, check {sorted(cells_reported, key=str)[:3]}")
    return messages
