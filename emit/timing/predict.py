"""Predict the time of a Program on a topology, in the model of time of `synth.timing.simulate`.

A step that sends occupies its link for its bytes / bandwidth, and its data can be received α after it has left the
link. A step starts when the step before it in its threadblock has ended, the step it depends on has completed, a FIFO
slot of its connection is free, and its link and the limits of that link have room. A step is one transmission: it
receives its data as a whole before it sends any of it on (devices store and forward). A slot is free again when the
receiver has its data. Copies and sums within a rank take no time.

With an executor's costs (`topologies.costs`) for the program's protocol, a threadblock moves no more than it can, a
message keeps links busy for the gap, the run begins with the call's start, and large chunks move slice by slice. If
several steps wait for one link, port or limit, the step that has waited longest goes first; a wait delays only steps
that need the same link, port or limit. A connection uses the widest link of its pair of ranks; equally wide links serve
the channels cyclically.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from emit.check.capacity import CAPACITY
from emit.columns import Columns, columns_of
from emit.findings import Findings
from emit.images import image_gpus
from emit.program import CUSTOM, FIFO_DEPTH, Gpu, Program, ThreadBlock
from emit.timing.clock import COMPILED_FROM
from emit.timing.links import assign_links, links_of
from emit.timing.slices import slices_of
from emit.timing.timed import TimedProgram, TimedSteps
from synth.model.collective import Floats, Ints
from synth.model.registry import find_kind
from topologies.costs import PROTOCOLS
from topologies.errors import InputError
from topologies.network import Network
from topologies.symmetry.translations import quotient_network
from topologies.topology import Topology

# Faults of results and of memory do not change the time.
_HARMLESS = frozenset({"overrun", "race", "inconsistent"})


@dataclass(frozen=True, eq=False)
class Transfers:
    """All transmissions of a program at one size, in the order of their start (then of their place).

    Every array has shape (n,) unless it says otherwise; n is the number of transmissions.

    Attributes:
        src: Sending rank of the program, int.
        dst: Receiving rank of the program, int.
        channel: Channel, int.
        link: Link of `Predictor.network`, int.
        start_us: When the transmission takes the link, float.
        end_us: When it leaves the link, float.
        arrive_us: end_us + α, float.
        received_us: When the receiver has taken the data out of its slot, float.
        bytes: Bytes, float.
        count: Number of chunks, int.
        step: Step that sends, numbered in document order, int.
        into: Step that receives, numbered in document order, int.
        sender: (rank, threadblock, position) of the sending step, int, shape (n, 3).
        receiver: (rank, threadblock, position) of the receiving step, int, shape (n, 3).
    """

    src: Ints
    dst: Ints
    channel: Ints
    link: Ints
    start_us: Floats
    end_us: Floats
    arrive_us: Floats
    received_us: Floats
    bytes: Floats
    count: Ints
    step: Ints
    into: Ints
    sender: Ints
    receiver: Ints

    def __len__(self) -> int:
        return len(self.src)


class Predictor(TimedProgram):
    """A program on some ranks of a topology, ready to be timed at any size.

    Attributes:
        program: The program.
        topology: The topology.
        group: The topology's rank of each rank of the program.
        network: The network between these ranks; its local ranks are the program's.
        columns: Steps of the program.
    """

    def __init__(  # Longer than 60 lines because its arguments need many lines of documentation.
        self,
        program: Program,
        topology: Topology,
        group: Sequence[int] | None = None,
        fifo_depth: int | None = None,
        compiled_from: int = COMPILED_FROM,
        weight: Floats | None = None,
        columns: Columns | None = None,
    ) -> None:
        """Check that the program fits the topology, and prepare it for timing.

        Args:
            program: The program.
            topology: The topology.
            group: The topology's rank of each rank of the program; None for 0, 1, ….
            fifo_depth: FIFO slots of a connection; None for the protocol's.
            compiled_from: Number of transmissions executed by this process from which on the loop runs compiled.
            weight: Bytes of each rank's chunks relative to the program's chunks, shape (nranks,); None for 1.
            columns: Steps of the program, without faults; then the program itself need not have its steps.

        Raises:
            InputError: The group does not fit, two ranks send without a link, sends and receives do not pair up, the
                program has another fault that changes its time or too many steps, or `fifo_depth` is below 1.
        """
        super().__init__(topology, program.protocol, program.nranks, group)
        self.program = program
        slots = FIFO_DEPTH[program.protocol] if fifo_depth is None else fifo_depth
        if slots < 1:
            raise InputError(f"fifo_depth {fifo_depth}; it must be 1 or more")
        findings = Findings()
        c = columns_of(program, findings) if columns is None else columns
        for finding in findings.reported:
            if finding.kind not in _HARMLESS:
                raise InputError(f"cannot be timed: {finding.kind}: {finding.message}")
        for bad_step in np.flatnonzero(((c.sends >= 0) | (c.receives >= 0)) & (c.count < 1)).tolist():
            rank, tb, position = c.place(bad_step)
            raise InputError(
                f"cannot be timed: rank {rank} tb {tb} step {position}: count {c.count[bad_step]}; it must be 1 or more"
            )
        if len(c.op) > CAPACITY.moves:
            raise InputError(f"program of {len(c.op)} steps; it must be at most {CAPACITY.moves} to be timed")
        ends = np.array(c.connections, dtype=np.int64).reshape(-1, 3)
        steps = TimedSteps(
            columns=c,
            chunks=c.count.astype(np.float64),
            ends=ends,
            link=assign_links(self.network, ends, self._costed),
            links=links_of(self._resources(program)),
            weight=np.ones(program.nranks) if weight is None else weight,
        )
        self._take_steps(steps, slots, compiled_from)

    def _resources(self, program: Program) -> Network:
        """Return the network whose resources the program's transmissions share.

        With translations, a transmission does to the orbit of a resource what all its images do to the resource.
        """
        return quotient_network(self.network, program.translations) if program.translations else self.network

    @property
    def nsteps(self) -> int:
        """Return the number of steps of all ranks."""
        return self.program.nsteps

    @property
    def nthreadblocks(self) -> int:
        """Return the number of threadblocks of all ranks."""
        return sum(len(gpu.threadblocks) for gpu in self.program.gpus)

    @property
    def nchannels(self) -> int:
        """Return the number of channels of the program: its largest channel number + 1."""
        return self.program.nchannels

    @property
    def fifo_depth(self) -> int:
        """Return the number of FIFO slots of a connection."""
        return self._slots

    def chunk_bytes(self, size_bytes: float) -> float:
        """Return the bytes of one chunk for a message of `size_bytes` (as nccl-tests counts sizes).

        The result is not rounded. In gather and scatter, the message is the root's buffer of a block for each rank.
        """
        p = self.program
        blocks = p.nranks if find_kind(p.collective).blocks_at_root else 1
        return float(size_bytes) / (p.nchunks_per_loop * blocks)

    @classmethod
    def concurrent_us(
        cls,
        timed: Sequence[Predictor],
        positions: Sequence[Ints],
        chunk_bytes: Sequence[float],
        topology: Topology,
        ranks: Sequence[int],
    ) -> float:
        """Return the time when the last of the programs that begin simultaneously has ended, in µs.

        All programs have the smallest number of FIFO slots among them. All are timed with protocol LL if one of them
        has it, else with LL128 if one of them has it.

        Arguments are those of `TimedProgram.concurrent_us`.

        Raises:
            InputError: Two ranks send without a link, or a program deadlocks.
        """
        gpus, weight = [Gpu(0, 0, 0, ())] * len(ranks), np.ones(len(ranks))
        for predictor, new_ranks, size in zip(timed, positions, chunk_bytes, strict=True):
            for rank, gpu in zip(new_ranks.tolist(), image_gpus(predictor.program), strict=True):
                gpus[rank] = replace(gpu, threadblocks=[_renumbered(tb, new_ranks) for tb in gpu.threadblocks])
                weight[rank] = size
        protocol = min((predictor.program.protocol for predictor in timed), key=PROTOCOLS.index)
        all_ranks = Program("concurrent", CUSTOM, protocol, len(ranks), 1, inplace=False, outofplace=True, gpus=gpus)
        slots = min(predictor.fifo_depth for predictor in timed)
        return cls(all_ranks, topology, ranks, slots, weight=weight).time_us(1.0)

    def transfers(self, size_bytes: float) -> Transfers:
        """Return all transmissions for a message of `size_bytes`; with slices, each slice of a chunk is one.

        Raises:
            InputError: The program deadlocks.
        """
        _, start, took = self._run(size_bytes)
        c, steps, ends, chunk_bytes = self.columns, self._steps, self._steps.ends, self.chunk_bytes(size_bytes)
        slices = self._slices(size_bytes)
        number = self._runs[slices][0].number
        step, into = (np.tile(steps_of_messages, slices) for steps_of_messages in c.messages())
        pass_number = np.repeat(np.arange(slices), len(step) // slices)
        order = np.lexsort((step, start[number[pass_number, step]]))
        step, into, pass_number = step[order], into[order], pass_number[order]
        begin, received = start[number[pass_number, step]], took[number[pass_number, into]]
        connection = c.sends[step]
        link = steps.link[connection]
        end = begin + self._hold_us[step] * chunk_bytes / slices
        alpha = self.network.alpha_us[link]
        return Transfers(
            src=ends[connection, 0],
            dst=ends[connection, 1],
            channel=ends[connection, 2],
            link=link,
            start_us=begin,
            end_us=end,
            arrive_us=end + alpha,
            received_us=received,
            bytes=steps.chunks[step] * steps.weight[ends[connection, 0]] * chunk_bytes / slices,
            count=c.count[step],
            step=step,
            into=into,
            sender=_places_of(c, step),
            receiver=_places_of(c, into),
        )

    def _slices(self, size_bytes: float) -> int:
        """Return the number of passes in which the program runs its steps: one if costs are off, or without a FIFO.

        Else it is that of the largest chunk of any rank.
        """
        if not self.topology.protocol or not self.has_fifo:
            return 1
        return slices_of(self.program.protocol, self.chunk_bytes(size_bytes) * float(self._steps.weight.max()))


def _places_of(c: Columns, steps: Ints) -> Ints:
    """Return (rank, threadblock, position) of each step, int, shape (steps, 3)."""
    block = c.block[steps]
    return np.stack([c.rank[block], c.tb[block], steps - c.start[block]], axis=1)


def _renumbered(block: ThreadBlock, new_ranks: Ints) -> ThreadBlock:
    """Return the threadblock with its peers replaced by their numbers in `new_ranks`; −1 (no peer) stays."""
    send, recv = (int(new_ranks[peer]) if peer >= 0 else peer for peer in (block.send, block.recv))
    return replace(block, send=send, recv=recv)
