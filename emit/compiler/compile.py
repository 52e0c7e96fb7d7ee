"""Instructions → a program for one target: which passes are used, and which of several layouts is best."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from emit.check.order import run
from emit.check.program import check
from emit.columns import columns_of
from emit.compiler.assembly import Layout, assemble, describe_size, longest_threadblock
from emit.compiler.instances import share_of, side_by_side
from emit.compiler.ir import NONE, Instructions, instructions_of, message_counts, predecessors, scratch_chunks
from emit.compiler.manual import settle_threadblocks
from emit.compiler.passes.depth import keeps_message_order, order_by_depth
from emit.compiler.passes.registry import ORDER, PASSES, REQUIRED
from emit.compiler.tuning import TUNING
from emit.findings import Findings
from emit.goal import Goal
from emit.program import FIFO_DEPTH, Program
from emit.targets import Limits, check_limits, target_named
from topologies.errors import InputError

Times = tuple[float, ...]
Timer = Callable[[Program], Times]  # µs at some message sizes, always the same ones
Variant = tuple[str, ...]  # those passes that are a choice which are used

_ROUNDING = 1e-9  # of times that are compared
_LEAST_US = 1e-9  # copies within a rank take no time in the model; a ratio needs some
# the shortest programs first
_VARIANTS: tuple[Variant, ...] = (
    ("aggregate", "fuse", "pair"),
    ("fuse", "pair"),
    ("aggregate", "fuse", "pair", "turn"),
    ("fuse", "pair", "turn"),
    ("aggregate", "fuse"),
    ("fuse",),
    ("aggregate", "pair"),
    ("aggregate",),
    ("pair",),
    (),
)


@dataclass
class Compiled:
    """A program, and what was done to get it, a line each."""

    program: Program
    log: list[str]


def compile_instructions(
    ir: Instructions,
    target: str = "executor-nccl",
    *,
    limits: Limits | None = None,
    timer: Timer | None = None,
    without: Collection[str] = (),
) -> Compiled:
    """A program for `target` that executes the instructions.

    Args:
        limits: that it keeps; None: the target's.
        timer: how long a program takes; among the variants, the shortest program that takes next to no longer than
            the best is chosen. None: the first that is free of deadlock.
        without: names of PASSES not to use.

    Raises InputError: the instructions do not fit the target's limits, or there is no such pass.
    """
    for name in without:
        if name not in PASSES:
            raise InputError(f"pass {name!r} is not known; it is one of {', '.join(PASSES)}")
    limits = target_named(target).limits if limits is None else limits
    if ir.instances > 1:
        return _compile_instances(ir, limits, timer, without)
    log = [f"instruction IR: {_describe(ir)}"]
    asked = max(ir.channel, default=NONE)
    if asked >= limits.channels:
        raise InputError(f"{ir.header.name}: channel {asked}; {limits.name} has {limits.channels}")
    if asked != NONE or max(ir.threadblock, default=NONE) != NONE:  # what asks for none is on channel 0
        ir = ir.copy()
        ir.channel = [max(channel, 0) for channel in ir.channel]
        ir.threadblock = settle_threadblocks(ir)
    without = {*without, *(row.name for row in PASSES.values() if not limits.ops.issuperset(row.needs))}
    for name, apply in REQUIRED.items():
        ir = _logged(log, name, ir, apply(ir, limits))
    search = _Search(_Passes(ir, limits, without, log), timer)
    variant, program = search.best()
    log += search.passes.by(variant)[1]
    if len(search.tried) > 1:
        log.append("tried: " + "; ".join(search.tried))
    log.append(f"program: {describe_size(program)}")
    return Compiled(program, log)


def _compile_instances(ir: Instructions, limits: Limits, timer: Timer | None, without: Collection[str]) -> Compiled:
    """One instance compiled for its share of the limits, and all of them side by side."""
    one, share = ir.copy(), share_of(limits, ir.instances, ir.header.nranks)
    try:  # each instance has channels of its own; more than one a connection only where it does not end otherwise
        made = compile_instructions(one, limits=share, timer=timer, without={*without, "deal"})
    except InputError:
        made = compile_instructions(one, limits=share, timer=timer, without=without)
    program = side_by_side(made.program, ir, limits)
    return Compiled(program, [*made.log, f"{ir.instances} instances: {describe_size(program)}"])


def optimize(
    program: Program,
    goal: Goal | None = None,
    target: str = "executor-nccl",
    *,
    limits: Limits | None = None,
    timer: Timer | None = None,
    without: Collection[str] = (),
) -> Compiled:
    """Somebody's program compiled anew: never slower in the model, never longer, still right.

    The best of the program itself and of what the passes make of it, on its own channels or on others.

    Arguments as those of `compile_instructions`.
    Raises InputError for a program that is not right, or that `target` cannot hold in any form.
    """
    limits = target_named(target).limits if limits is None else limits
    check(program, goal, target=None, split=False).raise_if_wrong()
    own = instructions_of(program, goal)
    free = replace(own.copy(), channel=[NONE] * len(own))
    candidates: list[Compiled] = []
    if check(program, goal, target=limits).ok:
        log = [f"program: {describe_size(program)}", "kept as it was: nothing is better"]
        candidates.append(Compiled(program, log))
    fault: InputError | None = None
    # on other channels only where both ends of every connection then still have one order
    for ir in (own, free, order_by_depth(free)) if keeps_message_order(free) else (own,):
        try:
            made = compile_instructions(ir, target, limits=limits, timer=timer, without=without)
            if check(made.program, goal, target=limits).ok:
                candidates.append(made)
        except InputError as error:
            fault = fault or error
    if not candidates:
        raise fault or InputError(f"{program.name}: {target} cannot hold it")
    able = candidates
    if timer is not None:
        times = [timer(made.program) for made in candidates]
        if candidates[0].program is program:
            able = [c for c, own in zip(candidates, times, strict=True) if worst_ratio(own, times[0]) <= 1 + _ROUNDING]
        else:
            best = min(times, key=lambda own: mean_ratio(own, times[0]))
            able = [c for c, own in zip(candidates, times, strict=True) if own == best]
    return min(able, key=lambda made: _size(made.program))


def _size(program: Program) -> tuple[int, int, int]:
    """Steps, threadblocks, channels."""
    return program.nsteps, sum(len(gpu.threadblocks) for gpu in program.gpus), program.nchannels


class _Passes:
    """The instructions after the passes of each variant, made once, and the lines on what these did."""

    def __init__(self, ir: Instructions, limits: Limits, without: Collection[str], log: list[str]) -> None:
        self.limits, self.without = limits, without
        self.ir = self._apply("prune", ir, log)
        self.made: dict[Variant, tuple[Instructions, list[str]]] = {}
        self.scratch: dict[int, tuple[Instructions, Instructions]] = {}  # before and after that pass

    def by(self, variant: Variant) -> tuple[Instructions, list[str]]:
        """The instructions for a variant, and what was done to get them."""
        key = tuple(name for name in variant if PASSES[name].apply is not None)
        if key not in self.made:
            log: list[str] = []
            ir = self.ir
            for name in ORDER:
                if PASSES[name].choice and name not in variant:
                    continue
                if name == "scratch":  # several variants come to the same instructions
                    if id(ir) not in self.scratch:
                        self.scratch[id(ir)] = ir, self._apply(name, ir, [])
                    ir = _logged(log, name, *self.scratch[id(ir)])
                    continue
                ir = self._apply(name, ir, log)
                if name == "fuse":
                    ir = self._apply("prune", ir, log)
            self.made[key] = ir, log
        return self.made[key]

    def _apply(self, name: str, ir: Instructions, log: list[str]) -> Instructions:
        apply = PASSES[name].apply
        return ir if name in self.without or apply is None else _logged(log, name, ir, apply(ir, self.limits))


@dataclass
class _Search:
    """The search for the best variant; `tried` says what came of each."""

    passes: _Passes
    timer: Timer | None
    tried: list[str] = field(default_factory=list)
    fault: InputError | None = None
    deadlocked: bool = False

    def best(self) -> tuple[Variant, Program]:
        """The chosen variant and its program. Raises InputError where none fits the target, or all deadlock."""
        ir, without = self.passes.ir, self.passes.without
        chosen: tuple[Times, Program, Variant] | None = None
        seen: set[tuple[int, bool]] = set()
        few = (_VARIANTS[5], ())[len(ir) >= TUNING.unfused_from :]
        all_tried = len(ir) < (TUNING.unfused_from if self.timer is None else TUNING.few_variants_from)
        for variant in _VARIANTS if all_tried else few:
            if any(name in without for name in variant) or ("turn" in variant and not self.deadlocked):
                continue
            made = self.passes.by(variant)[0]
            key = (id(made), "pair" in variant)
            if key in seen:
                continue  # a pass had nothing to do
            seen.add(key)
            program = self._try(variant, made)
            if program is None:
                continue
            times = () if self.timer is None else self.timer(program)
            self.tried.append(f"{_name(variant)}: {_format_times(times)}")
            if chosen is None or mean_ratio(times, chosen[0]) * TUNING.as_fast < 1:
                chosen = (times, program, variant)
            if self.timer is None:
                break
        spreads = "deal" not in without
        if chosen is None:
            made = self.passes.by(())[0]
            last = self._spread_until_it_ends(made) if spreads and self.deadlocked else None
            if last is None:
                name = ir.header.name
                raise self.fault or InputError(f"{name}: every order of its instructions deadlocks")
            return (), last
        if self.timer is not None and spreads and len(ir) < TUNING.unfused_from:
            return chosen[2], self._spread_while_faster(self.timer, *chosen)
        return chosen[2], chosen[1]

    def _try(self, variant: Variant, made: Instructions) -> Program | None:
        """The variant's program; None where it does not fit, or does not end."""
        limits = self.passes.limits
        try:
            program = _assemble_on_few_channels(made, limits, "pair" in variant)
        except InputError as error:
            self.fault = self.fault or error
            return None
        found = Findings()
        check_limits(program, limits, found)
        if found.reported:
            self.fault = self.fault or InputError(f"{made.header.name}: {found.reported[0].message}")
            return None
        if not _ends(program):
            self.deadlocked = True
            self.tried.append(f"{_name(variant)}: deadlocks at {FIFO_DEPTH[program.protocol]} slots")
            return None
        return program

    def _spread_while_faster(self, timer: Timer, times: Times, program: Program, variant: Variant) -> Program:
        """The program with its messages over more channels, each with slots of its own, while that gains."""
        made = self.passes.by(variant)[0]
        before = predecessors(made)
        crowd = Counter(tb.send for tb in program.gpus[0].threadblocks if tb.send >= 0)
        least = max(crowd.values(), default=1)  # channels that a connection has already
        for spread in (least, 2 * least, 4 * least, 8 * least)[least == 1 :]:
            layout = Layout(spread, "pair" in variant, round_robin=True)
            other = _assemble_if_it_ends(made, self.passes.limits, layout, before)
            if other is None:
                break
            took = timer(other)
            self.tried.append(f"{spread} channels a connection: {_format_times(took)}")
            gains = mean_ratio(took, times) * TUNING.spread_gain <= 1
            if not gains or worst_ratio(took, times) > TUNING.as_fast:
                break
            times, program = took, other
        return program

    def _spread_until_it_ends(self, made: Instructions) -> Program | None:
        """The program over as few channels as give it slots enough to end; None: there are not so many."""
        before = predecessors(made)
        for spread in range(2, self.passes.limits.channels + 1):
            layout = Layout(spread, False, round_robin=True)
            program = _assemble_if_it_ends(made, self.passes.limits, layout, before)
            if program is not None:
                self.tried.append(f"{spread} channels a connection: taken")
                return program
            if spread * spread > len(made):
                break
        return None


def _assemble_if_it_ends(ir: Instructions, limits: Limits, layout: Layout, before: list[list[int]]) -> Program | None:
    """The program so laid out, None where it does not fit or does not end."""
    try:
        made = assemble(ir, limits, layout, before)
    except InputError:
        return None
    found = Findings()
    check_limits(made, limits, found)
    return None if found.reported or not _ends(made) else made


def _assemble_on_few_channels(ir: Instructions, limits: Limits, paired: bool) -> Program:
    """The program over as few channels as its target allows; InputError where a rank has too many steps."""
    nodes = 1 + ir.header.nranks + max(Counter(ir.rank).values(), default=0)
    if nodes > limits.nodes:
        raise InputError(
            f"{ir.header.name}: a rank has {nodes} XML nodes or more; {limits.name} takes at most {limits.nodes};"
            " use fewer chunks (--chunks)"
        )
    before = predecessors(ir)
    crowd = max(message_counts(ir).values(), default=0)
    spread = max(1, -(-crowd // limits.steps_per_tb))
    while True:
        program = assemble(ir, limits, Layout(spread, paired), before)
        most = longest_threadblock(program)
        if most <= limits.steps_per_tb and program.nchannels <= limits.channels:
            return program
        if program.nchannels > limits.channels or spread >= max(crowd, 1):
            raise InputError(
                f"{ir.header.name}: needs {most} steps in a threadblock even with {limits.channels} channels;"
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
    return max(time_us, _LEAST_US) / max(other_us, _LEAST_US)


def _ends(program: Program) -> bool:
    """Whether it runs to its end at the protocol's FIFO depth."""
    found = Findings()
    c = columns_of(program, found)
    return not found.reported and run(c, FIFO_DEPTH[program.protocol]).complete


def _name(variant: Variant) -> str:
    return " + ".join(variant) or "none of these"


def _format_times(times: Times) -> str:
    return " and ".join(f"{t:.6g} µs" for t in times) or "taken"


def _logged(log: list[str], name: str, before: Instructions, after: Instructions) -> Instructions:
    """`after`, with a line on what became of the instructions, where the pass changed them."""
    if after is not before:
        was, now = _describe(before), _describe(after)
        log.append(f"{name}: {now}" if was != now else f"{name}: as it was")
    return after


def _describe(ir: Instructions) -> str:
    kinds = Counter(ir.op)
    ops = ", ".join(f"{kinds[op]} {op}" for op in sorted(kinds))
    return f"{len(ir)} instructions ({ops}), {max(scratch_chunks(ir), default=0)} scratch chunks a rank"
