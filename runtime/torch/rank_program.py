"""One rank's part of a program as a plain list of steps, for ranks that are processes and exchange messages.

Steps of all ranks are brought into one order in which each stands after all that it needs: what its threadblock did
before, the step it depends on, and the send of what it receives. A rank that does its own steps in this order, waits
for what it receives and never for a send, comes to the end if the others do: the first step that is not done yet lacks
nothing. Messages are sent without waiting for room, so a program's FIFO depth does not matter here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

from emit.columns import Columns
from emit.goal import goal_for
from emit.program import OPS, READS_DST, READS_SRC, WRITES_DST, Program
from runtime.buffers import Layout, executable_columns
from topologies.errors import InputError

AHEAD = 64  # receives that are posted before their turn; a sender can begin only then
_MOST_STEPS = 20_000  # whose pasts are known: that of each takes as many bits


@dataclass(frozen=True)
class RankStep:
    """A step of this rank."""

    op: str
    src: tuple[int, int] | None  # (buffer 0 i 1 o 2 s, first cell) where the op uses it; `count` cells each
    dst: tuple[int, int] | None
    count: int
    to: tuple[int, int] | None  # (peer, channel) of what it sends
    source: tuple[int, int] | None  # the same of what it receives
    lengths: tuple[int, ...]  # which chunk of a block each cell is as long as, in what it receives, else reads
    keep: bool  # what it sends may be overwritten before it has arrived, so a copy must be sent
    direct: bool  # what it receives may be put where it belongs before its turn
    at: tuple[int, int]  # (threadblock, position)
    after: tuple[int, int] | None  # that of the step that must be over before


@dataclass(frozen=True)
class RankProgram:
    """What `rank` does in `program`, in order, in place or not; `shift`: then the goal's `o_in_i` of the rank.

    order: by the program's rank, its place in the group, as `to` and `source` of the steps have it; None: the same.
    """

    program: Program
    rank: int
    inplace: bool
    shift: int | None
    steps: tuple[RankStep, ...]
    even: bool  # no chunk takes the place of one that may be longer or shorter
    order: tuple[int, ...] | None = None

    @cached_property
    def most_chunks(self) -> int:
        """Of a message."""
        return max((len(step.lengths) for step in self.steps), default=0)

    def fits(self, elements: int) -> bool:
        """Whether it can be run on blocks of so many elements."""
        return self.even or elements % Layout.of(self.program, 1).chunks == 0

    def check_fits(self, elements: int) -> None:
        """Raises InputError where it cannot be run on blocks of so many elements."""
        if not self.fits(elements):
            raise InputError(
                f"{self.program.name}: chunks of unequal length trade places; it must be a multiple of"
                f" {Layout.of(self.program, 1).chunks} elements, not {elements}"
            )


def rank_program(program: Program, place: int, order: tuple[int, ...] | None = None) -> RankProgram:
    """The part of a place in the group, in place where the program can be and is not for calls out of place only.

    order: as in `RankProgram`. Raises InputError for a program whose steps do not fit together, or that stops before
    its end.
    """
    rank, places = (place, range(program.nranks)) if order is None else (order.index(place), order)
    c = executable_columns(program)
    sequence, partner, before = order_steps(program, c)
    lengths, even = _lengths(program, c, sequence, partner)
    inplace = program.inplace and (not program.outofplace or program.collective in ("allreduce", "broadcast", "reduce"))
    mine = [step for step in sequence if int(c.rank[c.block[step]]) == rank]
    goal = goal_for(program.collective, program.nranks, program.nchunks_per_loop, True, program.root)
    shift = goal.o_in_i[rank] if inplace and goal is not None else None
    keep, direct = _hazards(c, mine, shift, partner, _past(sequence, before))
    steps = []
    for position, step in enumerate(mine):
        op = OPS[int(c.op[step])]
        to, source = int(c.sends[step]), int(c.receives[step])
        steps.append(
            RankStep(
                op,
                (int(c.src[step]), int(c.src_at[step])) if op in READS_SRC else None,
                (int(c.dst[step]), int(c.dst_at[step])) if op in WRITES_DST | READS_DST else None,
                int(c.count[step]),
                (places[c.connections[to][1]], c.connections[to][2]) if to >= 0 else None,
                (places[c.connections[source][0]], c.connections[source][2]) if source >= 0 else None,
                lengths.get(step, ()),
                keep[position],
                direct[position],
                c.place(step)[1:],
                c.place(int(c.dep[step]))[1:] if c.dep[step] >= 0 else None,
            )
        )
    return RankProgram(program, rank, inplace, shift, tuple(steps), even, order)


def order_steps(program: Program, c: Columns) -> tuple[list[int], dict[int, int], list[list[int]]]:
    """Return all steps, by the longest chain of steps before each; for each receive its send; what each step waits for.

    Raises InputError for a program that stops before its end.
    """
    out, into = c.messages()
    partner = dict(zip(into.tolist(), out.tolist(), strict=True))
    block, dep = c.block.tolist(), c.dep.tolist()
    before: list[list[int]] = []
    for step in range(len(block)):
        own = [step - 1] if step and block[step - 1] == block[step] else []
        before.append([*own, *([dep[step]] if dep[step] >= 0 else ()), *([partner[step]] if step in partner else ())])
    level = [0] * len(before)
    try:
        for step in TopologicalSorter(dict(enumerate(before))).static_order():
            level[step] = max((level[other] + 1 for other in before[step]), default=0)
    except CycleError as error:
        stuck = min(error.args[1])
        raise InputError(
            f"{program.name}: stops before its end: rank {{}} tb {{}} step {{}} waits for ever".format(*c.place(stuck))
        ) from None
    return sorted(range(len(level)), key=lambda step: (level[step], step)), partner, before


def _past(order: list[int], before: list[list[int]]) -> list[int] | None:
    """By step, all steps that are over when it starts, as bits; None where there are too many steps."""
    if len(order) > _MOST_STEPS:
        return None
    past = [0] * len(order)
    for step in order:
        for other in before[step]:
            past[step] |= past[other] | 1 << other
    return past


def _lengths(
    program: Program, c: Columns, order: list[int], partner: dict[int, int]
) -> tuple[dict[int, tuple[int, ...]], bool]:
    """By step, the chunks whose lengths its cells have, in what comes or is read; whether all agree."""
    chunks = Layout.of(program, 1).chunks
    scratch: dict[tuple[int, int], int] = {}
    comes: dict[int, tuple[int, ...]] = {}
    even = True
    for step in order:
        op, rank, count = OPS[int(c.op[step])], int(c.rank[c.block[step]]), int(c.count[step])
        if op == "nop":
            continue
        own = _cells(scratch, rank, int(c.src[step]), int(c.src_at[step]), count, chunks)
        came = comes[partner[step]] if step in partner else own
        if op in READS_SRC and came != own:
            even = False
        comes[step] = came
        if op in WRITES_DST:
            buffer, first = int(c.dst[step]), int(c.dst_at[step])
            if buffer == 2:
                scratch.update({(rank, first + k): chunk for k, chunk in enumerate(came)})
            elif came != _cells(scratch, rank, buffer, first, count, chunks):
                even = False
    return comes, even


def _cells(
    scratch: dict[tuple[int, int], int], rank: int, buffer: int, first: int, count: int, chunks: int
) -> tuple[int, ...]:
    if buffer == 2:
        return tuple(scratch.get((rank, cell), 0) for cell in range(first, first + count))
    return tuple(cell % chunks for cell in range(first, first + count))


def _hazards(
    c: Columns, mine: list[int], shift: int | None, partner: dict[int, int], past: list[int] | None
) -> tuple[list[bool], list[bool]]:
    """By position among this rank's steps: what is sent must be kept; what comes may be written before its turn.

    A send need not be kept if whatever overwrites it starts, or was sent, after its receiver had it.
    """

    def cells(buffer: int, first: int, count: int) -> set[tuple[int, int]]:
        if buffer == 1 and shift is not None:  # the output is part of the input, or the other way round
            buffer, first = 0, first + shift
        return {(buffer, cell) for cell in range(first, first + count)}

    touches: list[set[tuple[int, int]]] = []
    writes: list[set[tuple[int, int]]] = []
    out: list[set[tuple[int, int]]] = []
    for step in mine:
        op, count = OPS[int(c.op[step])], int(c.count[step])
        src = cells(int(c.src[step]), int(c.src_at[step]), count) if op in READS_SRC else set()
        dst = cells(int(c.dst[step]), int(c.dst_at[step]), count) if op in WRITES_DST else set()
        touches.append(src | dst)
        writes.append(dst)
        out.append((src if op == "s" else dst) if c.sends[step] >= 0 else set())
    writers: dict[tuple[int, int], list[int]] = {}
    for position, written in enumerate(writes):
        for cell in written:
            writers.setdefault(cell, []).append(position)
    receiver = {a: b for b, a in partner.items()}
    keep = []
    for position, step in enumerate(mine):
        later = {w for cell in out[position] for w in writers.get(cell, ()) if w > position}
        begins = [partner[mine[w]] if OPS[int(c.op[mine[w]])] in ("r", "rcs") else mine[w] for w in sorted(later)]
        keep.append(bool(begins) and (past is None or any(not past[begin] >> receiver[step] & 1 for begin in begins)))
    direct = []
    touched: dict[tuple[int, int], list[int]] = {}  # by which steps so far
    for position, step in enumerate(mine):
        over = 0 if past is None or step not in partner else past[partner[step]]  # before it is even sent
        earlier = (other for cell in writes[position] for other in touched.get(cell, ()))
        direct.append(OPS[int(c.op[step])] in ("r", "rcs") and all(over >> other & 1 for other in earlier))
        for cell in touches[position]:
            touched.setdefault(cell, []).append(step)
    return keep, direct
