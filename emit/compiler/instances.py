"""Make instances: copies of one program that run in parallel, each on its share of every chunk and on its own channels.

One instance is compiled; its instructions are repeated and laid out once more, so that r instances cost r times as much
as one. Blocked, instance k of r has the k-th part of every rank's block: instances share nothing, and adjacent chunks
stay adjacent. Interleaved, as in MSCCLang (ASPLOS 2023, section 5.2), the span of each instruction is divided into r
parts: an instruction may then need data that several instances received, which the layout finds as for any
instructions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from emit.check.order import run
from emit.compiler.assembly import Assembled, BlockLayout, assemble, describe_size
from emit.compiler.ir import BUFFER, NONE, SCRATCH, Instructions, instructions_of
from emit.compiler.prepared import Prepared
from emit.findings import Findings
from emit.images import block_of_chunks
from emit.program import FIFO_DEPTH, Gpu, Program
from emit.targets import Limits
from synth.model.deadline import checking_deadline
from synth.model.registry import find_kind
from topologies.errors import InputError

Place = Callable[[int, int, int, int], int]  # (rank, first cell, count, instance) of a span → its new first cell
_LAYOUTS = (BlockLayout(), BlockLayout(few_nops=True), BlockLayout(paired=False))


def share_of(limits: Limits, number: int, nranks: int) -> Limits:
    """Return the part of a target's limits that one of so many instances may use.

    Numbers are divided and rounded down, but to no less than one threadblock. Limits of one threadblock and of one
    instruction stay, except for the largest offset.

    Raises:
        InputError: There are more instances than threadblocks that can run simultaneously.
    """
    if 0 < limits.sms < number:
        raise InputError(
            f"{number} instances need {number} threadblocks, which must run simultaneously on {limits.sms} SMs;"
            " use fewer instances"
        )
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


def side_by_side(instance: Program, ir: Instructions, limits: Limits) -> Program:
    """Build the program that runs `ir.instances` instances of a program.

    Of the layouts that fit the target, the one with the fewest steps is taken.

    Args:
        instance: The program of one instance, which was compiled from `ir`. Its channel c becomes the channels c ·
            instances .. c · instances + instances − 1.
        ir: Instructions, of which only the goal, the requested threadblocks, and the number and the form of the
            instances are used.
        limits: Limits of the target.

    Raises:
        InputError: The instances do not fit the target, deadlock, or cannot be laid out as `ir.interleaved` says.
    """
    manual = max(ir.threadblock, default=NONE) != NONE  # Then all instructions keep their threadblocks.
    if few := _too_few(instance, ir.instances, limits):  # Refuse them before the long work of their layout.
        raise InputError(f"{instance.name}: {ir.instances} instances of {describe_size(instance)}: {few}")
    repeated = repeat(instructions_of(instance, ir.goal, manual), ir.instances, ir.interleaved)
    prepared = Prepared(repeated)
    best: Assembled | None = None
    fault = ""
    for layout in _LAYOUTS if _is_paired(instance) else _LAYOUTS[::-1]:
        try:
            assembled = assemble(prepared, limits, layout)
        except InputError as error:
            fault = fault or str(error)
            continue
        if best is not None and assembled.nsteps >= best.nsteps:
            continue
        findings = Findings()
        assembled.check_limits(limits, findings)
        if not findings.reported and run(assembled.columns(), FIFO_DEPTH[instance.protocol]).complete:
            best = assembled
            if best.nsteps == len(prepared):  # No layout has fewer steps than instructions.
                break
        fault = fault or (findings.reported[0].message if findings.reported else "every order of them deadlocks")
    if best is not None:
        return best.program()
    raise InputError(f"{instance.name}: {ir.instances} instances of {describe_size(instance)}: {fault}")


def _too_few(instance: Program, number: int, limits: Limits) -> str:
    """Return in words what a rank lacks for so many instances; empty if nothing is known to be lacking.

    A threadblock sends on one connection and receives on one, and instances have no connection in common.
    """
    sides = [([tb.send for tb in gpu.threadblocks], [tb.recv for tb in gpu.threadblocks]) for gpu in instance.gpus]
    needed = number * max(sum(peer >= 0 for peer in side) for directions in sides for side in directions)
    most = min(limits.tbs_per_gpu, limits.sms or limits.tbs_per_gpu)
    return f"{needed} threadblocks a rank; there is room for {most}" if needed > most else ""


def repeat(ir: Instructions, number: int, interleaved: bool | None) -> Instructions:
    """Build the instructions of so many instances, with chunks that are `number` times as fine.

    Args:
        ir: Instructions of one instance.
        number: Number of instances.
        interleaved: Whether instances are interleaved or blocked; None: blocked if that divides no span.

    Raises:
        InputError: Blocked instances are requested, but a span lies in several ranks' blocks.
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
        """Return the first cell of a span in instance k if each instance has a contiguous part of every block."""
        size = sizes[rank] if cell >= SCRATCH else block
        at = cell % BUFFER
        return cell - at + at // size * size * number + k * size + at % size

    def cut(_rank: int, cell: int, count: int, k: int) -> int:
        """Return the first cell of a span in instance k if each span is divided between the instances."""
        at = cell % BUFFER
        return cell - at + at * number + k * count

    return _repeated(ir, [number] * len(ir), number, cut if interleaved or not whole else blocked)


def cut_parts(ir: Instructions, parts: list[int], finer: int) -> Instructions:
    """Split instructions into parts on channels of their own, with chunks that are `finer` times as fine.

    Args:
        ir: Instructions.
        parts: Number of parts of each instruction, a divisor of `finer`; both ends of a message have the same number.
        finer: Number of new chunks for one old chunk.
    """

    def cut(_rank: int, cell: int, count: int, k: int) -> int:
        """Return the first cell of part k of a span."""
        return cell + cell % BUFFER * (finer - 1) + k * count

    return _repeated(ir, parts, finer, cut)


def _repeated(ir: Instructions, parts: list[int], finer: int, place: Place) -> Instructions:
    """Return instructions with the n-th divided into `parts[n]` parts, whose cells `place` gives.

    Chunks, buffers and the goal are `finer` times as fine. Part k of a message is on a channel of its own, and so is
    its requested threadblock. `ir` is not changed.
    """
    p = ir.header
    gpus = [Gpu(g.i_chunks * finer, g.o_chunks * finer, g.s_chunks * finer, ()) for g in p.gpus]
    header = replace(p, gpus=gpus, nchunks_per_loop=p.nchunks_per_loop * finer)
    repeated = Instructions(header, None if ir.goal is None else ir.goal.refined(finer))
    max_parts = max(parts)
    first = [0] * len(ir)
    arrival_offset: dict[tuple[int, int], int] = {}  # by rank and cell, the channel offset of its latest arrival
    for n, number in checking_deadline(enumerate(parts), every=256):
        first[n] = len(repeated)
        rank, op, count = ir.rank[n], ir.op[n], ir.count[n] * finer // number
        spans = [[c if c == NONE else place(rank, c, count, k) for c in (ir.src[n], ir.dst[n])] for k in range(number)]
        source = ir.source[n]
        offsets = [repeated.channel[first[source] + k] % max_parts for k in range(number)] if source != NONE else []
        if op == "s":
            offsets = _channel_offsets(
                [[arrival_offset.get((rank, src + c), NONE) for c in range(count)] for src, _ in spans]
            )
        for k, (src, dst) in enumerate(spans):
            offset = offsets[k] if offsets else k
            channel = max(ir.channel[n], 0) * max_parts + offset if offsets else NONE
            block = NONE if ir.threadblock[n] == NONE else ir.threadblock[n] * max_parts + offset
            own_source = NONE if source == NONE else first[source] + k
            repeated.add(rank, op, src, dst, count, own_source, channel, block, ir.out[n])
            if source != NONE and dst != NONE:
                arrival_offset.update(((rank, dst + c), offsets[k]) for c in range(count))
    return repeated


def _channel_offsets(arrival_offsets: list[list[int]]) -> list[int]:
    """Return a different channel offset for each part of a message, if possible the one on which most of it arrived.

    The threadblock of that channel then forwards data that it receives itself, and waits for fewer other threadblocks.

    Args:
        arrival_offsets: For each part, the channel offset on which each of its chunks arrived (−1: it did not arrive).
    """
    if all(offset == NONE for offsets in arrival_offsets for offset in offsets):
        return list(range(len(arrival_offsets)))
    votes = sorted(
        (-number, k, offset)
        for k, offsets in enumerate(arrival_offsets)
        for offset, number in Counter(offsets).items()
        if 0 <= offset < len(arrival_offsets)
    )
    chosen: dict[int, int] = {}
    for _, k, offset in votes:
        if k not in chosen and offset not in chosen.values():
            chosen[k] = offset
    free = [offset for offset in range(len(arrival_offsets)) if offset not in chosen.values()]
    for k in range(len(arrival_offsets)):
        if k not in chosen:
            chosen[k] = free.pop(free.index(k) if k in free else 0)
    return [chosen[k] for k in range(len(arrival_offsets))]


def _block(ir: Instructions) -> int:
    """Return the number of chunks that belong to one rank, or of the whole buffer if blocks do not belong to ranks.

    With translations, that buffer has a block for each group of ranks that they move (`block_of_chunks`).
    """
    p = ir.header
    if find_kind(p.collective).blocks_a_rank:
        return p.nchunks_per_loop // p.nranks
    return block_of_chunks(p.translations, p.nranks, p.nchunks_per_loop) or p.nchunks_per_loop


def _is_paired(program: Program) -> bool:
    """Return True if some threadblock sends one message and receives another."""
    plain = ({step.op for step in tb.steps} for gpu in program.gpus for tb in gpu.threadblocks)
    return any("s" in ops and not ops.isdisjoint(("r", "rrc")) for ops in plain)
