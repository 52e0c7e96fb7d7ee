"""Each algorithm of a report: its figures in words, its curve over sizes, and what the page's script draws."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from emit.formats import verify_program
from emit.library.index import Entry
from emit.library.lookup import goal_beside
from emit.msccl.read import read_msccl
from emit.program import Program
from emit.report.program import program_view
from emit.report.proof import proof_sentences
from emit.report.schedule import schedule_view
from emit.report.sources import Source
from emit.timing.predict import Predictor
from synth.model.problem import Problem, make_problem
from synth.model.registry import find_kind
from synth.present.statement import OPTIMAL
from synth.present.text import format_count, format_size, format_time
from synth.storage.check import Checked, check_stored
from synth.storage.schedule_file import load_schedule
from synth.timing.simulate import Clock, time_us
from topologies.errors import InputError, ScheduleError
from topologies.topology import Topology

__all__ = ["Item", "items"]

MOST_ITEMS = 200
_SENDS = 24_000  # that a page tells one by one, of all its algorithms together
_FEWEST = 400
_EXPONENTS = range(10, 31)  # message sizes of curves: 1 KiB to 1 GiB
_LONG = 100_000  # sends whose time at a further size takes a while: fewer sizes
_GROUP = 12  # ranks that a title names
_FINDINGS = 8
_PROVED = 64  # ranks of a program for which a bound is looked for

Points = tuple[tuple[float, float], ...]
Fact = tuple[str, str, str]


@dataclass(frozen=True)
class Item:
    """One algorithm as the page tells of it.

    question: equal for algorithms that may be compared.  wrong: why it is refused, or empty.
    facts: (what, figure, remark).  curve, bound: (bytes, µs).  view: what the script draws.
    stated: the bound at a size where a file only says it.
    """

    number: int
    name: str
    title: str
    subtitle: str
    question: tuple[object, ...]
    view: dict[str, Any]
    facts: tuple[Fact, ...]
    verdict: str
    wrong: str = ""
    notes: tuple[str, ...] = ()
    size_bytes: float = 0.0
    time_us: float | None = None
    bound_us: float | None = None
    serves: str = ""
    curve: Points = ()
    marks: Points = ()
    bound: Points = ()
    stated: Points = ()
    proof: tuple[str, ...] = ()
    no_proof: str = ""

    @property
    def gap(self) -> float | None:
        """Time / bound."""
        if self.time_us is None or not self.bound_us:
            return None
        return self.time_us / self.bound_us

    @property
    def optimal(self) -> bool:
        """Proved here: it takes as long as the bound."""
        return bool(self.proof) and self.gap is not None and self.gap <= OPTIMAL


def items(
    found: Sequence[Source],
    topology: Topology | None,
    group: tuple[int, ...] | None,
    size_bytes: float | None,
) -> list[Item]:
    """All of them. InputError for too many, or one that cannot be read."""
    if len(found) > MOST_ITEMS:
        raise InputError(
            f"{len(found)} algorithms: a page shows at most {MOST_ITEMS}; give one file, or a smaller folder"
        )
    most = max(_FEWEST, _SENDS // len(found))
    size = float(1 << 20) if size_bytes is None else size_bytes
    return [
        _schedule(number, source, most)
        if source.kind == "schedule"
        else _program(number, source, most, topology, group, size, len(found) == 1)
        for number, source in enumerate(found)
    ]


def _schedule(number: int, source: Source, most: int) -> Item:
    stored = load_schedule(source.path)
    problem, schedule = stored.problem, stored.schedule
    size, taken = schedule.size_bytes, time_us(problem, schedule)
    checked = check_stored(source.path, stored)
    view = schedule_view(stored, most)
    sizes = sorted({*(float(1 << e) for e in _EXPONENTS), size} - {0.0})
    if len(schedule) > _LONG:
        sizes = [s for i, s in enumerate(sizes) if i % 2 == 0 or s == size]
    curve: Points = ()
    if not checked.wrong:
        try:
            clock = Clock(problem, schedule)
            # at its own size the file's times stand, which no order of rows makes again
            curve = tuple((s, taken if s == size else time_us(problem, clock.timed(s))) for s in sizes)
        except ScheduleError:
            curve = ()
    limits = [(s, checked.bound_at(s)) for s in sizes]
    sends = len(schedule) * stored.copies
    collective = problem.collective
    network = view["network"]
    facts: list[Fact] = [("Predicted time", format_time(taken), f"at {format_size(math.ceil(size))}")]
    if checked.bound_us is not None:
        gap = taken / checked.bound_us
        facts.append(("Proved bound", format_time(checked.bound_us), "no algorithm is faster"))
        facts.append(
            ("Time / bound", f"{gap:.3f}", "optimal" if gap <= OPTIMAL else f"{_percent(gap - 1)} above")
        )
    if taken > 0 and size > 0:
        facts.append(("Algorithm bandwidth", f"{size / taken / 1e3:.4g} GB/s", "message size / time"))
    facts += [
        ("Steps", str(schedule.nsteps), f"{format_count(collective.chunks, 'chunk')} a block"),
        (
            "Sends",
            f"{sends:,}".replace(",", " "),
            f"each stored send stands for {stored.copies}" if stored.copies > 1 else "",
        ),
    ]
    facts.append(
        (
            "Busiest link",
            f"{network['busiest'] * 100:.1f} %",
            f"of the time in use; mean {network['mean'] * 100:.1f} %",
        )
    )
    entry = source.entry
    return Item(
        number=number,
        name=source.name,
        title=f"{collective.name} on {problem.topology.name}",
        subtitle=_who(problem),
        question=(collective.name, problem.topology.name, problem.group, problem.relays, collective.root),
        view=view,
        facts=tuple(facts),
        verdict="replayed: right",
        wrong=checked.wrong,
        size_bytes=size,
        time_us=taken,
        bound_us=checked.bound_us,
        serves=_served(entry.min_bytes, entry.max_bytes) if entry is not None else "",
        curve=curve,
        marks=((size, taken),),
        bound=tuple((s, b) for s, b in limits if b is not None),
        proof=tuple(proof_sentences(problem, checked, size, taken)),
        no_proof="Nothing can be said of its proof: the schedule or the proof is refused."
        if checked.wrong
        else "There is no proof beside the schedule: nothing is claimed of how near it is to the best."
        " The option --proof writes one.",
    )  # fmt: skip


def _percent(part: float) -> str:
    return f"{part * 100:.0f} %" if part >= 0.1 else f"{part * 100:.2g} %"


def _who(problem: Problem) -> str:
    topology, group = problem.topology, problem.group
    if group == tuple(range(topology.nranks)):
        who = f"all {format_count(topology.nranks, 'rank')}"
    else:
        names = " ".join(map(str, group[:_GROUP])) + (" …" if len(group) > _GROUP else "")
        who = f"group {names} ({len(group)} of {topology.nranks})"
    if problem.relays:
        who += f", {format_count(len(problem.relays), 'relay')}"
    return who + (f" · {topology.summary}" if topology.summary else "")


def _served(low: int, high: int | None) -> str:
    if low == high:
        return format_size(low)
    if high is None:
        return f"from {format_size(low)}" if low else "all sizes"
    return f"{format_size(low)} to {format_size(high)}" if low else f"up to {format_size(high)}"


@dataclass(frozen=True)
class _Timing:
    """What is known of a program's time: at `size_bytes`, and over sizes; its bound where that is proved or stated."""

    size_bytes: float = 0.0
    time_us: float | None = None
    curve: Points = ()
    checked: Checked | None = None
    problem: Problem | None = None
    stated_us: float | None = None

    @property
    def bound_us(self) -> float | None:
        """Proved here, else stated by an index."""
        return self.stated_us if self.checked is None else self.checked.bound_us


def _program(
    number: int,
    source: Source,
    most: int,
    topology: Topology | None,
    group: tuple[int, ...] | None,
    size: float,
    alone: bool,
) -> Item:
    program = read_msccl(source.path)
    entry = source.entry
    goal = goal_beside(source.path)
    verdict = verify_program(source.path, goal)
    right = verdict.status == "right"
    explained = [line for line in verdict.lines if line][: _FINDINGS + 1]
    notes = explained[1:] if right else explained if verdict.status == "not readable" else []
    timing = _stated(entry.values if entry is not None else {})
    if group is None and entry is not None and topology is not None and topology.name == entry.topology:
        group = entry.communicator
    try:
        view = program_view(program, most, goal, topology, group, size)
        if topology is not None:
            timing = _timed(program, topology, group, size, right)
    except InputError as error:
        if alone or topology is None:
            raise
        # of many, some may be for other networks
        notes = [*notes, f"Shown in steps: {error}."]
        view = program_view(program, most, goal)
    facts = _program_facts(program, view)
    size, taken, bound_us = timing.size_bytes, timing.time_us, timing.bound_us
    if taken is not None:
        how = "proved below" if timing.checked is not None else "as the index states it"
        if bound_us:
            facts.insert(0, ("Time / bound", f"{taken / bound_us:.3f}", how))
        facts.insert(0, ("Predicted time", format_time(taken), f"at {format_size(round(size))}"))
    on = topology.name if topology is not None and timing.curve else None if entry is None else entry.topology
    proof: list[str] = []
    bound: Points = ()
    if timing.checked is not None and timing.problem is not None and taken is not None:
        proof = proof_sentences(timing.problem, timing.checked, size, taken)
        bound = tuple((s, timing.checked.bound_at(s) or 0.0) for s, _ in timing.curve)
    return Item(
        number=number,
        name=source.name,
        title=program.collective + ("" if on is None else f" on {on}"),
        subtitle=f"{format_count(program.nranks, 'rank')} · MSCCL, {program.protocol}",
        question=(program.collective, on, entry.group, entry.relays, _position(entry))
        if entry is not None
        else (program.collective, on, program.nranks),
        view=view,
        facts=tuple(facts),
        verdict="checked: right" if right else verdict.status,
        wrong="; ".join(explained).removeprefix("wrong: ") if verdict.status in ("wrong", "deadlock") else "",
        notes=tuple(notes),
        size_bytes=size,
        time_us=taken,
        bound_us=bound_us,
        serves=_served(program.min_bytes, program.max_bytes or None),
        curve=timing.curve,
        marks=() if taken is None else ((size, taken),),
        bound=bound,
        stated=((size, bound_us),) if bound_us and timing.checked is None else (),
        proof=tuple(proof),
        no_proof=_no_proof(entry, topology),
    )


def _position(entry: Entry) -> int:
    """The root as `Collective` has it: its place in the group, 0 where there is none."""
    return 0 if entry.root is None else entry.group.index(entry.root)


def _no_proof(entry: Entry | None, topology: Topology | None) -> str:
    words = None if entry is None else entry.values.get("proof")
    if isinstance(words, str):
        return (
            f"The library's index states: {words[:400]}. It is not worked out again here; synth prove does that with"
            " the schedule's own files."
        )
    if topology is None:
        return (
            "An MSCCL file says nothing of how near it is to the best. Give the network (--topo) to find out."
        )
    return f"No bound is worked out for it: it is not right, its root is not known, or it has over {_PROVED} ranks."


def _stated(values: Mapping[str, Any]) -> _Timing:
    """What an index says."""
    size, taken, bound_us = (_positive(values.get(key)) for key in ("shown_bytes", "time_us", "bound_us"))
    return _Timing(size, taken, stated_us=bound_us) if size and taken and bound_us else _Timing()


def _timed(
    program: Program, topology: Topology, group: tuple[int, ...] | None, size: float, right: bool
) -> _Timing:
    """Predicted on a topology; with a bound for what is asked where the file says that in full."""
    clock = Predictor(program, topology, group)
    curve = tuple((float(1 << e), clock.time_us(float(1 << e))) for e in _EXPONENTS)
    taken = clock.time_us(size)
    kind = find_kind(program.collective)
    if not right or not kind.unit or kind.rooted or program.nranks > _PROVED:
        return _Timing(size, taken, curve)
    from synth.bounds.prove import prove

    problem = make_problem(topology, program.collective, clock.group)
    limits = prove(problem).witnesses
    decisive = max(limits, key=lambda witness: witness.at(size))
    return _Timing(
        size, taken, curve, Checked(bound_us=decisive.at(size), witness=decisive, limits=limits), problem
    )


def _positive(value: object) -> float:
    """A number above 0 of somebody's index, else 0."""
    return float(value) if isinstance(value, (int, float)) and 0 < value < math.inf else 0.0


def _program_facts(program: Program, view: dict[str, Any]) -> list[Fact]:
    blocks = [len(gpu.threadblocks) for gpu in program.gpus]
    facts: list[Fact] = [
        (
            "Instructions",
            f"{program.nsteps:,}".replace(",", " "),
            f"on {format_count(program.nranks, 'rank')}",
        ),
        ("Threadblocks", str(max(blocks, default=0)), f"at most on a rank; {sum(blocks)} in all"),
        ("Channels", str(program.nchannels), program.protocol),
        ("Chunks", str(program.nchunks_per_loop), "of a buffer, in a loop"),
    ]
    if view["network"] is not None:
        if view["unit"] == "steps":
            facts.append(("Longest chain", format_count(round(view["span"]), "step"), "one after another"))
        facts.append(("Transmissions", f"{view['sends']['total']:,}".replace(",", " "), ""))
    return facts
