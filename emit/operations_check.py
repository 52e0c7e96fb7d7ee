"""The check of operations that were read from a simulator's file, with the program that stands in it as a comment."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping

from emit.findings import Findings, Verdict
from emit.goal import Goal
from emit.msccl.format import best_root, xml_text
from emit.msccl.read import read
from emit.operations import CALC, RECV, SEND, Operations, chunks_of, operations_of
from emit.program import Program
from emit.targets import TARGETS, choose_target
from topologies.errors import InputError


def text_of(program: Program) -> str:
    """A program as a file of operations carries it, so that it can be checked and read back: MSCCL XML."""
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
    """The verdict on a file's operations, and on the program that they claim to be; never raises for bad input.

    Operations alone say which messages there are and what waits for what, not what they compute: without a program they
    can be wrong, not right. read_file: gives them and the program's MSCCL XML. names: how the file calls SEND, RECV
    and CALC.
    """
    try:
        ranks, text = read_file()
    except InputError as error:
        return Verdict("not readable", (str(error),))
    found = Findings()
    check_operations(ranks, names, found)
    count = f"{len(ranks)} ranks, {sum(map(len, ranks))} operations"
    if text is None:
        if found.reported:
            return Verdict("right", (f"right: {count}",)).with_findings(found)
        what = f"{count}, whose messages pair up and which end; what they compute is not said: it holds no program"
        return Verdict("not readable", (what,))
    try:
        program = read(text).program
        report, program = best_root(program, goal, fifo_depth)
        if len(ranks) != program.nranks:
            found.add("inconsistent", f"{len(ranks)} ranks; it must have its program's {program.nranks}")
        elif report.ok:
            compare_operations(ranks, operations_of(program, _size(ranks, program)), names, found)
    except InputError as error:
        return Verdict("not readable", (f"the program in it: {error}",))
    lines = [f"{f.kind}: {f.message}" for f in report.findings]
    if not report.judged and report.ok and not found.reported:
        what = f"coll {program.collective!r} does not say what the result must be; it must be given a goal"
        return Verdict("not readable", (what,), program=program)
    same = ", those of its program" if report.ok and not found.reported else ""
    head = f"{report.status}: {program.collective} on {count}{same}"
    return Verdict(report.status, (head, *lines, *report.notes), report.findings, program).with_findings(found)


def _size(ranks: Operations, program: Program) -> int:
    """The bytes of the message that most of a file's operations are for."""
    chunks = chunks_of(program)
    sizes: Counter[int] = Counter()
    for own, wanted in zip(ranks, operations_of(program, chunks), strict=True):
        for has, wants in zip(own, wanted, strict=False):
            if has.kind == wants.kind != CALC and has.bytes % wants.bytes == 0:
                sizes[has.bytes // wants.bytes] += 1
    return chunks * max(1, sizes.most_common(1)[0][0] if sizes else 1)


def check_operations(ranks: Operations, names: Mapping[str, str], found: Findings) -> None:
    """Add a finding for what cannot be right whatever it is to do.

    That is: a message without its other end, of two sizes or to a rank that is not there, and operations that never
    start. names: how the file calls SEND, RECV and CALC.
    """
    messages: dict[tuple[int, int, int], tuple[list[tuple[int, int]], list[tuple[int, int]]]] = {}
    whole = True
    for rank, own in enumerate(ranks):
        for number, one in enumerate(own):
            where = f"{names[one.kind]} {number}"
            if one.kind != CALC and (one.bytes < 1 or one.tag < 0):
                found.add("inconsistent", f"{where}: {one.bytes} bytes, tag {one.tag}; it must be 1 byte or more", rank)
            if one.kind != CALC and (not 0 <= one.peer < len(ranks) or one.peer == rank):
                right = f"another of ranks 0..{len(ranks) - 1}"
                found.add("dangling id", f"{where}: its other end is rank {one.peer}; it must be {right}", rank)
                whole = False
            elif one.kind != CALC:
                pair = (rank, one.peer) if one.kind == SEND else (one.peer, rank)
                ends = messages.setdefault((*pair, one.tag), ([], []))
                ends[one.kind == RECV].append((rank, number))
    matched: dict[tuple[int, int], tuple[int, int]] = {}
    for (source, target, tag), (sent, received) in sorted(messages.items()):
        if len(sent) != len(received):
            what = f"rank {source} sends {len(sent)} messages of tag {tag} to rank {target}, which receives"
            found.add("unpaired", f"{what} {len(received)}; it must be as many")
        for place, of in zip(received, sent, strict=False):
            matched[place] = of
            has, wants = (ranks[rank][number].bytes for rank, number in (of, place))
            if has != wants:
                what = f"{names[RECV]} {place[1]}: {wants} bytes, of which rank {source} sends {has}"
                found.add("unequal counts", f"{what}; it must be as many", target)
    if whole:
        _report_stopped(ranks, matched, names, found)


def _report_stopped(
    ranks: Operations, matched: Mapping[tuple[int, int], tuple[int, int]], names: Mapping[str, str], found: Findings
) -> None:
    """Add a finding where operations never start; a send waits for nothing but what it names."""
    waits: dict[tuple[int, int], int] = {}
    frees: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for rank, own in enumerate(ranks):
        for number, one in enumerate(own):
            place = rank, number
            needed = [(rank, other) for other in dict.fromkeys(one.after)]
            needed += [matched[place]] if place in matched else []
            # a receive that nothing is sent to was reported, and is not that of a deadlock
            waits[place] = len(needed)
            for other in needed:
                frees.setdefault(other, []).append(place)
    ready = deque(place for place, count in waits.items() if not count)
    while ready:
        place = ready.popleft()
        del waits[place]
        for other in frees.get(place, ()):
            waits[other] -= 1
            if not waits[other]:
                ready.append(other)
    if waits:
        rank, number = next(iter(waits))
        what = f"{len(waits)} operations never start, as {names[ranks[rank][number].kind]} {number}"
        found.add("deadlock", f"{what}; they wait for each other", rank)


def compare_operations(ranks: Operations, right: Operations, names: Mapping[str, str], found: Findings) -> None:
    """Add a finding for each operation that is not what the program does; `right`: see `operations_of`."""
    for rank, (own, wanted) in enumerate(zip(ranks, right, strict=True)):
        if len(own) != len(wanted):
            found.add("inconsistent", f"has {len(own)} operations; it must have its program's {len(wanted)}", rank)
            continue
        for number, (has, wants) in enumerate(zip(own, wanted, strict=True)):
            what = f"{names[has.kind]} {number}"
            if has.kind != wants.kind:
                found.add("inconsistent", f"{what}: is no {names[wants.kind]}, which its program does there", rank)
                continue
            for field in ("peer", "tag", "bytes"):
                if getattr(has, field) != getattr(wants, field):
                    message = f"{field} {getattr(has, field)}; its program has {getattr(wants, field)}"
                    found.add("inconsistent", f"{what}: {message}", rank)
            if set(has.after) != set(wants.after):
                waits, must = (", ".join(map(str, sorted(one.after))) or "nothing" for one in (has, wants))
                message = f"{what} waits for {waits}; by its program it must wait for {must}"
                found.add("dangling dependency", message, rank)
