"""Each algorithm of a report: its figures in words, its curve over sizes, and what the page's script draws."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from emit.formats import verify_program
from emit.library.index import Entry
from emit.library.lookup import goal_beside
from emit.msccl.read import read_msccl
from emit.program import Program
from emit.report.program import program_view
from emit.report.proof import explain_proof
from emit.report.schedule import schedule_view
from emit.report.sources import Source
from emit.timing.predict import Predictor
from synth.bounds.prove import OPTIMAL, prove
from synth.model.problem import Problem, make_problem
from synth.model.registry import find_kind
from synth.present.text import format_count, format_number, format_served, format_size, format_time
from synth.storage.check import Checked, check_stored
from synth.storage.schedule_file import Stored, load_schedule
from synth.timing.simulate import Clock, time_us
from topologies.errors import InputError, ScheduleError
from topologies.topology import Topology

MOST_ITEMS = 200
_SENDS = 24_000  # that a page lists one by one, of all its algorithms together
_FEWEST_SENDS = 400  # of each
_EXPONENTS = range(10, 31)  # message sizes of curves: 1 KiB to 1 GiB
_LONG = 100_000  # sends whose time at a further size takes a while: fewer sizes
_GROUP = 12  # ranks that a title names
_FINDINGS = 8  # that a page lists
_PROVED = 64  # ranks of a program for which a bound is looked for

Points = tuple[tuple[float, float], ...]
Fact = tuple[str, str, str]


@dataclass(frozen=True)
class Item:
    """One algorithm as the page shows it.

    question: equal for algorithms that may be compared.  wrong: why it is refused, or empty.
    facts: (what, figure, remark).  curve, bound: (bytes, µs).  view: what the script draws.
    stated: the bound at a size where a file states it without a proof.
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
        return None if self.time_us is None or not self.bound_us else self.time_us / self.bound_us

    @property
    def optimal(self) -> bool:
        """Proved here: it takes as long as the bound."""
        return bool(self.proof) and self.gap is not None and self.gap <= OPTIMAL


def make_items(
    found: Sequence[Source], topology: Topology | None, group: tuple[int, ...] | None, size_bytes: float | None
) -> list[Item]:
    """All of them. InputError for too many, or one that cannot be read."""
    if len(found) > MOST_ITEMS:
        raise InputError(
            f"{len(found)} algorithms: a page shows at most {MOST_ITEMS}; give one file, or a smaller folder"
        )
    most = max(_FEWEST_SENDS, _SENDS // len(found))
    size = float(1 << 20) if size_bytes is None else size_bytes
    return [
        _schedule_item(number, source, most)
        if source.kind == "schedule"
        else _program_item(number, source, most, topology, group, size, len(found) == 1)
        for number, source in enumerate(found)
    ]


def _schedule_item(number: int, source: Source, most: int) -> Item:
    stored = load_schedule(source.path)
    problem, schedule = stored.problem, stored.schedule
    size, taken = schedule.size_bytes, time_us(problem, schedule)
    checked = check_stored(source.path, stored)
    view = schedule_view(stored, most)
    entry, collective = source.entry, problem.collective
    return Item(
        number=number,
        name=source.name,
        title=f"{collective.name} on {problem.topology.name}",
        subtitle=_who(problem),
        question=(collective.name, problem.topology.name, problem.group, problem.relays, collective.root),
        view=view,
        facts=tuple(_schedule_facts(stored, taken, checked.bound_us, view)),
        verdict="replayed: right",
        wrong=checked.wrong,
        size_bytes=size,
        time_us=taken,
        bound_us=checked.bound_us,
        serves=format_served(entry.min_bytes, entry.max_bytes) if entry is not None else "",
        curve=() if checked.wrong else _schedule_curve(stored, taken),
        marks=((size, taken),),
        bound=_bound_curve(checked, _curve_sizes(stored)),
        proof=tuple(explain_proof(problem, checked, size, taken)),
        no_proof="Nothing can be said of its proof: the schedule or the proof is refused."
        if checked.wrong
        else "There is no proof beside the schedule: nothing is claimed of how near it is to the best."
        " The option --proof writes one.",
    )  # fmt: skip


def _curve_sizes(stored: Stored) -> list[float]:
    """Message sizes in bytes for a schedule's curve, its own among them."""
    size = stored.schedule.size_bytes
    sizes = sorted({*(float(1 << e) for e in _EXPONENTS), size} - {0.0})
    if len(stored.schedule) > _LONG:
        sizes = [s for i, s in enumerate(sizes) if i % 2 == 0 or s == size]
    return sizes


def _bound_curve(checked: Checked, sizes: Iterable[float]) -> Points:
    return tuple((size, bound_us) for size in sizes if (bound_us := checked.bound_at(size)) is not None)


def _schedule_curve(stored: Stored, taken_us: float) -> Points:
    """(bytes, µs); empty where the order of sends stands at its own size only."""
    problem, schedule = stored.problem, stored.schedule
    try:
        clock = Clock(problem, schedule)
        # at its own size the file's times stand, which no order of rows makes again
        return tuple(
            (s, taken_us if s == schedule.size_bytes else time_us(problem, clock.timed(s)))
            for s in _curve_sizes(stored)
        )
    except ScheduleError:
        return ()


def _schedule_facts(stored: Stored, taken_us: float, bound_us: float | None, view: dict[str, Any]) -> list[Fact]:
    schedule, size, network = stored.schedule, stored.schedule.size_bytes, view["network"]
    facts: list[Fact] = [("Predicted time", format_time(taken_us), f"at {format_size(math.ceil(size))}")]
    if bound_us is not None:
        gap = taken_us / bound_us
        above = "optimal" if gap <= OPTIMAL else f"{_percent(gap - 1)} above"
        facts.append(("Proved bound", format_time(bound_us), "no algorithm is faster"))
        facts.append(("Time / bound", f"{gap:.3f}", above))
    if taken_us > 0 and size > 0:
        facts.append(("Algorithm bandwidth", f"{size / taken_us / 1e3:.4g} GB/s", "message size / time"))
    copies = f"each stored send stands for {stored.orbit}" if stored.orbit > 1 else ""
    chunks = format_count(stored.problem.collective.chunks, "chunk")
    mean = f"of the time in use; mean {network['mean'] * 100:.1f} %"
    return [
        *facts,
        ("Steps", str(schedule.nsteps), f"{chunks} a block"),
        ("Sends", format_number(len(schedule) * stored.orbit), copies),
        ("Busiest link", f"{network['busiest'] * 100:.1f} %", mean),
    ]


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


@dataclass(frozen=True)
class _Timing:
    """What is known of a program's time on a topology, and its bound where `problem`'s is proved or stated."""

    on: str | None
    size_bytes: float = 0.0
    time_us: float | None = None
    curve: Points = ()
    proved: Checked | None = None
    problem: Problem | None = None
    stated_us: float | None = None

    @property
    def bound_us(self) -> float | None:
        """Proved here, else stated by an index."""
        return self.stated_us if self.proved is None else self.proved.bound_us


def _program_item(
    number: int,
    source: Source,
    most: int,
    topology: Topology | None,
    group: tuple[int, ...] | None,
    size: float,
    only: bool,
) -> Item:
    """only: it is the page's only one, so that it must run on the topology."""
    program, entry, goal = read_msccl(source.path), source.entry, goal_beside(source.path)
    verdict = verify_program(source.path, goal)
    right = verdict.status == "right"
    explained = [line for line in verdict.lines if line][: _FINDINGS + 1]
    notes = explained[1:] if right else explained if verdict.status == "not readable" else []
    timing = _stated(entry)
    if group is None and entry is not None and topology is not None and topology.name == entry.topology:
        group = entry.communicator
    try:
        view = program_view(program, most, goal, topology, group, size)
        if topology is not None:
            timing = _timed(program, topology, group, size, right)
    except InputError as error:
        if only or topology is None:
            raise
        # of many, some may be for other networks
        notes = [*notes, f"Shown in steps: {error}."]
        view = program_view(program, most, goal)
    taken, proved = timing.time_us, timing.proved
    proof: list[str] = []
    if proved is not None and timing.problem is not None and taken is not None:
        proof = explain_proof(timing.problem, proved, size, taken)
    asked: tuple[object, ...] = (program.nranks,)
    if entry is not None:
        asked = entry.group, entry.relays, 0 if entry.root is None else entry.group.index(entry.root)
    return Item(
        number=number,
        name=source.name,
        title=program.collective + ("" if timing.on is None else f" on {timing.on}"),
        subtitle=f"{format_count(program.nranks, 'rank')} · MSCCL, {program.protocol}",
        question=(program.collective, timing.on, *asked),
        view=view,
        facts=tuple(_program_facts(program, view, timing)),
        verdict="checked: right" if right else verdict.status,
        wrong="; ".join(explained).removeprefix("wrong: ") if verdict.status in ("wrong", "deadlock") else "",
        notes=tuple(notes),
        size_bytes=timing.size_bytes,
        time_us=taken,
        bound_us=timing.bound_us,
        serves=format_served(program.min_bytes, program.max_bytes or None),
        curve=timing.curve,
        marks=() if taken is None else ((timing.size_bytes, taken),),
        bound=() if proved is None else _bound_curve(proved, (s for s, _ in timing.curve)),
        stated=((timing.size_bytes, timing.stated_us),) if timing.stated_us else (),
        proof=tuple(proof),
        no_proof=_no_proof(entry, topology),
    )


def _no_proof(entry: Entry | None, topology: Topology | None) -> str:
    words = None if entry is None else entry.values.get("proof")
    if isinstance(words, str):
        return (
            f"The library's index states: {words[:400]}. It is not worked out again here; synth prove does that with"
            " the schedule's own files."
        )
    if topology is None:
        return "An MSCCL file says nothing of how near it is to the best. Give the network (--topo) to find out."
    return f"No bound is worked out for it: it is not right, its root is not known, or it has over {_PROVED} ranks."


def _stated(entry: Entry | None) -> _Timing:
    """What an index says."""
    if entry is None:
        return _Timing(None)
    size, taken, bound_us = (_positive(entry.values.get(key)) for key in ("shown_bytes", "time_us", "bound_us"))
    known = size and taken and bound_us
    return _Timing(entry.topology, size, taken, stated_us=bound_us) if known else _Timing(entry.topology)


def _timed(program: Program, topology: Topology, group: tuple[int, ...] | None, size: float, right: bool) -> _Timing:
    """Predicted on a topology; with a bound for what is asked where the file says that in full."""
    clock = Predictor(program, topology, group)
    curve = tuple((float(1 << e), clock.time_us(float(1 << e))) for e in _EXPONENTS)
    taken = clock.time_us(size)
    kind = find_kind(program.collective)
    if not right or not kind.unit or kind.rooted or program.nranks > _PROVED:
        return _Timing(topology.name, size, taken, curve)
    problem = make_problem(topology, program.collective, clock.group)
    limits = prove(problem).witnesses
    decisive = max(limits, key=lambda witness: witness.at(size))
    return _Timing(topology.name, size, taken, curve, Checked("", None, decisive.at(size), decisive, limits), problem)


def _positive(value: object) -> float:
    """A number above 0 of somebody's index, else 0."""
    return float(value) if isinstance(value, (int, float)) and 0 < value < math.inf else 0.0


def _program_facts(program: Program, view: dict[str, Any], timing: _Timing) -> list[Fact]:
    facts: list[Fact] = []
    if timing.time_us is not None:
        at = f"at {format_size(round(timing.size_bytes))}"
        facts.append(("Predicted time", format_time(timing.time_us), at))
        if timing.bound_us:
            how = "proved below" if timing.proved is not None else "as the index states it"
            facts.append(("Time / bound", f"{timing.time_us / timing.bound_us:.3f}", how))
    blocks = [len(gpu.threadblocks) for gpu in program.gpus]
    facts += [
        ("Instructions", format_number(program.nsteps), f"on {format_count(program.nranks, 'rank')}"),
        ("Threadblocks", str(max(blocks, default=0)), f"at most on a rank; {sum(blocks)} in all"),
        ("Channels", str(program.nchannels), program.protocol),
        ("Chunks", str(program.nchunks_per_loop), "of a buffer, in a loop"),
    ]
    if view["network"] is not None:
        if view["unit"] == "steps":
            facts.append(("Longest chain", format_count(round(view["span"]), "step"), "one after another"))
        facts.append(("Transmissions", format_number(view["sends"]["total"]), ""))
    return facts
