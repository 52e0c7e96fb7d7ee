"""Faults planted in right programs of many makers: whether the check finds each, and where it says that it is.

    python -m results.scripts.planted_faults [FILE.xml ...]

makes planted_faults.md. FILES are right MSCCL XMLs of other makers, to plant faults in as well.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from emit.check.program import check
from emit.compiler.lower import lower
from emit.findings import MAX_OF_A_KIND
from emit.msccl.format import verify
from emit.msccl.read import read_msccl
from emit.mscclpp.format import check_plan, write_plan
from emit.program import FIFO_DEPTH, Program
from emit.targets import LL_MOST_BYTES
from results.measuring.measure import grid, page, write
from synth.baselines import baseline
from synth.model.problem import make_problem
from tests.emit.check.against_runs import differences
from tests.emit.check.equivalent_programs import finer
from tests.emit.check.fault_kinds import PLANTERS, planted
from tests.emit.check.faults_by_running import SEEN
from tests.emit.check.faults_in_text import READERS, WAYS, changed_texts
from tests.emit.mscclpp.plan_faults import LATER_FAULTS
from tests.emit.random_programs import sample
from tests.emit.right_programs import MOST_STEPS, Right, right_programs
from tests.emit.small_programs import RIGHT as SMALL
from tests.emit.small_programs import allpairs_allreduce, doubling_allgather, ring_allreduce
from topologies.errors import InputError
from topologies.load import load

Json = dict[str, Any]
EACH = 40  # programs a way of planting
RANDOM = 6000  # programs changed at random
DEPTHS = (1, 2, 3, 8)
STEPS = 20_000
GOAL_S = 2.0
STRANGERS = "another maker's file"
LARGE = (
    ("dgx2", "alltoall"), ("dgx2", "allreduce"), ("torus:4x4", "allreduce"), ("torus:4x4", "alltoall"),
    ("mesh:4x4", "allgather"), ("dgx-a100:2", "allreduce"), ("dgx-a100:2", "reducescatter"),
)  # fmt: skip


def others(files: Sequence[str]) -> Iterator[Right]:
    """Right programs of other makers."""
    for file in files:
        program = read_msccl(file)
        report = check(program, target=None, split=False)
        if report.ok and report.judged:
            yield Right(Path(file).name, program, None, STRANGERS)


def faults(rights: Sequence[Right]) -> list[tuple[object, ...]]:
    """A row a way of planting."""
    rows: list[tuple[object, ...]] = []
    for kind, ways in PLANTERS.items():
        # to see what a run does every step is held back in turn, so those programs must be short
        short = [right for right in rights if right.program.nsteps <= MOST_STEPS]
        for way in ways:
            made = found = named = 0
            names = set()
            for right, fault in planted(kind, way, short if kind in SEEN else rights, EACH):
                made += 1
                names.add(right.name)
                report = check(fault.program, fault.goal, fault.depth, target=fault.target)
                found += any(f.kind == fault.kind for f in report.findings)
                named += any(fault.named_by(f) for f in report.findings)
            rows.append((kind, way, made, len(names), found, named))
    return rows


def faults_in_text(rights: Sequence[Right]) -> list[tuple[object, ...]]:
    """A row a way of planting in a file's text: for each reader that does not take it found or not, others accused."""
    rows: list[tuple[object, ...]] = []
    for way in WAYS:
        made = found = accused_too = 0
        for right, text, faulty, refusing in changed_texts(way, rights, EACH // 4):
            for reader in READERS:
                after = verify(faulty, right.goal, None, reader).exit_code
                made += reader in refusing
                found += reader in refusing and after > 0
                accused_too += reader not in refusing and after > verify(text, right.goal, None, reader).exit_code
        rows.append((way, ", ".join(sorted(WAYS[way][2])), made, found, accused_too))
    return rows


def accused(rights: Sequence[Right]) -> list[tuple[object, ...]]:
    """A row a maker: right programs, and how many the check accuses."""
    rows: list[tuple[object, ...]] = []
    for origin in dict.fromkeys(right.origin for right in rights):
        mine = [right for right in rights if right.origin == origin]
        wrong = sum(not check(r.program, r.goal, target=None, split=r.origin != STRANGERS).ok for r in mine)
        words = sorted({right.program.collective for right in mine})
        protocols = sorted({right.program.protocol for right in mine})
        rows.append((origin, ", ".join(words), ", ".join(protocols), len(mine), wrong))
    return rows


def compared(rights: Sequence[Right]) -> list[tuple[object, ...]]:
    """A row a number of FIFO slots: random programs, and on how many the check and the runs differ."""
    small = [right for right in rights if right.program.nsteps <= MOST_STEPS // 2]
    rows: list[tuple[object, ...]] = []
    for depth in DEPTHS:
        rng = random.Random(depth)
        counts: Counter[str] = Counter()
        for right, program in sample(small, RANDOM // len(DEPTHS), depth):
            split = rng.random() < 0.7
            told = differences(program, right.goal, depth, split)
            if told is None:
                counts["not run"] += 1
                continue
            counts["differ"] += bool(told)
            report = check(program, right.goal, depth, target=None, split=split)
            counts["right" if report.ok else "wrong"] += 1
        rows.append((depth, counts["not run"], counts["wrong"], counts["right"], counts["differ"]))
    return rows


def large() -> Iterator[tuple[str, Program]]:
    """Programs of 16 ranks and about STEPS instructions: many chunks, in lowered and in hand-built programs."""
    for name, program in (
        ("hand-built ring all-reduce", ring_allreduce(16, STEPS // (16 * 31))),
        ("hand-built all-pairs all-reduce", allpairs_allreduce(16)),
        ("hand-built doubling all-gather", doubling_allgather(16)),
    ):
        yield name, finer(program, max(1, round(STEPS / program.nsteps)))
    for spec, collective in LARGE:
        seen = set()
        for algorithm in baseline(make_problem(load(spec), collective)):
            if algorithm.engine in seen:
                continue
            seen.add(algorithm.engine)
            try:
                program, _ = lower(algorithm, "large", "LL128")
            except InputError:
                continue
            yield (
                f"{collective} on {spec} by {algorithm.engine}",
                finer(program, max(1, round(STEPS / program.nsteps))),
            )


def plans() -> Iterator[tuple[Json, int]]:
    """Right plans of packets on one node and on two, each with its root."""
    for program in SMALL.values():
        if program.collective not in ("gather", "scatter"):
            for nodes in (1, 2):
                made = replace(program, protocol="LL", max_bytes=LL_MOST_BYTES)
                where = [nodes * rank // program.nranks for rank in range(program.nranks)]
                yield json.loads(write_plan(made, nodes=where)), program.root


def plan_faults() -> list[tuple[object, ...]]:
    """A row a kind of fault of an execution plan: planted, found by its check, and with one finding alone."""
    rows: list[tuple[object, ...]] = []
    rights = list(plans())
    for kind, spoil in LATER_FAULTS.items():
        reports = [check_plan(json.dumps(one), root=root) for plan, root in rights for one in spoil(plan)]
        rows.append((kind, len(reports), sum(not report.ok for report in reports)))
    rows.append(("none", len(rights), sum(not check_plan(json.dumps(plan), root=root).ok for plan, root in rights)))
    return rows


def times() -> list[tuple[object, ...]]:
    """A row a large program: seconds of its check, and their ratio to the goal."""
    rows: list[tuple[object, ...]] = []
    for name, program in large():
        taken = []
        for _ in range(3):
            begun = time.perf_counter()
            report = check(program, fifo_depth=STEPS, target=None)
            taken.append(time.perf_counter() - begun)
        blocks = sum(len(gpu.threadblocks) for gpu in program.gpus)
        seconds = statistics.median(taken)
        rows.append((name, program.nsteps, blocks, report.status, f"{seconds:.3f}", f"{seconds / GOAL_S:.3f}"))
    return rows


def main(files: Sequence[str]) -> None:
    strangers = list(others(files))
    rights = [*right_programs(), *strangers]
    rows = faults(rights)
    by_kind = {kind: [sum(int(str(r[x])) for r in rows if r[0] == kind) for x in (2, 4, 5)] for kind in PLANTERS}
    planted_all, found_all, named_all = (sum(sums[x] for sums in by_kind.values()) for x in range(3))
    fewest = min(by_kind, key=lambda kind: by_kind[kind][0])
    texts = faults_in_text(rights)
    clean = accused(rights)
    checked = compared(rights)
    timed = times()
    later = plan_faults()
    slowest = max(timed, key=lambda row: float(str(row[4])))
    given = f", and {len(strangers)} files of other makers ({', '.join(r.name for r in strangers)})"
    text = page(
        __file__,
        "Faults planted in right programs",
        [
            f"Each fault is certain: made so (an offset beyond the end, an end of a connection taken away), or seen "
            f"to happen by an executor that shares nothing with the check and decides for all orders by holding one "
            f"transmission back. *Named*: a finding of this kind names the rank, threadblock, step and cell where the "
            f"fault is, as far as it has them: of a race either of the two steps, of a wrong result the cell and the "
            f"step that wrote it last, of a deadlock a circle of stopped steps, of what is unpaired either end. "
            f"Planted in {len(rights)} right programs{given if strangers else ''}.",
            f"**{planted_all} planted, {found_all} found, {named_all} named; at least {by_kind[fewest][0]} of a kind "
            f"({fewest}).**",
            grid(("kind", "planted by", "programs", "from so many right ones", "found", "named"), rows),
            "## Execution plans of MSCCL++, launch after launch",
            "What the first launch, a small message or a single plan does not show. A launch that runs ahead, and one "
            "scratch for all, are faults only where a rank does not hear of those that it writes to.",
            grid(("kind", "planted", "found"), later),
            "## Faults in the text of files",
            "Each is refused by the readers named, for whom `verify --target` must find it, and by no other.",
            grid(("planted", "not taken by", "files × readers", "found", "others that are accused"), texts),
            "## Right programs",
            grid(("made by", "collectives", "protocols", "right programs", "accused"), clean),
            "## The other way round: programs changed at random",
            f"One to three random changes; the check and the runs must agree on deadlock, on races and their cells, "
            f"and without races on each wrong cell and each read of what nothing wrote (the first {MAX_OF_A_KIND} of a "
            f"kind). "
            f"*Not run*: the numbers contradict each other, which the check finds without running.",
            grid(("FIFO slots", "not run", "wrong", "right", "check and runs differ"), checked),
            "## Time",
            f"16 ranks, about {STEPS} instructions; the slowest takes {slowest[4]} s, {slowest[5]} of the "
            f"{GOAL_S:g} s that it may.",
            grid(("program", "instructions", "threadblocks", "status", "seconds", "of 2 s"), timed),
            f"Slots of a FIFO by protocol: {', '.join(f'{p} {d}' for p, d in FIFO_DEPTH.items())}.",
        ],
    )
    if strangers:
        text = text.replace("planted_faults.py`", "planted_faults.py FILE.xml …`", 1)
    write(__file__, text)
    if found_all < planted_all or named_all < planted_all or by_kind[fewest][0] < 20:
        raise SystemExit("a planted fault was not found, or too few were planted")
    if any(row[2] != row[3] or row[4] for row in texts):
        raise SystemExit("a fault in the text was not found, or a reader that takes it was said not to")
    if any(row[-1] for row in clean) or any(row[-1] for row in checked):
        raise SystemExit("a right program was accused, or the check and the runs differ")


if __name__ == "__main__":
    main(sys.argv[1:])
