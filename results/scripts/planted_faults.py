"""Plant faults in right programs of many makers, and check whether the check finds each, and at the right place.

    python -m results.scripts.planted_faults [FILE.xml ...]

makes planted_faults.md. The files are right MSCCL XML files of other makers, in which faults are planted as well.
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
EACH = 40  # Programs for each method of planting.
RANDOM = 6000  # Programs that are changed at random.
DEPTHS = (1, 2, 3, 8)
STEPS = 20_000
GOAL_S = 2.0
STRANGERS = "another maker's file"
LARGE = (
    ("dgx2", "alltoall"), ("dgx2", "allreduce"), ("torus:4x4", "allreduce"), ("torus:4x4", "alltoall"),
    ("mesh:4x4", "allgather"), ("dgx-a100:2", "allreduce"), ("dgx-a100:2", "reducescatter"),
)  # fmt: skip


def others(files: Sequence[str]) -> Iterator[Right]:
    """Yield the right programs among files of other makers."""
    for file in files:
        program = read_msccl(file)
        report = check(program, target=None, split=False)
        if report.ok and report.judged:
            yield Right(Path(file).name, program, None, STRANGERS)


def faults(rights: Sequence[Right]) -> list[tuple[object, ...]]:
    """Return a row for each method of planting: programs, faults found, and faults located."""
    rows: list[tuple[object, ...]] = []
    for kind, methods in PLANTERS.items():
        # A run holds back each step in turn to show the fault, so these programs must be short.
        short = [right for right in rights if right.program.nsteps <= MOST_STEPS]
        for method in methods:
            nplanted = nfound = nlocated = 0
            names = set()
            for right, fault in planted(kind, method, short if kind in SEEN else rights, EACH):
                nplanted += 1
                names.add(right.name)
                report = check(fault.program, fault.goal, fault.depth, target=fault.target)
                nfound += any(f.kind == fault.kind for f in report.findings)
                nlocated += any(fault.named_by(f) for f in report.findings)
            rows.append((kind, method, nplanted, len(names), nfound, nlocated))
    return rows


def faults_in_text(rights: Sequence[Right]) -> list[tuple[object, ...]]:
    """Return a row for each method of planting a fault in a file's text.

    A row counts the readers that refuse the file, how many of these refusals the check finds, and how often it accuses
    a reader that takes the file.
    """
    rows: list[tuple[object, ...]] = []
    for method in WAYS:
        nplanted = nfound = accused_too = 0
        for right, text, faulty, refusing in changed_texts(method, rights, EACH // 4):
            for reader in READERS:
                after = verify(faulty, right.goal, None, reader).exit_code
                nplanted += reader in refusing
                nfound += reader in refusing and after > 0
                accused_too += reader not in refusing and after > verify(text, right.goal, None, reader).exit_code
        rows.append((method, ", ".join(sorted(WAYS[method][2])), nplanted, nfound, accused_too))
    return rows


def accused(rights: Sequence[Right]) -> list[tuple[object, ...]]:
    """Return a row for each maker: its right programs, and how many the check accuses."""
    rows: list[tuple[object, ...]] = []
    for origin in dict.fromkeys(right.origin for right in rights):
        members = [right for right in rights if right.origin == origin]
        wrong = sum(
            not check(
                right_program.program, right_program.goal, target=None, split=right_program.origin != STRANGERS
            ).ok
            for right_program in members
        )
        words = sorted({right.program.collective for right in members})
        protocols = sorted({right.program.protocol for right in members})
        rows.append((origin, ", ".join(words), ", ".join(protocols), len(members), wrong))
    return rows


def compared(rights: Sequence[Right]) -> list[tuple[object, ...]]:
    """Return a row for each number of FIFO slots: random programs, and how often the check and the runs differ."""
    small = [right for right in rights if right.program.nsteps <= MOST_STEPS // 2]
    rows: list[tuple[object, ...]] = []
    for depth in DEPTHS:
        rng = random.Random(depth)
        counts: Counter[str] = Counter()
        for right, program in sample(small, RANDOM // len(DEPTHS), depth):
            split = rng.random() < 0.7
            difference = differences(program, right.goal, depth, split)
            if difference is None:
                counts["not run"] += 1
                continue
            counts["differ"] += bool(difference)
            report = check(program, right.goal, depth, target=None, split=split)
            counts["right" if report.ok else "wrong"] += 1
        rows.append((depth, counts["not run"], counts["wrong"], counts["right"], counts["differ"]))
    return rows


def large() -> Iterator[tuple[str, Program]]:
    """Yield programs of 16 ranks and about STEPS instructions, lowered and hand-built, with many chunks."""
    for name, program in (
        ("hand-built ring all-reduce", ring_allreduce(16, STEPS // (16 * 31))),
        ("hand-built all-pairs all-reduce", allpairs_allreduce(16)),
        ("hand-built doubling all-gather", doubling_allgather(16)),
    ):
        yield name, finer(program, max(1, round(STEPS / program.nsteps)))
    for spec, collective in LARGE:
        engines_used = set()
        for algorithm in baseline(make_problem(load(spec), collective)):
            if algorithm.engine in engines_used:
                continue
            engines_used.add(algorithm.engine)
            try:
                program, _ = lower(algorithm, "large", "LL128")
            except InputError:
                continue
            yield (
                f"{collective} on {spec} by {algorithm.engine}",
                finer(program, max(1, round(STEPS / program.nsteps))),
            )


def plans() -> Iterator[tuple[Json, int]]:
    """Yield right plans of packets on one node and on two, each with its root."""
    for program in SMALL.values():
        if program.collective not in ("gather", "scatter"):
            for nodes in (1, 2):
                packet_program = replace(program, protocol="LL", max_bytes=LL_MOST_BYTES)
                node_of_rank = [nodes * rank // program.nranks for rank in range(program.nranks)]
                yield json.loads(write_plan(packet_program, nodes=node_of_rank)), program.root


def plan_faults() -> list[tuple[object, ...]]:
    """Return a row for each kind of fault of an execution plan: the number planted and found.

    The last row counts the right plans, and how many of them the check accuses.
    """
    rows: list[tuple[object, ...]] = []
    rights = list(plans())
    for kind, spoil in LATER_FAULTS.items():
        reports = [check_plan(json.dumps(spoilt), root=root) for plan, root in rights for spoilt in spoil(plan)]
        rows.append((kind, len(reports), sum(not report.ok for report in reports)))
    rows.append(("none", len(rights), sum(not check_plan(json.dumps(plan), root=root).ok for plan, root in rights)))
    return rows


def times() -> list[tuple[object, ...]]:
    """Return a row for each large program: seconds of its check, and their ratio to the goal."""
    rows: list[tuple[object, ...]] = []
    for name, program in large():
        seconds_of_runs = []
        for _ in range(3):
            start_s = time.perf_counter()
            report = check(program, fifo_depth=STEPS, target=None)
            seconds_of_runs.append(time.perf_counter() - start_s)
        blocks = sum(len(gpu.threadblocks) for gpu in program.gpus)
        seconds = statistics.median(seconds_of_runs)
        rows.append((name, program.nsteps, blocks, report.status, f"{seconds:.3f}", f"{seconds / GOAL_S:.3f}"))
    return rows


def main(files: Sequence[str]) -> None:
    """Check all programs with and without faults, and write the table; exit with an error if the check is wrong."""
    file_programs = list(others(files))
    rights = [*right_programs(), *file_programs]
    rows = faults(rights)
    by_kind = {kind: [sum(int(str(r[x])) for r in rows if r[0] == kind) for x in (2, 4, 5)] for kind in PLANTERS}
    planted_all, found_all, named_all = (sum(sums[x] for sums in by_kind.values()) for x in range(3))
    fewest = min(by_kind, key=lambda kind: by_kind[kind][0])
    text_rows = faults_in_text(rights)
    right_rows = accused(rights)
    random_rows = compared(rights)
    time_rows = times()
    plan_rows = plan_faults()
    slowest = max(time_rows, key=lambda row: float(str(row[4])))
    files_text = f", {len(file_programs)} of them files of other makers ({', '.join(r.name for r in file_programs)})"
    text = page(
        __file__,
        "Faults planted in right programs",
        [
            "Each fault is certain: by construction (an offset beyond the end, a missing end of a connection), or"
            " because an executor observed it. The executor shares nothing with the check, and decides for all orders"
            " by holding one transmission back. *Located*: a finding of this kind names the rank, threadblock, step"
            " and cell of the fault, if it has them: for a race one of the two steps, for a wrong result the cell and"
            " the step that wrote it last, for a deadlock a cycle of stopped steps, for an unpaired connection one of"
            f" its ends. The faults are planted in {len(rights)} right programs{files_text if file_programs else ''}.",
            f"**{planted_all} planted, {found_all} found, {named_all} located; at least {by_kind[fewest][0]} of each"
            f" kind ({fewest}).**",
            grid(("kind", "planted by", "programs", "distinct right programs", "found", "located"), rows),
            "## Execution plans of MSCCL++, launch after launch",
            "These faults do not show in the first launch, with a small message or with a single plan. A launch that"
            " runs ahead, and one scratch for all launches, are faults only if a rank receives no signal from the"
            " ranks that it writes to.",
            grid(("kind", "planted", "found"), plan_rows),
            "## Faults in the text of files",
            "The named readers refuse each of these files, and `verify --target` must refuse it for them and for no"
            " other reader.",
            grid(("planted", "refused by", "files × readers", "found", "other readers accused"), text_rows),
            "## Right programs",
            grid(("maker", "collectives", "protocols", "right programs", "accused"), right_rows),
            "## Programs changed at random",
            "Each program has one to three random changes. The check and the runs must agree on deadlocks, on races"
            " and their cells, and without races on each wrong cell and each read of an unwritten cell (the first"
            f" {MAX_OF_A_KIND} of each kind). *Not run*: the numbers of the program contradict each other, which the"
            " check finds without a run.",
            grid(("FIFO slots", "not run", "wrong", "right", "check and runs differ"), random_rows),
            "## Time",
            f"The programs have 16 ranks and about {STEPS} instructions. The slowest check takes {slowest[4]} s,"
            f" {slowest[5]} of the goal of {GOAL_S:g} s.",
            grid(("program", "instructions", "threadblocks", "status", "seconds", "seconds / goal"), time_rows),
            f"FIFO slots by protocol: {', '.join(f'{p} {d}' for p, d in FIFO_DEPTH.items())}.",
        ],
    )
    if file_programs:
        text = text.replace("planted_faults.py`", "planted_faults.py FILE.xml …`", 1)
    write(__file__, text)
    if found_all < planted_all or named_all < planted_all or by_kind[fewest][0] < 20:
        raise SystemExit(
            "planted_faults: a planted fault was not found or not located, or too few were planted; see the table"
        )
    if any(row[2] != row[3] or row[4] for row in text_rows):
        raise SystemExit(
            "planted_faults: a fault in a text was not found, or a reader that takes a file was accused; see the table"
        )
    if any(row[-1] for row in right_rows) or any(row[-1] for row in random_rows):
        raise SystemExit("planted_faults: a right program was accused, or the check and the runs differ; see the table")


if __name__ == "__main__":
    main(sys.argv[1:])
