"""Which passes, threadblocks and channels make the best program of some instructions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from emit.check.order import run
from emit.columns import Columns
from emit.compiler.assembly import Assembled, Layout, assemble
from emit.compiler.ir import Instructions, scratch_chunks
from emit.compiler.passes.registry import ORDER, PASSES
from emit.compiler.prepared import Prepared
from emit.compiler.tuning import TUNING
from emit.findings import Findings
from emit.program import FIFO_DEPTH, Program
from emit.targets import Limits
from synth.model.deadline import now
from topologies.errors import InputError

Times = tuple[float, ...]
Variant = tuple[str, ...]  # those passes that are a choice which are used
Key = tuple[int, bool, bool]  # of a variant: its instructions, whether blocks are paired, whether channels are runs


class Timer(Protocol):
    """Tells a program's times in µs at some message sizes, always the same ones, one after another."""

    def __call__(self, program: Program, columns: Columns | None = None) -> Iterator[float]:
        """columns: of the program, which then need not have its steps."""
        ...


_LEAST_US = 1e-9  # copies within a rank take no time in the model; a ratio needs some
# those of few threadblocks first, and of these the shortest programs
_VARIANTS: tuple[Variant, ...] = (
    ("aggregate", "fuse", "pair"),
    ("aggregate", "pair"),
    ("fuse", "pair"),
    ("pair",),
    ("aggregate", "fuse", "pair", "turn"),
    ("fuse", "pair", "turn"),
    ("pair", "turn"),
    ("aggregate", "fuse"),
    ("aggregate",),
    ("fuse",),
    (),
    ("run",),
)


_PLAIN: Variant = ()
_IN_ORDER: Variant = ("run",)


class Variants:
    """The instructions after the passes of each variant, and their programs in each layout, made once.

    Attributes:
        ir: as they were given, without what nobody reads. log: what was done to all.
        fault: why the first that did not fit was refused.
    """

    def __init__(self, ir: Instructions, limits: Limits, without: Collection[str], log: list[str]) -> None:
        self.limits, self.without, self.log = limits, without, log
        self.ir = self._apply("copy", self._apply("prune", ir, log), log)
        self.fault: InputError | None = None
        self._made: dict[Variant, tuple[Instructions, list[str]]] = {}
        self._scratch: dict[int, tuple[Instructions, Instructions]] = {}  # before and after that pass
        self._prepared: dict[int, Prepared] = {}
        self._least: dict[Key, int] = {}  # channels a connection
        self._programs: dict[tuple[Key, int], Assembled | None] = {}
        self._most: dict[Key, int] = {}  # a level that the target does not hold

    def usable(self) -> list[Variant]:
        """Those whose passes may all be used."""
        return [variant for variant in _VARIANTS if not any(name in self.without for name in variant)]

    def by(self, variant: Variant) -> tuple[Instructions, list[str]]:
        """The instructions for a variant, and what was done to get them."""
        key = tuple(name for name in variant if PASSES[name].apply is not None)
        if key not in self._made:
            log: list[str] = []
            ir = self.ir
            for name in ORDER:
                if PASSES[name].choice and name not in variant:
                    continue
                if name == "scratch":  # several variants come to the same instructions
                    if id(ir) not in self._scratch:
                        self._scratch[id(ir)] = ir, self._apply(name, ir, [])
                    ir = logged(log, name, *self._scratch[id(ir)])
                    continue
                ir = self._apply(name, ir, log)
                if name == "fuse":
                    ir = self._apply("prune", ir, log)
            self._made[key] = ir, log
        return self._made[key]

    def key(self, variant: Variant) -> Key:
        """Equal for variants of one program: those whose other passes have nothing to do."""
        return id(self.by(variant)[0]), "pair" in variant, "run" in variant

    def program(self, variant: Variant, level: int) -> Assembled | None:
        """On `level` times as many channels as it needs at least; None where the target cannot hold that."""
        key = self.key(variant), level
        if level >= self._most.get(key[0], math.inf):  # more channels take more threadblocks
            return None
        if key not in self._programs:
            try:
                self._programs[key] = self._assembled(variant, level)
            except InputError as error:
                self.fault = self.fault or error
                self._programs[key] = None
                if "re" not in self.by(variant)[0].op:  # sums that stand behind one another may be spread
                    self._most[key[0]] = level
        return self._programs[key]

    def has_room(self, variant: Variant) -> bool:
        """Whether a file of the target holds as many steps as a variant has, however they are laid out."""
        return self._prepare(variant).nodes <= self.limits.nodes

    @property
    def crowded(self) -> bool:
        """Whether a connection has more messages than a threadblock has steps."""
        return self._prepare(_PLAIN).crowd > self.limits.steps_per_tb

    def _prepare(self, variant: Variant) -> Prepared:
        ir = self.by(variant)[0]
        return self._prepared.get(id(ir)) or self._prepared.setdefault(id(ir), Prepared(ir))

    def _assembled(self, variant: Variant, level: int) -> Assembled:
        paired, limits, key = "pair" in variant, self.limits, self.key(variant)
        prepared = self._prepare(variant)
        name = prepared.ir.header.name
        if not self.has_room(variant):
            raise InputError(
                f"{name}: a rank has {prepared.nodes} {limits.node} or more; {limits.name} takes at most"
                f" {limits.nodes}; use fewer chunks (--chunks)"
            )
        crowd = prepared.crowd
        least = self._least.get(key, max(1, -(-crowd // limits.steps_per_tb)))
        while True:
            runs = least if "run" in variant else 1
            made = assemble(prepared, limits, Layout(least * level // runs, runs, paired))
            most = made.longest_threadblock
            if most <= limits.steps_per_tb and made.nchannels <= limits.channels:
                break
            if made.nchannels > limits.channels or least >= max(crowd, 1):
                raise InputError(
                    f"{name}: needs {most} steps in a threadblock even with {limits.channels} channels;"
                    f" {limits.name} has room for {limits.steps_per_tb}; use fewer chunks (--chunks)"
                )
            least = max(least + 1, least * most // limits.steps_per_tb)
        self._least[key] = least
        found = Findings()
        made.check_limits(limits, found)
        if found.reported:
            raise InputError(f"{name}: {found.reported[0].message}")
        return made

    def _apply(self, name: str, ir: Instructions, log: list[str]) -> Instructions:
        apply = PASSES[name].apply
        return ir if name in self.without or apply is None else logged(log, name, ir, apply(ir, self.limits))


@dataclass(frozen=True, eq=False)
class Candidate:
    """A program that ends, and its times in µs (none where nobody asks); `level`: of its channels."""

    variant: Variant
    level: int
    assembled: Assembled
    header: Program
    times: Times = ()

    @property
    def program(self) -> Program:
        """With all its steps."""
        return replace(self.header, gpus=self.assembled.program().gpus)


@dataclass
class Search:
    """The search for the best program; `tried` says what came of each.

    Attributes:
        header: of the program, but for its gpus.
        enough: times in µs that are as good as it need be; None: nobody knows, all is compared with all.
        until: of `now`, after which nothing more is tried than it takes to have a program.
        first: of `now`, when there was one; inf: not yet.
    """

    variants: Variants
    header: Program
    timer: Timer | None
    enough: Times | None = None
    until: float = math.inf
    first: float = math.inf
    tried: list[str] = field(default_factory=list)
    _seen: dict[tuple[Key, int], Candidate | None] = field(default_factory=dict)
    _deadlocked: bool = False

    def best(self) -> Candidate:
        """Of few threadblocks and steps, with a time that is enough, or next to the least that was found.

        Raises InputError where none fits the target, or all deadlock.
        """
        best: Candidate | None = None
        level = 1
        while level == 1 or level <= min(self.variants.limits.channels, len(self.variants.ir)):
            here = self._best_at(level, best)
            if best is not None and (here is None or not self._gains(here, best)):
                break
            best = here or best
            if "deal" in self.variants.without or (best is not None and self._is_enough(best)):
                break
            level *= 2 if best is None else self._factor(best)
        if best is None:
            name = self.header.name
            raise self.variants.fault or InputError(f"{name}: every order of its instructions deadlocks")
        return self._smallest_like(best)

    def _best_at(self, level: int, before: Candidate | None) -> Candidate | None:
        """On so many times the channels that it takes: the first that is enough, or the fastest.

        Of many instructions: is what loses least not enough, a threadblock for each direction of each connection, no
        other is tried but that with messages in their order.
        """
        found: list[Candidate] = []
        for family in self._families(level, before):
            if self._is_large():
                probe = self._candidate([v for v in family if v != _IN_ORDER][-1], level)
                found += [probe] if probe else []
                if probe and not self._is_enough(probe):
                    in_order = self._candidate(_IN_ORDER, level) if _IN_ORDER in family else None
                    found += [in_order] if in_order else []
                    continue
            for variant in family:
                least = min((self._excess(c.times) for c in found), default=math.inf)
                candidate = self._candidate(variant, level, least)
                if candidate and self._is_enough(candidate):
                    return candidate
                found += [candidate] if candidate else []
        least = min((self._excess(c.times) for c in found), default=math.inf)
        return next((c for c in found if self._excess(c.times) <= least * TUNING.as_fast), None)

    def _is_large(self) -> bool:
        return self.enough is not None and len(self.variants.ir) >= TUNING.few_variants_from

    def _families(self, level: int, before: Candidate | None) -> list[list[Variant]]:
        """Variants to try on a level, those that are aggregated apart where there is much to do."""
        usable = self.variants.usable()
        if self.timer is None:  # the first is taken: what is fused is shorter, though ranks take turns for it
            usable.sort(key=lambda variant: "fuse" not in variant)
        size = len(self.variants.ir)
        if size >= TUNING.unfused_from:
            plain = [v for v in usable if v in (("pair",), ("pair", "turn"), _PLAIN, _IN_ORDER)]
            fused: list[Variant] = [v for v in usable if v == ("fuse",)]  # none on a target that cannot
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

    def _smallest_like(self, best: Candidate) -> Candidate:
        """The first variant on as many channels that takes next to no longer."""
        if self._is_enough(best):
            return best
        for family in self._families(best.level, None):
            for variant in family if best.variant in family else ():
                candidate = self._candidate(variant, best.level, self._excess(best.times))
                if candidate and worst_ratio(candidate.times, best.times) <= TUNING.as_fast:
                    return candidate
        return best

    def _candidate(self, variant: Variant, level: int, least: float = math.inf) -> Candidate | None:
        """The variant's program; None where it does not fit, does not end, is not to be tried, or exceeds `least`."""
        if ("turn" in variant and not self._deadlocked) or (variant == _IN_ORDER and not self.variants.crowded):
            return None
        if self.first < math.inf and now() >= self.until:
            return None
        key = self.variants.key(variant), level
        if key not in self._seen:
            self._seen[key] = self._timed(variant, level, least * TUNING.as_fast)
        return self._seen[key]

    def _timed(self, variant: Variant, level: int, most: float) -> Candidate | None:
        made = self.variants.program(variant, level)
        if made is None:
            return None
        columns, protocol = made.columns(), self.header.protocol
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
        return Candidate(variant, level, made, self.header, times) if self._excess(times) <= most else None

    def _is_enough(self, candidate: Candidate) -> bool:
        if self.timer is None:
            return True
        return self.enough is not None and worst_ratio(candidate.times, self.enough) <= TUNING.as_fast

    def _factor(self, candidate: Candidate) -> int:
        """How many times as many channels to try: waiting for room, a program takes as much less time, at most."""
        slow = worst_ratio(candidate.times, self.enough) if self.enough else 1.0
        return 1 << max(1, math.floor(math.log2(slow)))

    def _gains(self, more: Candidate, fewer: Candidate) -> bool:
        """Whether more channels are worth it: the largest size, or any where nobody knows what is enough, pays not."""
        few = fewer.times[:1] if self.enough else fewer.times
        pays = worst_ratio(more.times[: len(few)], few) > TUNING.as_fast and not self._is_enough(more)
        return not pays and self._excess(more.times) * TUNING.spread_gain <= self._excess(fewer.times)

    def _excess(self, times: Times) -> float:
        """Over what is enough, the ratios at all these sizes multiplied; of µs where nobody knows what is.

        The first size, which then is the largest, counts several times: it stands for all that are large.
        """
        least = self.enough or (_LEAST_US,) * len(times)
        ratios = [max(1.0, _ratio(a, b)) for a, b in zip(times, least, strict=False)]
        return math.prod(ratios) * (ratios[0] ** (TUNING.largest_counts - 1) if self.enough and ratios else 1.0)


def mean_ratio(times: Times, others: Times) -> float:
    """How much longer one program takes than another: the geometric mean over the sizes."""
    ratios = [_ratio(a, b) for a, b in zip(times, others, strict=True)]
    return math.exp(sum(map(math.log, ratios)) / max(1, len(ratios)))


def worst_ratio(times: Times, others: Times) -> float:
    """The same at the size where it is most."""
    return max((_ratio(a, b) for a, b in zip(times, others, strict=True)), default=1.0)


def _ratio(time_us: float, other_us: float) -> float:
    return max(time_us, _LEAST_US) / max(other_us, _LEAST_US)


def logged(log: list[str], name: str, before: Instructions, after: Instructions) -> Instructions:
    """`after`, with a line on what became of the instructions, where the pass changed them."""
    if after is not before:
        was, now = describe(before), describe(after)
        log.append(f"{name}: {now}" if was != now else f"{name}: as it was")
    return after


def describe(ir: Instructions) -> str:
    """How many instructions, of which kinds, in words."""
    kinds = Counter(ir.op)
    ops = ", ".join(f"{kinds[op]} {op}" for op in sorted(kinds))
    return f"{len(ir)} instructions ({ops}), {max(scratch_chunks(ir), default=0)} scratch chunks a rank"
