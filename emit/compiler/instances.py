"""Instances: one program several times side by side, each on its share of every chunk and on channels of its own.

One instance is compiled; its instructions are repeated and laid out once more, so that r instances cost r times one.
Blocked, instance k of r has the k-th part of every rank's block: nothing is shared, and what lies side by side still
does. Interleaved, as in MSCCLang (ASPLOS 2023, section 5.2), the span of each instruction is cut into r parts: an
instruction may then need what several instances brought, which the layout finds out as for any instructions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from emit.check.limits import check_limits
from emit.check.order import run
from emit.columns import columns_of
from emit.compiler.assembly import Layout, assemble, describe_size
from emit.compiler.ir import BUFFER, NONE, SCRATCH, Instructions, instructions_of
from emit.compiler.prepared import Prepared
from emit.findings import Findings
from emit.program import FIFO_DEPTH, Gpu, Program
from emit.targets import Limits
from synth.model.registry import find_kind
from topologies.errors import InputError

Place = Callable[[int, int, int, int], int]  # rank, first cell and count of a span, instance → its first cell there
_LAYOUTS = (Layout(), Layout(few_nops=True), Layout(paired=False))


def share_of(limits: Limits, number: int, nranks: int) -> Limits:
    """What one of so many instances may take of a target's limits. InputError where it is no threadblock at all."""
    if 0 < limits.sms < number:
        raise InputError(f"{number} instances have as many threadblocks on {limits.sms} SMs; all must run at once")
    return replace(
        limits,
        name=f"{limits.name}, each of {number} instances,",
        tbs_per_gpu=max(1, limits.tbs_per_gpu // number),
        children=max(limits.children // number, nranks),
        channels=limits.channels // number,
        offset=limits.offset // number,
        sms=limits.sms // number,
        nodes=1 + nranks + (limits.nodes - 1 - nranks) // number,
    )


def side_by_side(one: Program, ir: Instructions, limits: Limits) -> Program:
    """`ir.instances` of the program `one`, which was compiled of `ir`, on channels 0..instances−1 for its channel 0 …

    Raises InputError: together they do not fit the target, do not end, or cannot lie as `ir.interleaved` says.
    """
    manual = max(ir.threadblock, default=NONE) != NONE  # then all is where it was
    if few := _too_few(one, ir.instances, limits):  # before they are laid out
        raise InputError(f"{one.name}: {ir.instances} instances of {describe_size(one)}: {few}")
    many = repeat(instructions_of(one, ir.goal, manual), ir.instances, ir.interleaved)
    prepared = Prepared(many)
    fits: list[Program] = []
    fault = ""
    for layout in _LAYOUTS if _is_paired(one) else _LAYOUTS[::-1]:
        try:
            made = assemble(prepared, limits, layout).program()
        except InputError as error:
            fault = fault or str(error)
            continue
        found = Findings()
        check_limits(made, limits, found)
        c = columns_of(made, found)
        if not found.reported and run(c, FIFO_DEPTH[made.protocol]).complete:
            fits.append(made)
        fault = fault or (found.reported[0].message if found.reported else "every order of them deadlocks")
    if fits:
        return min(fits, key=lambda made: made.nsteps)
    raise InputError(f"{one.name}: {ir.instances} instances of {describe_size(one)}: {fault}")


def _too_few(one: Program, number: int, limits: Limits) -> str:
    """What a rank has not enough of for so many instances; empty where that is not known.

    A threadblock sends to one connection and receives from one, and instances have no connection in common.
    """
    sides = [([tb.send for tb in gpu.threadblocks], [tb.recv for tb in gpu.threadblocks]) for gpu in one.gpus]
    needed = number * max(sum(peer >= 0 for peer in side) for both in sides for side in both)
    most = min(limits.tbs_per_gpu, limits.sms or limits.tbs_per_gpu)
    return f"{needed} threadblocks a rank; there is room for {most}" if needed > most else ""


def repeat(ir: Instructions, number: int, interleaved: bool | None) -> Instructions:
    """The instructions `number` times; interleaved None: blocked where that cuts no span.

    Raises InputError where blocked instances are asked for and a span lies in several ranks' blocks.
    """
    block = _block(ir)
    whole = ir.goal is None and all(
        cell == NONE or cell >= SCRATCH or cell % BUFFER // block == (cell % BUFFER + count - 1) // block
        for cells in (ir.src, ir.dst)
        for cell, count in zip(cells, ir.count, strict=True)
    )
    if interleaved is False and not whole:
        raise InputError(
            f"{ir.header.name}: blocked instances of spans that lie in several blocks, or of a custom goal;"
            " it must be interleaved"
        )
    sizes = [gpu.s_chunks for gpu in ir.header.gpus]

    def blocked(rank: int, cell: int, _count: int, k: int) -> int:
        size = sizes[rank] if cell >= SCRATCH else block
        at = cell % BUFFER
        return cell - at + at // size * size * number + k * size + at % size

    def cut(_rank: int, cell: int, count: int, k: int) -> int:
        at = cell % BUFFER
        return cell - at + at * number + k * count

    return _repeated(ir, [number] * len(ir), number, cut if interleaved or not whole else blocked)


def cut_parts(ir: Instructions, parts: list[int], finer: int) -> Instructions:
    """Instructions on chunks `finer` times as fine, the n-th cut into `parts[n]` (a divisor), on channels of their own.

    Both ends of a message have as many.
    """

    def cut(_rank: int, cell: int, count: int, k: int) -> int:
        return cell + cell % BUFFER * (finer - 1) + k * count

    return _repeated(ir, parts, finer, cut)


def _repeated(ir: Instructions, parts: list[int], finer: int, place: Place) -> Instructions:
    p = ir.header
    gpus = [Gpu(g.i_chunks * finer, g.o_chunks * finer, g.s_chunks * finer, ()) for g in p.gpus]
    header = replace(p, gpus=gpus, nchunks_per_loop=p.nchunks_per_loop * finer)
    made = Instructions(header, None if ir.goal is None else ir.goal.refined(finer))
    most = max(parts)
    first = [0] * len(ir)
    came_on: dict[
        tuple[int, int], int
    ] = {}  # rank and cell, the offset of the channel on which its content arrived last
    for n, number in enumerate(parts):
        first[n] = len(made)
        rank, op, count = ir.rank[n], ir.op[n], ir.count[n] * finer // number
        spans = [[c if c == NONE else place(rank, c, count, k) for c in (ir.src[n], ir.dst[n])] for k in range(number)]
        source = ir.source[n]
        offsets = [made.channel[first[source] + k] % most for k in range(number)] if source != NONE else []
        if op == "s":
            offsets = _channel_offsets([[came_on.get((rank, src + c), NONE) for c in range(count)] for src, _ in spans])
        for k, (src, dst) in enumerate(spans):
            offset = offsets[k] if offsets else k
            channel = max(ir.channel[n], 0) * most + offset if offsets else NONE
            block = NONE if ir.threadblock[n] == NONE else ir.threadblock[n] * most + offset
            made.add(rank, op, src, dst, count, NONE if source == NONE else first[source] + k, channel, block)
            if source != NONE and dst != NONE:
                came_on.update(((rank, dst + c), offsets[k]) for c in range(count))
    return made


def _channel_offsets(came: list[list[int]]) -> list[int]:
    """For each part of a message a number of its own: that on which most of it arrived, if it can be.

    Its threadblock then follows on what it receives itself, and need not wait for as many others.
    """
    votes = sorted(
        (-number, k, offset)
        for k, offsets in enumerate(came)
        for offset, number in Counter(offsets).items()
        if 0 <= offset < len(came)
    )
    chosen: dict[int, int] = {}
    for _, k, offset in votes:
        if k not in chosen and offset not in chosen.values():
            chosen[k] = offset
    free = [offset for offset in range(len(came)) if offset not in chosen.values()]
    for k in range(len(came)):
        if k not in chosen:
            chosen[k] = free.pop(free.index(k) if k in free else 0)
    return [chosen[k] for k in range(len(came))]


def _block(ir: Instructions) -> int:
    """Chunks that belong to one rank, or of the whole buffer where nothing does."""
    p = ir.header
    return p.nchunks_per_loop // p.nranks if find_kind(p.collective).blocks_a_rank else p.nchunks_per_loop


def _is_paired(program: Program) -> bool:
    """Whether some threadblock sends one message and receives another."""
    plain = ({step.op for step in tb.steps} for gpu in program.gpus for tb in gpu.threadblocks)
    return any("s" in ops and not ops.isdisjoint(("r", "rrc")) for ops in plain)
