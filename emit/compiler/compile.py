"""Draft → Program for one target: which passes, in which order, and which of several layouts is best."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from emit.check.order import run
from emit.columns import columns_of
from emit.compiler.assembly import Layout, assembled, longest
from emit.compiler.ir import NONE, Draft, followed, scratch_chunks
from emit.compiler.passes.absorb import absorb
from emit.compiler.passes.aggregate import aggregate
from emit.compiler.passes.dead import prune
from emit.compiler.passes.depth import by_depth
from emit.compiler.passes.fuse import fuse
from emit.compiler.passes.scratch import reuse
from emit.compiler.passes.split import split
from emit.compiler.passes.unfuse import unfuse
from emit.findings import Findings
from emit.program import FIFO_DEPTH, Program
from emit.targets import Limits, check_limits, limits_of
from topologies.errors import InputError

Times = tuple[float, ...]
Price = Callable[[Program], Times]  # µs at some message sizes, always the same ones

PASSES = {
    "prune": "leave out what nobody reads",
    "absorb": "reduce what arrives as it arrives, not from scratch",
    "aggregate": "send neighbouring chunks that are ready together as one message",
    "fuse": "receive, reduce and send on in one instruction",
    "scratch": "use scratch again whose content is over",
    "pair": "one threadblock sends and receives",
    "deal": "more channels for a connection that waits for room",
    "turn": "ranks that exchange take turns, where both would wait for room",
}
UNFUSED = 20_000  # from which on they are dealt out as they come
_SLOWER = 1.002  # time over the least, up to which fewer instructions and threadblocks are preferred
_LEAST_US = 1e-9
_GAIN = 1.02  # what more channels must gain
_MANY = 1_500  # instructions from which on not all ways are tried


class Way(NamedTuple):
    """Which of the passes that can cost time are used."""

    aggregate: bool
    fuse: bool
    pair: bool
    turn: bool


# the shortest programs first
_WAYS = (
    Way(True, True, True, False),
    Way(False, True, True, False),
    Way(True, True, True, True),
    Way(False, True, True, True),
    Way(True, True, False, False),
    Way(False, True, False, False),
    Way(True, False, True, False),
    Way(True, False, False, False),
    Way(False, False, True, False),
    Way(False, False, False, False),
)


@dataclass
class Compiled:
    """A program, and what was done to get it, a line each."""

    program: Program
    said: list[str] = field(default_factory=list)


def compiled(
    draft: Draft, target: str = "executor-nccl", *, price: Price | None = None, off: Collection[str] = ()
) -> Compiled:
    """A program for `target` that executes the draft.

    price: how long a program takes; among the ways to compile, the shortest that takes next to no longer than the
    best is taken. Without it the first that is free of deadlock. off: names of PASSES not to use.

    Raises InputError where the draft does not fit the target's limits, or for a pass that there is not.
    """
    for name in off:
        if name not in PASSES:
            raise InputError(f"pass {name!r} is not known; it is one of {', '.join(PASSES)}")
    limits = limits_of(target)
    said = [f"draft: {_words(draft)}"]
    asked = max(draft.lane, default=NONE)
    if asked >= limits.channels:
        raise InputError(f"{draft.like.name}: channel {asked}; {target} has {limits.channels}")
    draft = _on_lanes(draft)
    draft = _said(said, "split", draft, split(draft, limits.count))
    if "rcs" not in limits.ops:
        draft = _said(said, "unfuse", draft, unfuse(draft, limits.ops))
        off = {*off, "absorb", "fuse"}
    if "prune" not in off:
        draft = _said(said, "prune", draft, prune(draft))
    drafts = _Drafts(draft, limits, off)
    best: tuple[Times, Program, Way] | None = None
    program: Program | None
    fault: InputError | None = None
    tried: list[str] = []
    deadlocked = False
    seen: set[tuple[int, bool]] = set()
    for way in _WAYS if len(draft) < _MANY else (_WAYS[5], _WAYS[-1]) if len(draft) < UNFUSED else _WAYS[-1:]:
        if any(getattr(way, name) and name in off for name in Way._fields) or (way.turn and not deadlocked):
            continue
        made = drafts.by(way)
        if (id(made), way.pair) in seen:
            continue  # a pass had nothing to do
        seen.add((id(made), way.pair))
        try:
            program = _laid_out(made, limits, way.pair)
        except InputError as error:
            fault = fault or error
            continue
        found = Findings()
        check_limits(program, target, found)
        if found.reported:
            fault = fault or InputError(f"{draft.like.name}: {found.reported[0].message}")
            continue
        if not _ends(program):
            deadlocked = True
            tried.append(f"{_named(way)}: deadlocks at {FIFO_DEPTH[program.protocol]} slots")
            continue
        cost = () if price is None else price(program)
        tried.append(f"{_named(way)}: {_told(cost)}")
        if best is None or mean_ratio(cost, best[0]) * _SLOWER < 1:
            best = (cost, program, way)
        if price is None:
            break
    if best is None:
        way = Way(*(False,) * 4)
        program = _with_room(drafts.by(way), limits, tried) if "deal" not in off and deadlocked else None
        if program is None:
            raise fault or InputError(f"{draft.like.name}: every order of its instructions deadlocks")
    else:
        _, program, way = best
        if price is not None and "deal" not in off and len(draft) < UNFUSED:
            program = _dealt(best, drafts.by(way), limits, price, tried)
    said += drafts.said[way[:2] + way[3:]]
    if len(tried) > 1:
        said.append("tried: " + "; ".join(tried))
    said.append(f"program: {shape(program)}")
    return Compiled(program, said)


def _dealt(
    best: tuple[Times, Program, Way], draft: Draft, limits: Limits, price: Price, tried: list[str]
) -> Program:
    """The program with its messages dealt out over more channels, each with slots of its own, while that gains."""
    cost, program, way = best
    after = followed(draft)
    crowd = Counter(tb.send for tb in program.gpus[0].threadblocks if tb.send >= 0)
    least = max(crowd.values(), default=1)  # channels that a connection has already
    for spread in (least, 2 * least, 4 * least, 8 * least)[least == 1 :]:
        made = _spread(draft, limits, Layout(spread, way.pair, turns=True), after)
        if made is None:
            break
        took = price(made)
        tried.append(f"{spread} channels a connection: {_told(took)}")
        if mean_ratio(took, cost) * _GAIN > 1 or worst_ratio(took, cost) > _SLOWER:
            break
        cost, program = took, made
    return program


def _with_room(draft: Draft, limits: Limits, tried: list[str]) -> Program | None:
    """The program over as few channels as give it slots enough to come to its end; None: there are not so many."""
    after = followed(draft)
    for spread in range(2, limits.channels + 1):
        made = _spread(draft, limits, Layout(spread, False, turns=True), after)
        if made is not None:
            tried.append(f"{spread} channels a connection: taken")
            return made
        if spread * spread > len(draft):
            break
    return None


def _spread(draft: Draft, limits: Limits, layout: Layout, after: list[list[int]]) -> Program | None:
    """The program so laid out, None where it does not fit or does not end."""
    try:
        made = assembled(draft, limits, layout, after)
    except InputError:
        return None
    found = Findings()
    check_limits(made, limits.name, found)
    return None if found.reported or not _ends(made) else made


def _on_lanes(draft: Draft) -> Draft:
    """Where some messages ask for a channel, those that do not are on channel 0."""
    if all(lane == NONE for lane in draft.lane):
        return draft
    made = draft.copy()
    made.lane = [max(lane, 0) for lane in made.lane]
    return made


class _Drafts:
    """The draft after the passes of each way, made once; `said`: what they did."""

    def __init__(self, draft: Draft, limits: Limits, off: Collection[str]) -> None:
        self.draft, self.limits, self.off = draft, limits, off
        self.made: dict[tuple[bool, ...], Draft] = {}
        self.said: dict[tuple[bool, ...], list[str]] = {}
        self.final: dict[int, Draft] = {}  # by what it was before the last pass

    def by(self, way: Way) -> Draft:
        """The draft for a way."""
        key = way[:2] + way[3:]
        if key not in self.made:
            said: list[str] = []
            draft = self.draft
            if way.turn:
                draft = _said(said, "turn", draft, by_depth(draft, turns=True))
            if "absorb" not in self.off:
                draft = _said(said, "absorb", draft, absorb(draft))
            if way.aggregate:
                draft = _said(said, "aggregate", draft, aggregate(draft, self.limits.count))
            if way.fuse:
                draft = _said(said, "fuse", draft, fuse(draft))
                if "prune" not in self.off:
                    draft = _said(said, "prune", draft, prune(draft))
            if "scratch" not in self.off:
                if id(draft) not in self.final:
                    self.final[id(draft)] = reuse(draft)
                draft = _said(said, "scratch", draft, self.final[id(draft)])
            self.made[key], self.said[key] = draft, said
        return self.made[key]


def _laid_out(draft: Draft, limits: Limits, paired: bool) -> Program:
    """Over as few channels as the target's steps a threadblock allow."""
    nodes = 1 + draft.like.nranks + max(Counter(draft.rank).values(), default=0)
    if nodes > limits.nodes:
        raise InputError(
            f"{draft.like.name}: a rank has {nodes} XML nodes or more; {limits.name} takes at most {limits.nodes};"
            " use fewer chunks (--chunks)"
        )
    after = followed(draft)
    messages = Counter((draft.rank[s], draft.rank[n]) for n, s in enumerate(draft.source) if s >= 0)
    crowd = max(messages.values(), default=0)
    spread = max(1, -(-crowd // limits.steps_per_tb))
    while True:
        program = assembled(draft, limits, Layout(spread, paired), after)
        most = longest(program)
        if most <= limits.steps_per_tb and program.nchannels <= limits.channels:
            return program
        if program.nchannels > limits.channels or spread >= max(crowd, 1):
            raise InputError(
                f"{draft.like.name}: needs {most} steps in a threadblock even with {limits.channels} channels;"
                f" {limits.name} has room for {limits.steps_per_tb}; use fewer chunks (--chunks)"
            )
        spread = max(spread + 1, spread * most // limits.steps_per_tb)


def mean_ratio(times: Times, others: Times) -> float:
    """How much longer one program takes than another: the geometric mean over the sizes."""
    ratios = [_ratio(a, b) for a, b in zip(times, others, strict=True)]
    return math.exp(sum(map(math.log, ratios)) / max(1, len(ratios)))


def worst_ratio(times: Times, others: Times) -> float:
    """The same at the size where it is most."""
    return max((_ratio(a, b) for a, b in zip(times, others, strict=True)), default=1.0)


def _ratio(time_us: float, other_us: float) -> float:
    """Copies within a rank take no time in the model."""
    return max(time_us, _LEAST_US) / max(other_us, _LEAST_US)


def _told(times: Times) -> str:
    return " and ".join(f"{t:.6g} µs" for t in times) or "taken"


def _ends(program: Program) -> bool:
    """Whether it runs to its end at the protocol's FIFO depth."""
    found = Findings()
    c = columns_of(program, found)
    return not found.reported and run(c, FIFO_DEPTH[program.protocol]).complete


def _named(way: Way) -> str:
    used = [name for name, on in way._asdict().items() if on]
    return " + ".join(used) or "none of these"


def _said(said: list[str], name: str, before: Draft, after: Draft) -> Draft:
    if after is not before:
        was, now = _words(before), _words(after)
        said.append(f"{name}: {now}" if was != now else f"{name}: as it was")
    return after


def _words(draft: Draft) -> str:
    kinds = Counter(draft.op)
    told = ", ".join(f"{kinds[op]} {op}" for op in sorted(kinds))
    return (
        f"{len(draft)} instructions ({told}), {max(scratch_chunks(draft), default=0)} scratch chunks a rank"
    )


def shape(program: Program) -> str:
    """Its size in words."""
    nops = sum(step.op == "nop" for *_, step in program.steps())
    blocks = max(len(gpu.threadblocks) for gpu in program.gpus)
    return (
        f"{program.nsteps} steps ({nops} nops), {blocks} threadblocks a rank, {program.nchannels} channels,"
        f" {longest(program)} steps in the longest"
    )
