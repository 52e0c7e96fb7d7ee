"""Search for the passes, threadblocks and channels that make the best program of some instructions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from emit.check.order import run
from emit.columns import Columns
from emit.compiler.assembly import Assembled, BlockLayout, assemble
from emit.compiler.ir import Instructions, scratch_chunks
from emit.compiler.passes.registry import ORDER, PASSES
from emit.compiler.prepared import Lanes, Prepared
from emit.compiler.tuning import TUNING
from emit.findings import Findings
from emit.program import FIFO_DEPTH, Program
from emit.targets import Limits
from synth.model.deadline import check_deadline, now
from topologies.errors import InputError

Times = tuple[float, ...]
Variant = tuple[str, ...]  # the optional passes that are used
# The id of a variant's instructions, and whether blocks are paired, channels are runs, and messages leave in turn.
Key = tuple[int, bool, bool, bool]


class Timer(Protocol):
    """A function that predicts a program's times in µs at fixed message sizes, one after another."""

    def __call__(self, program: Program, columns: Columns | None = None) -> Iterator[float]:
        """Yield the program's times.

        Args:
            program: The program.
            columns: Columns of the program; if they are given, the program need not have its steps.
        """
        ...


_LEAST_US = 1e-9  # Copies within a rank take no time in the model, but a ratio needs a positive time.
# Variants with few threadblocks come first, and among these the shortest programs.
_VARIANTS: tuple[Variant, ...] = (
    ("aggregate", "fuse", "pairing"),
    ("aggregate", "pairing"),
    ("fuse", "pairing"),
    ("pairing",),
    ("aggregate", "fuse", "pairing", "alternate"),
    ("fuse", "pairing", "alternate"),
    ("pairing", "alternate"),
    ("aggregate", "fuse"),
    ("aggregate",),
    ("fuse",),
    (),
    ("in-turn",),
    ("in-order",),
)
_PLAIN: Variant = ()
_IN_TURN: Variant = ("in-turn",)
_IN_ORDER: Variant = ("in-order",)


class Variants:
    """The instructions after the passes of each variant, and their programs in each layout, each made once.

    Attributes:
        limits: Limits of the target.
        without: Names of passes that are not used.
        lanes: Lanes of the network, as in `Prepared`.
        log: What was done to the instructions of all variants.
        ir: The instructions without those whose result nobody reads.
        fault: Error of the first program that did not fit; None so far.
    """

    def __init__(
        self, ir: Instructions, limits: Limits, without: Collection[str], lanes: Lanes | None, log: list[str]
    ) -> None:
        self.limits, self.without, self.lanes, self.log = limits, without, lanes, log
        self.ir = self._apply("copy", self._apply("prune", ir, log), log)
        self.fault: InputError | None = None
        self._instructions: dict[Variant, tuple[Instructions, list[str]]] = {}
        self._scratch: dict[int, tuple[Instructions, Instructions]] = {}  # before and after the pass "scratch"
        self._prepared: dict[int, Prepared] = {}
        self._least_channels: dict[Key, int] = {}  # least number of channels a connection
        self._programs: dict[tuple[Key, int], Assembled | None] = {}
        self._refused_level: dict[Key, int] = {}  # a level that the target cannot hold

    def usable(self) -> list[Variant]:
        """Return the variants none of whose passes is in `without`, in the order in which they are tried."""
        return [variant for variant in _VARIANTS if not any(name in self.without for name in variant)]

    def by(self, variant: Variant) -> tuple[Instructions, list[str]]:
        """Return the instructions after a variant's passes, and the log of these passes, one line each.

        Passes that are no choice are applied too, except those in `without`. Both results are kept, and must not be
        changed.
        """
        key = tuple(name for name in variant if PASSES[name].apply is not None)
        if key not in self._instructions:
            log: list[str] = []
            ir = self.ir
            for name in ORDER:
                if PASSES[name].choice and name not in variant:
                    continue
                if name == "scratch":  # Several variants share the same instructions before this pass.
                    if id(ir) not in self._scratch:
                        self._scratch[id(ir)] = ir, self._apply(name, ir, [])
                    ir = logged(log, name, *self._scratch[id(ir)])
                    continue
                ir = self._apply(name, ir, log)
                if name == "fuse":
                    ir = self._apply("prune", ir, log)
            self._instructions[key] = ir, log
        return self._instructions[key]

    def key(self, variant: Variant) -> Key:
        """Return a key that is equal for variants that have the same program on every level.

        Their passes give the same instructions, and both or neither of them pair threadblocks, use the channels of a
        connection one after another, and let messages leave in order on a lane.
        """
        return id(self.by(variant)[0]), "pairing" in variant, "in-order" in variant, "in-turn" in variant

    def program(self, variant: Variant, level: int) -> Assembled | None:
        """Return a variant's program on `level` times the channels that it needs; None if the target cannot hold it.

        The first such error is kept in `fault`. Programs and refusals are kept too, so each is made once. Without local
        reductions, a level above a refused one is refused untried. The program may deadlock.
        """
        key = self.key(variant), level
        if level >= self._refused_level.get(key[0], math.inf):  # More channels take more threadblocks.
            return None
        if key not in self._programs:
            try:
                self._programs[key] = self._assembled(variant, level)
            except InputError as error:
                self.fault = self.fault or error
                self._programs[key] = None
                if "re" not in self.by(variant)[0].op:  # Consecutive sums may fit on more channels.
                    self._refused_level[key[0]] = level
        return self._programs[key]

    def has_room(self, variant: Variant) -> bool:
        """Return False if a variant needs more nodes than a file of the target can hold, in any layout; else True."""
        return self._prepare(variant).nodes <= self.limits.nodes

    @property
    def crowded(self) -> bool:
        """Return True if, without optional passes, a rank sends another more messages than a threadblock has steps."""
        return self._prepare(_PLAIN).crowd > self.limits.steps_per_tb

    @property
    def shares_lanes(self) -> bool:
        """Return True if messages from a rank to two or more other ranks share a lane (see `Prepared`)."""
        return self._prepare(_PLAIN).shares_lanes

    def _prepare(self, variant: Variant) -> Prepared:
        """Return the instructions of a variant, ready to be laid out; they are prepared once and kept."""
        ir = self.by(variant)[0]
        return self._prepared.get(id(ir)) or self._prepared.setdefault(id(ir), Prepared(ir, self.lanes))

    def _assembled(self, variant: Variant, level: int) -> Assembled:
        """Return a variant's program on `level` times the channels that it needs.

        It needs so many channels a connection that no threadblock has more steps than the target takes. Their number is
        kept for the variant's other levels, and rises if one of those needs more.

        Raises:
            InputError: The target cannot hold the program.
        """
        limits, key = self.limits, self.key(variant)
        _, paired, _, in_turn = key
        prepared = self._prepare(variant)
        name = prepared.ir.header.name
        if not self.has_room(variant):
            raise InputError(
                f"{name}: a rank has {prepared.nodes} {limits.node} or more; {limits.name} takes at most"
                f" {limits.nodes}; use fewer chunks (--chunks)"
            )
        crowd = prepared.crowd
        least = self._least_channels.get(key, max(1, -(-crowd // limits.steps_per_tb)))
        while True:
            check_deadline()
            runs = least if "in-order" in variant else 1
            assembled = assemble(prepared, limits, BlockLayout(least * level // runs, runs, paired, in_turn))
            longest = assembled.longest_threadblock
            if longest <= limits.steps_per_tb and assembled.nchannels <= limits.channels:
                break
            if assembled.nchannels > limits.channels or least >= max(crowd, 1):
                raise InputError(
                    f"{name}: needs {longest} steps in a threadblock even with {limits.channels} channels;"
                    f" {limits.name} has room for {limits.steps_per_tb}; use fewer chunks (--chunks)"
                )
            least = max(least + 1, least * longest // limits.steps_per_tb)
        self._least_channels[key] = least
        findings = Findings()
        assembled.check_limits(limits, findings)
        if findings.reported:
            raise InputError(f"{name}: {findings.reported[0].message}")
        return assembled

    def _apply(self, name: str, ir: Instructions, log: list[str]) -> Instructions:
        """Return the instructions after a pass; the same ones if the pass is in `without` or only a choice of layout.

        If the pass makes new instructions, a line about it is added to `log`.
        """
        check_deadline()
        apply = PASSES[name].apply
        return ir if name in self.without or apply is None else logged(log, name, ir, apply(ir, self.limits))


@dataclass(frozen=True, eq=False)
class ProgramCandidate:
    """A program that does not deadlock, with its times.

    Attributes:
        variant: Its variant.
        level: Factor of its channels over the least number.
        assembled: Its threadblocks.
        header: Its header.
        times: Its times in µs at the timer's sizes; empty without a timer.
    """

    variant: Variant
    level: int
    assembled: Assembled
    header: Program
    times: Times = ()

    @property
    def program(self) -> Program:
        """Return the program with all its steps."""
        return replace(self.header, gpus=self.assembled.program().gpus)


@dataclass
class LoweringSearch:
    """The search for the best program.

    Attributes:
        variants: The variants of the instructions.
        header: Header of the program; its gpus are replaced.
        timer: Predicts the times of a program; None for no times.
        enough: Times in µs that are good enough; None if they are unknown, so that all programs are compared.
        until: Time (of `synth.model.deadline.now`) after which only what is necessary for a first program is tried.
        first: Time when the first program existed; inf: not yet.
        tried: The result of each try, one line each.
    """

    variants: Variants
    header: Program
    timer: Timer | None
    enough: Times | None = None
    until: float = math.inf
    first: float = math.inf
    tried: list[str] = field(default_factory=list)
    _candidates: dict[tuple[Key, int], ProgramCandidate | None] = field(default_factory=dict)
    _deadlocked: bool = False

    def best(self) -> ProgramCandidate:
        """Return the best program: few threadblocks and steps, and a time that is good enough or near the least.

        It also sets `first`, and adds a line to `tried` for each program that was run.

        Raises:
            InputError: No program fits the target, or all deadlock.
        """
        best: ProgramCandidate | None = None
        first = self._first()
        fault_of_first, self.variants.fault = self.variants.fault, None  # Other variants may need fewer threadblocks.
        level = first.level if first is not None and now() >= self.until else 1
        while level == 1 or level <= self._most_channels:
            best_here = self._best_at(level, best, first)
            if best is not None and (best_here is None or not self._gains(best_here, best)):
                break
            best = best_here or best
            if best is not None and self._is_enough(best):
                break
            level *= 2 if best is None else self._factor(best)
        if first is not None and (best is None or self._gains(first, best)):
            best = first
        if best is None:
            name = self.header.name
            raise (
                self.variants.fault
                or fault_of_first
                or InputError(f"{name}: every order of its instructions deadlocks")
            )
        return self._smallest_like(best)

    @property
    def _most_channels(self) -> int:
        """Return the highest level to try: the target's channels, or the number of instructions if that is smaller.

        It is 1 if the pass `more-channels` is not used.
        """
        can_have_more = "more-channels" not in self.variants.without
        return min(self.variants.limits.channels, len(self.variants.ir)) if can_have_more else 1

    def _first(self) -> ProgramCandidate | None:
        """Return the variant without passes, on more channels until it is fast enough or more of them gain nothing.

        It is None without a timer, or where the variant fits on no number of channels or deadlocks on all. With a
        timer, `first` is set to the present time, or to infinity if the result is None. The program may be the only one
        in time, and is seldom much slower than the others on the same channels. On few channels it may deadlock, or
        wait for slots of FIFOs most of the time, so that it seems slower than variants of fewer messages that need no
        more channels.
        """
        if self.timer is None:
            return None
        best: ProgramCandidate | None = None
        level = 1
        while level <= self._most_channels:
            candidate = self._known(_PLAIN, level)
            if best is not None and (candidate is None or not self._gains(candidate, best)):
                break
            best = candidate or best
            if best is not None and (not self.enough or worst_ratio(best.times, self.enough) <= TUNING.first_as_fast):
                break
            level *= 2 if best is None else self._factor(best)
        self.first = now() if best is not None else math.inf
        return best

    def _best_at(
        self, level: int, before: ProgramCandidate | None, first: ProgramCandidate | None
    ) -> ProgramCandidate | None:
        """Return the first program on a level of channels that is good enough, or else the fastest; None if none fits.

        The fastest is the first whose excess (see `_excess`) is near the least. If there are many instructions, one
        probe is tried first: the variant that loses the least time, with a threadblock for each direction of each
        connection. If it is not good enough, only the variants with messages in their order are tried.

        Args:
            level: Factor of the channels.
            before: Best program on fewer channels; None if there is none.
            first: The result of `_first`, which competes if it has this level.
        """
        candidates: list[ProgramCandidate] = []
        for family in self._families(level, before):
            if self._is_large():
                probe = self._candidate([v for v in family if v not in (_IN_TURN, _IN_ORDER)][-1], level)
                candidates += [probe] if probe else []
                if probe and not self._is_enough(probe):
                    in_order = [self._candidate(v, level) for v in (_IN_TURN, _IN_ORDER) if v in family]
                    candidates += [candidate for candidate in in_order if candidate]
                    continue
            for variant in family:
                least = min((self._excess(c.times) for c in candidates), default=math.inf)
                candidate = self._candidate(variant, level, least)
                if candidate and self._is_enough(candidate):
                    return candidate
                candidates += [candidate] if candidate else []
        candidates += [first] if first is not None and first.level == level else []
        least = min((self._excess(c.times) for c in candidates), default=math.inf)
        return next((c for c in candidates if self._excess(c.times) <= least * TUNING.as_fast), None)

    def _is_large(self) -> bool:
        """Return True if good times are known and there are so many instructions that few variants are tried."""
        return self.enough is not None and len(self.variants.ir) >= TUNING.few_variants_from

    def _families(self, level: int, before: ProgramCandidate | None) -> list[list[Variant]]:
        """Return the families of variants to try on a level, in this order; a family lists its variants in order too.

        The more instructions, the fewer variants; in large programs, aggregated variants are a family of their own, on
        level 1 only. Only variants with `alternate` remain if time is over, a program has deadlocked and no program
        exists.

        Args:
            level: Factor of the channels.
            before: Best program on fewer channels; if good times are unknown, only its variant remains. None: there is
                none.
        """
        usable = self.variants.usable()
        # Without time, only what is made against deadlocks is tried after the plain variant deadlocked.
        if self._deadlocked and self.first == math.inf and now() >= self.until:
            return [[variant for variant in usable if "alternate" in variant]]
        if self.timer is None:  # The first variant is chosen; fused programs are shorter, even if ranks alternate.
            usable.sort(key=lambda variant: "fuse" not in variant)
        size = len(self.variants.ir)
        if size >= TUNING.unfused_from:
            plain = [v for v in usable if v in (("pairing",), ("pairing", "alternate"), _PLAIN, _IN_TURN, _IN_ORDER)]
            fused: list[Variant] = [v for v in usable if v == ("fuse",)]  # empty if the target cannot fuse
            return [plain] if self.variants.has_room(_PLAIN) or not fused else [fused]
        if self._is_large():
            first = [[v for v in usable if "aggregate" in v]] if level == 1 else []
            plain = [v for v in usable if "aggregate" not in v]
            if size >= TUNING.fused_below:
                plain = [v for v in plain if "fuse" not in v]
            return [family for family in (*first, plain) if family]
        if self.enough is None and before is not None:
            return [[before.variant]]
        if size >= TUNING.few_variants_from:
            return [[v for v in usable if "aggregate" not in v]]
        return [usable]

    def _smallest_like(self, best: ProgramCandidate) -> ProgramCandidate:
        """Return the first variant on the same channels that takes nearly as little time as the best program.

        That is `best` itself if it is good enough, or if no other variant of its family is as fast.
        """
        if self._is_enough(best):
            return best
        for family in self._families(best.level, None):
            for variant in family if best.variant in family else ():
                candidate = self._candidate(variant, best.level, self._excess(best.times))
                if candidate and worst_ratio(candidate.times, best.times) <= TUNING.as_fast:
                    return candidate
        return best

    def _candidate(self, variant: Variant, level: int, least: float = math.inf) -> ProgramCandidate | None:
        """Return a variant's program; None if it does not fit, deadlocks, is not to be tried, or is too slow.

        Variants with `alternate` are tried only after a deadlock, `in-order` and `in-turn` only where they can matter,
        and none once time is over and a program exists. A program is too slow if its excess (see `_excess`) is over
        `least` times TUNING.as_fast.
        """
        if ("alternate" in variant and not self._deadlocked) or (variant == _IN_ORDER and not self.variants.crowded):
            return None
        if variant == _IN_TURN and not self.variants.shares_lanes:
            return None
        if self.first < math.inf and now() >= self.until:
            return None
        return self._known(variant, level, least)

    def _known(self, variant: Variant, level: int, least: float = math.inf) -> ProgramCandidate | None:
        """Return what `_candidate` does, for a variant that is to be tried.

        The answer of the first call for a program and level is kept, whatever `least` is later.
        """
        key = self.variants.key(variant), level
        if key not in self._candidates:
            self._candidates[key] = self._time_variant(variant, level, least * TUNING.as_fast)
        return self._candidates[key]

    def _time_variant(self, variant: Variant, level: int, most: float) -> ProgramCandidate | None:
        """Run a variant's program and time it; return None if it does not fit, deadlocks, or is too slow.

        It is too slow if its excess (see `_excess`) is over `most`. A program that fits adds a line to `tried`, and a
        deadlock or the time of the first program is recorded.
        """
        assembled = self.variants.program(variant, level)
        if assembled is None:
            return None
        columns, protocol = assembled.columns(), self.header.protocol
        name = (" + ".join(variant) or "none of these") + (f" on {level} × the channels" if level > 1 else "")
        if not run(columns, FIFO_DEPTH[protocol]).complete:
            self._deadlocked = True
            self.tried.append(f"{name}: deadlocks at {FIFO_DEPTH[protocol]} slots")
            return None
        times: Times = ()
        for time_us in () if self.timer is None else self.timer(self.header, columns):
            times = (*times, time_us)
            if self._excess(times) > most:
                break
        self.tried.append(f"{name}: {' and '.join(f'{t:.6g} µs' for t in times) or 'taken'}")
        self.first = min(self.first, now())
        return ProgramCandidate(variant, level, assembled, self.header, times) if self._excess(times) <= most else None

    def _is_enough(self, candidate: ProgramCandidate) -> bool:
        """Return True if a candidate's times are good enough: always without a timer, never if these are unknown."""
        if self.timer is None:
            return True
        return self.enough is not None and worst_ratio(candidate.times, self.enough) <= TUNING.as_fast

    def _factor(self, candidate: ProgramCandidate) -> int:
        """Return the factor for the number of channels: at most as much as waiting for slots can slow the program.

        It is a power of two, and at least 2; it is 2 if good times are unknown.
        """
        slow = worst_ratio(candidate.times, self.enough) if self.enough else 1.0
        return 1 << max(1, math.floor(math.log2(slow)))

    def _gains(self, more: ProgramCandidate, fewer: ProgramCandidate) -> bool:
        """Return True if more channels clearly lower the excess over good times, and slow down no size noticeably.

        If good times are known, only the largest size counts, or none if `more` is good enough anyway.
        """
        few = fewer.times[:1] if self.enough else fewer.times
        gets_slower = worst_ratio(more.times[: len(few)], few) > TUNING.as_fast and not self._is_enough(more)
        return not gets_slower and self._excess(more.times) * TUNING.spread_gain <= self._excess(fewer.times)

    def _excess(self, times: Times) -> float:
        """Return the product over sizes of the times relative to good enough times, or of the µs if those are unknown.

        A ratio below 1 counts as 1; the µs are in units of 1e-9 µs. The times may be those of the first sizes only;
        without times the result is 1.0. If good times are known, the first size, which then is the largest, counts
        TUNING.largest_counts times, because it stands for all large sizes.
        """
        reference = self.enough or (_LEAST_US,) * len(times)
        ratios = [max(1.0, _ratio(a, b)) for a, b in zip(times, reference, strict=False)]
        return math.prod(ratios) * (ratios[0] ** (TUNING.largest_counts - 1) if self.enough and ratios else 1.0)


def mean_ratio(times: Times, reference: Times) -> float:
    """Return how much longer one program takes than another: the geometric mean of time / reference.

    Times are in µs at the same sizes, and as many; below 1e-9 µs they count as 1e-9 µs. The result is 1.0 for no sizes.
    """
    ratios = [_ratio(a, b) for a, b in zip(times, reference, strict=True)]
    return math.exp(sum(map(math.log, ratios)) / max(1, len(ratios)))


def worst_ratio(times: Times, reference: Times) -> float:
    """Return how much longer one program takes than another at the size where the ratio is largest: time / reference.

    Times are in µs at the same sizes, and as many; below 1e-9 µs they count as 1e-9 µs. The result is 1.0 for no sizes.
    """
    return max((_ratio(a, b) for a, b in zip(times, reference, strict=True)), default=1.0)


def _ratio(time_us: float, reference_us: float) -> float:
    """Return time / reference, where a time below 1e-9 µs counts as 1e-9 µs."""
    return max(time_us, _LEAST_US) / max(reference_us, _LEAST_US)


def logged(log: list[str], name: str, before: Instructions, after: Instructions) -> Instructions:
    """Return `after`; unless it is `before` itself, add a line about the pass `name` to `log` (in place)."""
    if after is not before:
        old_text, new_text = describe(before), describe(after)
        log.append(f"{name}: {new_text}" if old_text != new_text else f"{name}: unchanged")
    return after


def describe(ir: Instructions) -> str:
    """Describe instructions in words, such as `12 instructions (6 r, 6 s), 4 scratch chunks a rank`.

    The scratch is that of the rank that needs most.
    """
    kinds = Counter(ir.op)
    ops = ", ".join(f"{kinds[op]} {op}" for op in sorted(kinds))
    return f"{len(ir)} instructions ({ops}), {max(scratch_chunks(ir), default=0)} scratch chunks a rank"
