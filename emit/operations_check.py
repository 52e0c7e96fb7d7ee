"""The check of operations that were read from a simulator's file, with the program that the file holds as a comment."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping

from emit.findings import Findings, Verdict, not_judged
from emit.goal import Goal
from emit.msccl.format import best_root, xml_text
from emit.msccl.read import read
from emit.operations import CALC, RECV, SEND, Operations, chunks_of, operations_of
from emit.program import Program
from emit.targets import TARGETS, choose_target
from topologies.errors import InputError


def text_of(program: Program) -> str:
    """Return a program as MSCCL XML, as files of operations hold it, so that they can be checked and read back.

    It is written for the first target that can do the collective; if the reduction is not a sum, for one whose files
    name the reduction, if there is one.

    Raises:
        InputError: If no call of a gather or scatter has the sizes that the program serves.
    """
    states_redop = [row for row in TARGETS.values() if row.states_redop and program.collective in row.collectives]
    if program.redop != "sum" and states_redop:
        return xml_text(program, states_redop[0])
    return xml_text(program, choose_target(program.collective))


def judge(
    read_file: Callable[[], tuple[Operations, str | None]],
    names: Mapping[str, str],
    goal: Goal | None,
    fifo_depth: int | None,
) -> Verdict:
    """Return the verdict on a file's operations and on the program that they claim to be; never raise for bad input.

    Operations state which messages there are and what waits for what, but not what they compute. Without a program the
    verdict is never "right": it is "wrong" or "deadlock" if there is a finding, else "not readable". A program without
    a finding is "not judged" if neither `goal` nor its collective says what it must achieve.

    Args:
        read_file: Returns the operations and the program's MSCCL XML, or None if the file holds no program.
        names: The file's names of SEND, RECV and CALC.
        goal: What the program must achieve; None for the goal of its collective.
        fifo_depth: Slots of a FIFO; None for those of the program's protocol.
    """
    try:
        ranks, text = read_file()
    except InputError as error:
        return Verdict("not readable", (str(error),))
    findings = Findings()
    check_operations(ranks, names, findings)
    count = f"{len(ranks)} ranks, {sum(map(len, ranks))} operations"
    if text is None:
        if findings.reported:
            return Verdict("right", (f"right: {count}",)).with_findings(findings)
        explanation = (
            f"{count}: messages pair up and all end, but the file holds no program that says what they compute"
        )
        return Verdict("not readable", (explanation,))
    try:
        program = read(text).program
        report, program = best_root(program, goal, fifo_depth)
        if len(ranks) != program.nranks:
            findings.add("inconsistent", f"{len(ranks)} ranks; it must have its program's {program.nranks}")
        elif report.ok:
            compare_operations(ranks, operations_of(program, _size(ranks, program)), names, findings)
    except InputError as error:
        return Verdict("not readable", (f"the program in it: {error}",))
    lines = [f"{f.kind}: {f.message}" for f in report.findings]
    if not report.judged and report.ok and not findings.reported:
        return not_judged(f"coll {program.collective!r}", program=program)
    agreement = ", those of its program" if report.ok and not findings.reported else ""
    head = f"{report.status}: {program.collective} on {count}{agreement}"
    return Verdict(report.status, (head, *lines, *report.notes), report.findings, program).with_findings(findings)


def _size(ranks: Operations, program: Program) -> int:
    """Return the message size in bytes at which most of a file's messages have the program's sizes.

    It is the size with chunks of one byte if no message tells.
    """
    chunks = chunks_of(program)
    sizes: Counter[int] = Counter()
    for operations, unit_operations in zip(ranks, operations_of(program, chunks), strict=True):
        for operation, unit_operation in zip(operations, unit_operations, strict=False):
            if operation.kind == unit_operation.kind != CALC and operation.bytes % unit_operation.bytes == 0:
                sizes[operation.bytes // unit_operation.bytes] += 1
    return chunks * max(1, sizes.most_common(1)[0][0] if sizes else 1)


def check_operations(ranks: Operations, names: Mapping[str, str], findings: Findings) -> None:
    """Add a finding for each fault that does not depend on what the operations are to compute.

    That is a message of less than one byte or with a negative tag, one without its other end, with two sizes or to a
    missing rank, and operations that never start. The latter are looked for only if every message has another existing
    rank at its other end.

    Args:
        ranks: Operations of each rank.
        names: The file's names of SEND, RECV and CALC.
        findings: Where the faults are added.
    """
    messages: dict[tuple[int, int, int], tuple[list[tuple[int, int]], list[tuple[int, int]]]] = {}
    all_ends_exist = True
    for rank, operations in enumerate(ranks):
        for number, operation in enumerate(operations):
            label = f"{names[operation.kind]} {number}"
            if operation.kind != CALC and (operation.bytes < 1 or operation.tag < 0):
                findings.add(
                    "inconsistent",
                    f"{label}: {operation.bytes} bytes, tag {operation.tag}; it must be 1 byte or more",
                    rank,
                )
            if operation.kind != CALC and (not 0 <= operation.peer < len(ranks) or operation.peer == rank):
                requirement = f"another of ranks 0..{len(ranks) - 1}"
                findings.add(
                    "dangling id", f"{label}: its other end is rank {operation.peer}; it must be {requirement}", rank
                )
                all_ends_exist = False
            elif operation.kind != CALC:
                pair = (rank, operation.peer) if operation.kind == SEND else (operation.peer, rank)
                ends = messages.setdefault((*pair, operation.tag), ([], []))
                ends[operation.kind == RECV].append((rank, number))
    matched: dict[tuple[int, int], tuple[int, int]] = {}
    for (source, target, tag), (sent, received) in sorted(messages.items()):
        if len(sent) != len(received):
            message = f"rank {source} sends {len(sent)} messages of tag {tag} to rank {target}, which receives"
            findings.add("unpaired", f"{message} {len(received)}; the numbers must be equal")
        for receive, send in zip(received, sent, strict=False):
            matched[receive] = send
            sent_bytes, expected_bytes = (ranks[rank][number].bytes for rank, number in (send, receive))
            if sent_bytes != expected_bytes:
                message = f"{names[RECV]} {receive[1]}: {expected_bytes} bytes, but rank {source} sends {sent_bytes}"
                findings.add("unequal counts", f"{message}; the sizes must be equal", target)
    if all_ends_exist:
        _report_stopped(ranks, matched, names, findings)


def _report_stopped(
    ranks: Operations, matched: Mapping[tuple[int, int], tuple[int, int]], names: Mapping[str, str], findings: Findings
) -> None:
    """Add one finding, which counts them and names the first, if operations never start.

    A send waits only for the operations that it names, a receive also for its send.

    Args:
        ranks: Operations of each rank.
        matched: The send of each receive, both as (rank, position in the rank's list).
        names: The file's names of SEND, RECV and CALC.
        findings: Where the fault is added.
    """
    waits: dict[tuple[int, int], int] = {}
    frees: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for rank, operations in enumerate(ranks):
        for number, operation in enumerate(operations):
            place = rank, number
            needed = [(rank, predecessor) for predecessor in dict.fromkeys(operation.after)]
            needed += [matched[place]] if place in matched else []
            # A receive without its send was reported before, so it does not count as a deadlock.
            waits[place] = len(needed)
            for predecessor in needed:
                frees.setdefault(predecessor, []).append(place)
    ready = deque(place for place, count in waits.items() if not count)
    while ready:
        place = ready.popleft()
        del waits[place]
        for predecessor in frees.get(place, ()):
            waits[predecessor] -= 1
            if not waits[predecessor]:
                ready.append(predecessor)
    if waits:
        rank, number = next(iter(waits))
        message = f"{len(waits)} operations never start, as {names[ranks[rank][number].kind]} {number}"
        findings.add("deadlock", f"{message}; they wait for each other", rank)


def compare_operations(ranks: Operations, expected: Operations, names: Mapping[str, str], findings: Findings) -> None:
    """Add a finding for each operation that differs from the program's, and for each rank with too many or too few.

    Operations are compared position by position: kind, peer, tag, bytes, and the set of operations waited for. Those of
    a rank with too many or too few are not compared, nor is the rest of an operation of another kind.

    Args:
        ranks: Operations of each rank in the file.
        expected: Operations of each rank by the program (see `operations_of`), for as many ranks.
        names: The file's names of SEND, RECV and CALC.
        findings: Where the faults are added.
    """
    for rank, (operations, expected_operations) in enumerate(zip(ranks, expected, strict=True)):
        if len(operations) != len(expected_operations):
            findings.add(
                "inconsistent",
                f"has {len(operations)} operations; it must have its program's {len(expected_operations)}",
                rank,
            )
            continue
        for number, (operation, expected_operation) in enumerate(zip(operations, expected_operations, strict=True)):
            label = f"{names[operation.kind]} {number}"
            if operation.kind != expected_operation.kind:
                findings.add(
                    "inconsistent",
                    f"{label}: is no {names[expected_operation.kind]}, which its program has there",
                    rank,
                )
                continue
            for field in ("peer", "tag", "bytes"):
                if getattr(operation, field) != getattr(expected_operation, field):
                    message = (
                        f"{field} {getattr(operation, field)}; its program has {getattr(expected_operation, field)}"
                    )
                    findings.add("inconsistent", f"{label}: {message}", rank)
            if set(operation.after) != set(expected_operation.after):
                actual, required = (
                    ", ".join(map(str, sorted(either.after))) or "nothing" for either in (operation, expected_operation)
                )
                message = f"{label} waits for {actual}; by its program it must wait for {required}"
                findings.add("dangling dependency", message, rank)
