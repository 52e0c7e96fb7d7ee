"""The check held against what can be seen happen: both must say the same of any program, right or wrong."""

from __future__ import annotations

from emit.check.program import check
from emit.findings import MAX_OF_A_KIND
from emit.goal import Goal
from emit.program import Program
from tests.oracles.delayed_runs import execute, goals_of, memory_cell, overlaps, races, wrong_cells

BY_RUNNING = {"deadlock", "race", "read before write", "wrong result"}


def differences(program: Program, goal: Goal | None, depth: int, split: bool = True) -> list[str] | None:
    """What the check says and runs do not show, or the other way; None where its numbers let nothing run."""
    report = check(program, goal, depth, target=None, split=split)
    if any(f.kind not in BY_RUNNING for f in report.findings):
        return None
    said = {kind: [f for f in report.findings if f.kind == kind] for kind in BY_RUNNING}
    told = []
    goals = goals_of(program, goal)
    stops = not execute(program, goals[0], depth, split=split).complete
    if stops != bool(said["deadlock"]):
        told.append(f"deadlock: runs {stops}, check {len(said['deadlock'])}")
    if not execute(program, goals[0]).complete:
        return told
    true_races, true_wrong, true_unwritten = set(), set(), set()
    for g in goals:
        pairs = races(program, g)
        true_races |= {(event[:3], cell) for a, b, cell in pairs for event in (a, b)}
        true_races |= {(place, None) for place in overlaps(program, g)}
        run = execute(program, g)
        true_wrong |= wrong_cells(program, g, run)
        true_unwritten |= run.unwritten
    for f in said["race"]:
        place, cell = (f.rank, f.tb, f.step), f.cell
        assert cell is not None
        assert f.rank is not None
        cells = {memory_cell(g, f.rank, *cell) for g in goals} | {None}
        if not any((place, c) in true_races for c in cells):
            told.append(f"race at {place} {cell} that cannot happen")
    if bool(said["race"]) != bool(true_races):
        told.append(f"races: runs {sorted(true_races, key=str)[:2]}, check {len(said['race'])}")
    if true_races:
        return told  # what is left then depends on the order
    for kind, right in (("wrong result", true_wrong), ("read before write", true_unwritten)):
        if kind == "wrong result":
            mine = {(f.rank, *f.cell) for f in said[kind] if f.cell is not None}
        else:
            mine = {((f.rank, f.tb, f.step), *f.cell) for f in said[kind] if f.cell is not None}
        if not mine <= right or (len(mine) < len(right) and len(said[kind]) < MAX_OF_A_KIND):
            told.append(f"{kind}: runs {sorted(right)[:3]}, check {sorted(mine, key=str)[:3]}")
    return told
