"""Predict the time of an execution plan, in the model of time of `emit.timing.predict`.

A threadblock that moves data to or from another rank's memory occupies the link between the two, and itself, for bytes
/ bandwidth; the data arrives α after it has left. A sum or multicast of a switch occupies every member's port once
(`topologies.hyperlinks`); the switch multicasts finished sums while it sums more, in slices. A signal takes α and
occupies nothing. A port channel moves data asynchronously, in the order of its requests; over a network the NIC reads
the data itself, at the link's bandwidth. A threadblock that flushes the channel waits until its data and signals have
arrived, since the NIC learns of that soon after. A reader of a packet waits for its arrival. Copies and sums within a
rank take no time, and neither do semaphores, barriers and nops. There is no FIFO: the plan contains all its waits.
Flags of packets take no time on the link (as for programs of protocol LL).

A pipeline has as many iterations as its message has units, all of one length. Few numbers of iterations are followed,
each about twice the one before; the times of others follow from them (`_with_iterations`).

The α of a signal is that of the plan's protocol if it may tell of data: then its rank has moved data to the same rank
since that data's threadblock last signalled there. A signal that tells only that a rank has started, or has got
something, is a flag like that of a packet, and takes the least α of all protocols. Over the network, the signal that a
rank has started takes no time: there NCCL's receivers also say that they are ready before anything is sent to them, so
the start of a call and the latencies, which are fitted to measured calls of NCCL, include these messages.

A threadblock uses the widest link of a pair of ranks; equally wide links serve threadblocks cyclically. If several
threadblocks release one semaphore, or signal on one channel, they are served in the order of one execution.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace

import numpy as np

from emit.check.acts import Act, ActRun, Acts, Move, execute_acts
from emit.columns import OP_CODE, Columns
from emit.mscclpp.acts import acts_of
from emit.mscclpp.images import whole_plan
from emit.mscclpp.memory import memory_of
from emit.mscclpp.plan import IN_SWITCH, ExecutionPlan, PlanGpu, in_units
from emit.mscclpp.structure import ensure_executable
from emit.program import FREE_SLOTS
from emit.timing.clock import MOST_TURNS
from emit.timing.links import MessageLinks, assign_links, program_network
from emit.timing.timed import TimedProgram, TimedSteps
from synth.engines.switch import SwitchTuning
from synth.model.collective import Floats, Ints
from topologies.arrays import pointers
from topologies.costs import ANY
from topologies.errors import InputError
from topologies.network import Network
from topologies.symmetry.translations import are_kept, quotient_network
from topologies.topology import Topology

_NONE = -1
_TELLS, _FLAG, _READY = range(3)  # What a signal says: of data; of none; that its rank has started, over the network.
_ROUNDING = 1e-9  # relative rounding of a number of iterations
_ALIGNMENT = 16  # bytes of an iteration
_MOST_ITERATIONS = 512  # of the longest pipeline, of those that are tried
_LEAST_UNIT = 1 << 15  # Bytes; shorter iterations are not tried, because executors need some time for each.
_GAIN = 0.995  # factor on the score that shorter iterations must reach
_FOLLOWED_OPS, _LEAST_FOLLOWED = 40_000, 4  # Operations of all iterations that are followed, and iterations at least.
_SLICES = SwitchTuning.slices  # of a sum that a switch multicasts; they stand for the kernel's single elements


class PlanPredictor(TimedProgram):
    """A plan on some ranks of a topology, ready to be timed at any size.

    Attributes:
        plan: The plan.
        pipeline_chunks: Chunks of the plan that its longest pipeline moves; 0 if it has none.
        unit_bytes: Most bytes of an iteration of its pipelines.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        topology: Topology,
        group: Sequence[int] | None = None,
        weight: Floats | None = None,
        made_here: bool = False,
        cut: tuple[int, int] | None = None,
    ) -> None:
        """Check that the plan fits the topology, and prepare it for timing.

        Args:
            plan: The plan.
            topology: The topology.
            group: The topology's rank of each rank of the plan; None for 0, 1, ….
            weight: Bytes of each rank's chunks relative to the file's chunks, shape (nranks,); None for those of the
                plan's widest chunks.
            made_here: Whether all objects that the plan names are known to exist, as in a plan that was not read.
            cut: As in `memory_of`; None for pipelines of one iteration.

        Raises:
            InputError: The group does not fit, two ranks that communicate have no link, no switch has a switch channel
                of the plan, or the plan names objects that do not exist, stops before its end, or is too large to be
                checked.
        """
        super().__init__(topology, "LL" if plan.packets else "Simple", len(plan.gpus), group)
        # A quotient of the network has no switches.
        has_switches = any(gpu.switches for gpu in plan.gpus)
        if has_switches or not (made_here or are_kept(self.network, plan.translations)):
            plan = whole_plan(plan)
        self.plan = plan
        self._chunks = plan.in_file(max(max(gpu.input_chunks, gpu.output_chunks) for gpu in plan.gpus))
        if not made_here:
            ensure_executable(plan, None, "cannot be timed")
        pipelines = [op for *_, op in plan.ops() if op.name == "pipeline"]
        self.unit_bytes = max((op.unit_bytes for op in pipelines), default=0)
        self.pipeline_chunks = max((op.unit_chunks for op in pipelines), default=0)
        self._weight, self._cut = weight, cut or (1, max(1, self.pipeline_chunks))
        self._of_cut: dict[tuple[int, int], PlanPredictor] = {}
        self._followed: dict[float, tuple[float, Floats, Floats]] = {}  # Runs by message size.
        memory, has_sums = memory_of(plan, None, self._cut), any(op.name == "glres" for *_, op in plan.ops())
        try:
            steps = _PlanSteps(acts_of(memory), _switches(self.network, paced=has_sums))
        except InputError as error:
            raise InputError(f"cannot be timed: {error}") from None
        # Where chunks are unlike, each counts as the widest.
        weight = np.full(len(plan.gpus), float(plan.widest)) if weight is None else weight
        net = self.network
        signal_us = np.tile(net.alpha_us, (3, 1))  # by what they say
        if self._costed.protocol:
            signal_us[_FLAG] = program_network(replace(self._costed, protocol=ANY), self.group).alpha_us
            signal_us[_READY] = 0.0
        if plan.translations:  # A message does to the orbit of a resource what all its images do to the resource.
            net = quotient_network(net, plan.translations)
        most_turns = MOST_TURNS // _SLICES if has_sums else MOST_TURNS  # Sums in switches share their links by slices.
        self._take_steps(steps.timed(net, self._costed, weight, signal_us), FREE_SLOTS, most_turns=most_turns)
        self._hold_us /= memory.units

    @property
    def nsteps(self) -> int:
        """Return the number of operations of all ranks."""
        return self.plan.nops

    @property
    def nthreadblocks(self) -> int:
        """Return the number of threadblocks of all ranks."""
        return sum(len(gpu.blocks) for gpu in self.plan.gpus)

    @property
    def nchannels(self) -> int:
        """Return the largest number of channels, memory and port channels counted, of one rank to another."""
        pairs = Counter((r, p) for r, gpu in enumerate(self.plan.gpus) for peers in gpu.peers.values() for p in peers)
        return max(pairs.values(), default=0)

    @property
    def fifo_depth(self) -> None:
        """Return None, because plans have no FIFO."""
        return None

    def chunk_bytes(self, size_bytes: float) -> float:
        """Return the bytes of one chunk of the file for a message of `size_bytes`, as nccl-tests counts sizes.

        The size is divided by the chunks of the largest buffer, input or output, of any rank.
        """
        return float(size_bytes) / self._chunks

    def in_best_units(
        self, size_bytes: float, score: Callable[[TimedProgram], float], unit: float = 0.0
    ) -> tuple[PlanPredictor, float]:
        """Return the predictor with the bytes an iteration that have the least score, and the chunks that these are.

        Longer iterations are preferred to shorter ones that gain next to nothing: executors need some time for each.
        What is followed of the plan does not depend on its units, and is shared.

        Args:
            size_bytes: Message size in bytes for which iterations are whole chunks, or whole parts of one.
            score: Returns what is to be least.
            unit: The chunks an iteration, if they are known; 0 if they are to be found.
        """
        chunk_bytes, best, best_score, best_unit = self.chunk_bytes(size_bytes), self, math.inf, 0.0
        for parts, width in [(1, unit)] if unit else _growing_cuts(self.pipeline_chunks, _MOST_ITERATIONS):
            unit_bytes = math.ceil(chunk_bytes * width / parts / _ALIGNMENT) * _ALIGNMENT
            if best_unit and unit_bytes < _LEAST_UNIT:
                break
            candidate = copy(self)
            candidate.unit_bytes = unit_bytes
            candidate_score = score(candidate)
            if candidate_score < _GAIN * best_score:
                best, best_score, best_unit = candidate, candidate_score, width / parts
        best.plan = in_units(self.plan, best.unit_bytes)
        return best, best_unit

    def _run(self, size_bytes: float, sizes: int = 0) -> tuple[float, Floats, Floats]:
        """Run the plan at one size, as `TimedProgram._run` does.

        Where not all iterations of its pipelines can be followed, the times of steps are those of fewer, longer ones.
        """
        if not self.unit_bytes:
            return super()._run(size_bytes, sizes)
        iterations = self._units_of(self.chunk_bytes(size_bytes))
        cuts = _growing_cuts(self.pipeline_chunks, self._most_followed)
        counts = [-(-self.pipeline_chunks * parts // chunks) for parts, chunks in cuts]
        end = 1 + next((n for n, count in enumerate(counts) if count >= iterations), len(cuts) - 1)
        time_us, start, took = self._of(cuts[end - 1])._run_followed(size_bytes, sizes)
        if counts[end - 1] != iterations:
            near = range(max(0, end - 3), end - 1)
            timed = [(counts[n], self._of(cuts[n])._run_followed(size_bytes, sizes)[0]) for n in near]
            time_us = _with_iterations([*timed, (counts[end - 1], time_us)], iterations)
            time_us = max(time_us, self._of(cuts[end - 1])._load_us(size_bytes))
        return time_us, start, took

    def _load_us(self, size_bytes: float) -> float:
        """Return a time in µs below which no resource can carry what the plan sends, by its capacity alone."""
        sends, links, steps = self.columns.sends, self._steps.links, self._steps
        link = steps.link[sends[sends >= 0]]
        kilobytes = (self._hold_us[sends >= 0] * self._rate_gbs[link]) * self.chunk_bytes(size_bytes)
        of_link = np.bincount(link, kilobytes * links.holds[link], len(links.alpha_us))
        ptr, resources, capacity_gbs = links.limits
        of_resource = np.bincount(resources, np.repeat(of_link, np.diff(ptr)), len(capacity_gbs))
        busy_us = float((of_resource / capacity_gbs).max(initial=0.0))
        with_data = links.alpha_us[link[kilobytes > 0]]
        return self.network.start_us + float(min(with_data, default=0.0)) + busy_us

    @property
    def _most_followed(self) -> int:
        """Return about how many iterations are followed at most."""
        return max(_LEAST_FOLLOWED, _FOLLOWED_OPS // max(1, self.plan.nops))

    def _units_of(self, chunk_bytes: float) -> int:
        """Return how many iterations the longest pipeline has if chunks have so many bytes, at least 1."""
        if not self.unit_bytes:
            return 1
        return max(1, math.ceil(self.pipeline_chunks * chunk_bytes / self.unit_bytes * (1 - _ROUNDING)))

    def _run_followed(self, size_bytes: float, sizes: int) -> tuple[float, Floats, Floats]:
        """Run the plan at one size with the iterations that `columns` has; the result is kept."""
        if size_bytes not in self._followed:
            self._followed[size_bytes] = super()._run(size_bytes, sizes)
        return self._followed[size_bytes]

    def _of(self, cut: tuple[int, int]) -> PlanPredictor:
        """Return the predictor of the plan whose `columns` have the iterations of `cut`; it is kept."""
        if cut == self._cut:
            return self
        if cut not in self._of_cut:
            self._of_cut[cut] = PlanPredictor(
                self.plan, self.topology, self.group, self._weight, made_here=True, cut=cut
            )
        return self._of_cut[cut]

    @classmethod
    def concurrent_us(
        cls,
        timed: Sequence[PlanPredictor],
        positions: Sequence[Ints],
        chunk_bytes: Sequence[float],
        topology: Topology,
        ranks: Sequence[int],
    ) -> float:
        """Return the time when the last of the plans that begin simultaneously has ended, its data included, in µs.

        All are timed with protocol LL if one of them has it.

        Arguments are those of `TimedProgram.concurrent_us`.

        Raises:
            InputError: Two ranks that communicate have no link, or a plan cannot be executed or timed.
        """
        gpus, weight = [PlanGpu(1, 1, 0, peers={"memory": [], "port": []}) for _ in ranks], np.ones(len(ranks))
        for predictor_of_group, new_ranks, size in zip(timed, positions, chunk_bytes, strict=True):
            for rank, gpu in zip(new_ranks.tolist(), whole_plan(predictor_of_group.plan).gpus, strict=True):
                peers = {kind: new_ranks[ends].tolist() for kind, ends in gpu.peers.items()}
                buffers = [buffer._replace(rank=int(new_ranks[buffer.rank])) for buffer in gpu.buffers]
                gpus[rank], weight[rank] = replace(gpu, peers=peers, buffers=buffers), size
        # Sizes and halves of scratch differ between the plans, but they do not change the time.
        protocol = max(
            (predictor_of_group.plan.protocol for predictor_of_group in timed), key=lambda name: name == "LL"
        )
        plan = ExecutionPlan("concurrent", "concurrent", protocol, False, gpus)
        predictor = cls(plan, topology, ranks, weight)
        iterations = max(each._units_of(size) for each, size in zip(timed, chunk_bytes, strict=True))
        if iterations > 1:
            predictor = predictor._of(
                _growing_cuts(predictor.pipeline_chunks, min(iterations, predictor._most_followed))[-1]
            )
        return predictor._run_followed(predictor._chunks, 0)[0]


class _PlanSteps:
    """The acts of a plan as steps that a `ProgramClock` runs.

    A step waits for one other step, and may send. The threadblocks are the plan's, then one for each port channel, then
    one for each message, whose only step receives it: a wait for the message is a wait for that step. Each message has
    a connection of its own.

    Attributes:
        blocks: Steps of each threadblock, by their numbers.
        rank: Rank of each threadblock.
        dep: Step that each step waits for, `_NONE` for none.
        sends: Message that each step sends, `_NONE` for none.
        receives: Message that each step receives, `_NONE` for none.
        cells: Number of cells that each step moves.
        lane: (source, destination, threadblock) of each message.
        signal: Whether each message is a signal.
        news: What each message says if it is a signal: `_TELLS`, `_FLAG` or `_READY`; `_TELLS` for others.
        hyperlink: Hyperlink of each message that goes through a switch to or from several ranks, −1 for others.
    """

    def __init__(self, plan_acts: Acts, switches: dict[tuple[bool, int, frozenset[int]], int]) -> None:
        """Convert all acts of a plan in one order of execution; `switches` is the result of `_switches`."""
        self.plan_acts, self.switches = plan_acts, switches
        nblocks = len(plan_acts.acts)
        ports = [number for number, end in enumerate(plan_acts.ends) if end.kind == "port"]
        self.port = {end: nblocks + n for n, end in enumerate(ports)}
        self.rank = [*plan_acts.rank, *(plan_acts.ends[end].rank for end in ports)]
        self.blocks: list[list[int]] = [[] for _ in self.rank]
        self.dep: list[int] = []
        self.sends: list[int] = []
        self.receives: list[int] = []
        self.cells: list[float] = []
        self.lane: list[tuple[int, int, int]] = []
        self.signal: list[bool] = []
        self.news: list[int] = []
        self.hyperlink: list[int] = []
        self._signals: list[deque[int]] = [deque() for _ in plan_acts.ends]
        self._releases: list[deque[int]] = [
            deque([_NONE] * initial_value) for _, _, initial_value in plan_acts.semaphores
        ]
        self._waiting: set[int] = set()  # threadblocks that have waited for something
        self._storing: dict[int, int] = {}  # threadblock → an extra threadblock that multicasts its sums
        self._packets: dict[int, int] = {}  # cell → step at which its packet has arrived
        # (rank, other rank) → threadblocks that have moved data there and not signalled since
        self._untold: dict[tuple[int, int], set[int]] = defaultdict(set)
        self._at_barrier: dict[int, list[int]] = defaultdict(list)
        execute_acts(plan_acts, self._add_act)

    def timed(self, net: Network, topology: Topology, weight: Floats, signal_us: Floats) -> TimedSteps:
        """Return the steps, threadblock after threadblock, with the links of their messages.

        Args:
            net: The network.
            topology: The topology under the plan's protocol.
            weight: Bytes of each rank's chunks relative to the plan's chunks, shape (nranks,).
            signal_us: α in µs of a signal on each link of the network by what it says, shape (3, links).

        Raises:
            InputError: Two ranks that communicate have no link.
        """
        order = np.array([step for block in self.blocks for step in block], dtype=np.int64)
        number = np.full(len(order) + 1, _NONE, dtype=np.int64)  # The last entry stands for no step.
        number[order] = np.arange(len(order))
        lengths = np.array([len(block) for block in self.blocks], dtype=np.int64)
        dep, sends, receives = (np.array(x, dtype=np.int64)[order] for x in (self.dep, self.sends, self.receives))
        unused = np.zeros(len(order), dtype=np.int64)
        columns = Columns(
            op=np.where(sends >= 0, OP_CODE["s"], np.where(receives >= 0, OP_CODE["r"], OP_CODE["nop"])),
            block=np.repeat(np.arange(len(lengths), dtype=np.int64), lengths),
            src=unused,
            src_at=unused,
            dst=unused,
            dst_at=unused,
            count=unused,
            dep=number[dep],
            sends=sends,
            receives=receives,
            rank=np.array(self.rank, dtype=np.int64),
            tb=np.arange(len(lengths), dtype=np.int64),
            start=pointers(lengths),
            connections=self.lane,
            sender=[block for _, _, block in self.lane],
            receiver=[],
        )
        ends = np.array(self.lane, dtype=np.int64).reshape(-1, 3)
        link, links = self._links(ends, net, topology, signal_us)
        cells = np.array(self.cells, dtype=np.float64)[order]
        return TimedSteps(columns, cells, ends, link, links, weight)

    def _links(self, ends: Ints, net: Network, topology: Topology, signal_us: Floats) -> tuple[Ints, MessageLinks]:
        """Return the number of the link of each message, shape (messages,), and all links.

        These are the network's links, its hyperlinks, then a link for each pair of ranks that signals, which uses no
        limits. A pair has one for each of the news that it signals. A pair that is linked in one direction only has
        that link's α in both: memory that can be written can also be signalled from.

        Args:
            ends: (source, destination, threadblock) of each message, shape (messages, 3).
            net: The network.
            topology: The topology under the plan's protocol.
            signal_us: α in µs of a signal on each link of the network by what it says, shape (3, links).

        Raises:
            InputError: Two ranks that communicate have no link.
        """
        signal, over = np.array(self.signal, dtype=bool), np.array(self.hyperlink, dtype=np.int64)
        link = np.full(len(ends), _NONE, dtype=np.int64)
        # Each threadblock has one connection for a pair of ranks, for any number of messages.
        plain = ~signal & (over < 0)
        data, pair_number = np.unique(ends[plain], axis=0, return_inverse=True)
        link[plain] = assign_links(net, data, topology)[pair_number.reshape(-1)]
        link[over >= 0] = net.nlinks + over[over >= 0]
        kinds = np.column_stack([ends[signal, :2], np.array(self.news, dtype=np.int64)[signal]])
        pairs, pair_number = np.unique(kinds, axis=0, return_inverse=True)
        pairs, news = pairs[:, :2], pairs[:, 2]
        link[signal] = net.ncarriers + pair_number.reshape(-1)
        linked = np.zeros((net.nranks, net.nranks), dtype=bool)
        linked[net.src, net.dst] = True
        forward = linked[pairs[:, 0], pairs[:, 1]] | ~linked[pairs[:, 1], pairs[:, 0]]
        directed_pairs = np.where(forward[:, None], pairs, pairs[:, ::-1])
        of_pairs = assign_links(net, np.insert(directed_pairs, 2, 0, axis=1), topology)
        carriers, npairs = net.carriers, len(pairs)
        uses_ptr, uses, capacity = net.uses_and_links(hyperlinks=True)
        return link, MessageLinks(
            np.concatenate([carriers.alpha_us, signal_us[news, of_pairs]]),
            np.concatenate([carriers.bandwidth_gbs, net.bandwidth_gbs[of_pairs]]),
            np.append(carriers.holds, np.ones(npairs)),
            np.append(carriers.gap_us, np.zeros(npairs)) if len(net.gap_us) else None,
            (np.append(uses_ptr, np.full(npairs, uses_ptr[-1])), uses, capacity),
        )

    def _add_act(self, block: int, act: Act) -> None:
        """Add the steps of an act, which must come in an order of execution: a wait takes the earliest signal left.

        A nop adds none.
        """
        kind = act.kind
        if kind == "nop":
            return
        if kind == "data":
            self._data(block, act)
        elif kind == "wait":
            for end in act.ids:
                self._add(block, self._signals[end].popleft())
        elif kind == "acquire":
            for number in act.ids:
                self._add(block, self._releases[number].popleft())
        elif kind == "release":
            for number in act.ids:
                self._releases[number].append(self._last(block))
        elif kind == "signal":
            for end in act.ids:
                self._say(block, end)
        elif kind == "barrier":
            self._meet(block, act.ids[0])

    def _meet(self, block: int, barrier: int) -> None:
        """Add to each threadblock at a barrier the waits for the others' earlier steps, once all have arrived.

        Before the last arrival, this only records the threadblock. Afterwards the barrier can be used again.
        """
        arrived = self._at_barrier[barrier]
        arrived.append(block)
        if len(arrived) < self.plan_acts.barriers[barrier][2]:
            return
        last_steps = [self._last(arrived_block) for arrived_block in arrived]
        for n, arrived_block in enumerate(arrived):
            for step in last_steps[:n] + last_steps[n + 1 :]:
                self._add(arrived_block, step)
        arrived.clear()

    def _last(self, block: int) -> int:
        """Return the number of the last step of a threadblock so far, `_NONE` for none."""
        return self.blocks[block][-1] if self.blocks[block] else _NONE

    def _add(self, block: int, dep: int = _NONE, sends: int = _NONE, receives: int = _NONE, cells: float = 0) -> None:
        """Add a step at the end of a threadblock, unless it would neither wait nor send nor receive.

        Args:
            block: The threadblock.
            dep: Step that it waits for, `_NONE` for none.
            sends: Message that it sends, `_NONE` for none.
            receives: Message that it receives, `_NONE` for none.
            cells: Number of cells that it moves.
        """
        if dep == sends == receives == _NONE:
            return
        if dep != _NONE or receives != _NONE:
            self._waiting.add(block)
        self.blocks[block].append(len(self.dep))
        self.dep.append(dep)
        self.sends.append(sends)
        self.receives.append(receives)
        self.cells.append(cells)

    def _new_block(self, rank: int) -> int:
        """Add a threadblock of a rank, and return its number."""
        self.blocks.append([])
        self.rank.append(rank)
        return len(self.blocks) - 1

    def _send(
        self, block: int, source: int, target: int, cells: float, *, signal: bool = False, news: int = _TELLS,
        over: int = _NONE,
    ) -> int:  # fmt: skip
        """Add a message that a threadblock sends; return the step at which it has arrived.

        That step is the only one of a new threadblock of the rank `target`.

        Args:
            block: Threadblock that sends.
            source: Rank from which the data goes.
            target: Rank to which the data goes.
            cells: Number of cells of the message.
            signal: Whether it is a signal.
            news: What it says if it is a signal.
            over: Hyperlink that it goes over, `_NONE` for a link.
        """
        number = len(self.lane)
        self.lane.append((source, target, block))
        self.signal.append(signal)
        self.news.append(news)
        self.hyperlink.append(over)
        self._add(block, sends=number, cells=cells)
        self._add(self._new_block(target), receives=number)
        return len(self.dep) - 1

    def _say(self, block: int, end: int) -> int:
        """Add a signal on a channel end, which a port channel sends itself; without another end nothing is sent.

        Return the step at which it has arrived, `_NONE` for none.

        It is a flag if nothing has moved from its rank to the other since the last signals of the threadblocks that
        moved it, and over a port tells that the rank is ready if `block` has waited for nothing. From now on, the moves
        of `block` to the other rank count as signalled.
        """
        actor = self._hand_over(block, end) if end in self.port else block
        other_end = self.plan_acts.across[end]
        rank, peer = self.plan_acts.ends[end].rank, self.plan_acts.ends[end].peer
        untold = self._untold[rank, peer]
        news = _TELLS if untold else _READY if end in self.port and block not in self._waiting else _FLAG
        untold.discard(block)
        if other_end < 0:
            return _NONE
        step = self._send(actor, rank, peer, 0, signal=True, news=news)
        self._signals[other_end].append(step)
        return step

    def _hand_over(self, block: int, end: int) -> int:
        """Return the threadblock of a port channel, after it got a wait for the last step of the given threadblock."""
        self._add(self.port[end], self._last(block))
        return self.port[end]

    def _data(self, block: int, act: Act) -> None:
        """Add the steps of a data operation: waits for the packets that it reads, then its messages.

        A pws or pwsf also signals, and a pwsf then waits until that has arrived. Moves on port channels are steps of
        the channels.
        """
        if act.flagged:
            cells = {cell for move in act.moves for cell in move.packets_read()}
            for step in sorted({self._packets[cell] for cell in cells}):
                self._add(block, step)
        for n, move in enumerate(act.moves):
            if act.name in IN_SWITCH:
                self._in_switch(block, move)
                continue
            if not act.ports:
                self._move(block, block, move, move.targets)
                continue
            for k, target in enumerate(move.targets):
                self._move(self._hand_over(block, act.ports[n + k]), block, move, (target,))
                if act.name in ("pws", "pwsf"):
                    arrival = self._say(block, act.ports[n + k])
                    if act.name == "pwsf":
                        self._add(block, arrival)

    def _in_switch(self, block: int, move: Move) -> None:
        """Add the messages of a sum and a multicast in the switch, slice by slice.

        The switch multicasts finished slices while it sums further ones. A move with one source is a multicast, in one
        piece.

        Raises:
            InputError: No switch has the hyperlinks that are needed.
        """
        rank = self.plan_acts.rank[block]
        reduction = self._over(rank, move.sources, multicasts=False) if len(move.sources) > 1 else _NONE
        multicast = self._over(rank, move.targets, multicasts=True)
        for run in move.targets:
            self._untold[rank, run.rank].add(block)
        if reduction == _NONE:
            arrival = self._send(block, rank, rank, move.length, over=multicast)
            for run in move.targets:
                self._record_packets(run, move.length, arrival)
            return
        if block not in self._storing:
            self._storing[block] = self._new_block(rank)
        stores = self._storing[block]
        for _ in range(_SLICES):
            summed = self._send(block, rank, rank, move.length / _SLICES, over=reduction)
            self._add(stores, summed)
            self._send(stores, rank, rank, move.length / _SLICES, over=multicast)
        self._add(block, self._last(stores))

    def _over(self, rank: int, runs: Sequence[ActRun], *, multicasts: bool) -> int:
        """Return the hyperlink on which a rank multicasts to the ranks of `runs`, or else reads their sum.

        Raises:
            InputError: No switch has it.
        """
        members = frozenset(run.rank for run in runs)
        if (multicasts, rank, members) not in self.switches:
            word, members_text = "multicasts to" if multicasts else "reduces over", ", ".join(map(str, sorted(members)))
            raise InputError(f"no switch of the topology {word} ranks {members_text}, and no others, for rank {rank}")
        return self.switches[multicasts, rank, members]

    def _move(self, actor: int, block: int, move: Move, targets: Sequence[ActRun]) -> None:
        """Add the messages of a move, and record when its packets have arrived.

        Args:
            actor: Threadblock that executes the move; its own or that of a port channel.
            block: Threadblock of the operation, which has to signal the move.
            move: The move.
            targets: The targets of the move that are written here.
        """
        rank = self.plan_acts.rank[block]
        for run in move.sources:
            if run.rank != rank:
                self._add(actor, self._send(actor, run.rank, rank, move.length))
        for run in targets:
            arrival = self._last(actor)
            if run.rank != rank:
                self._untold[rank, run.rank].add(block)
                arrival = self._send(actor, rank, run.rank, move.length)
            self._record_packets(run, move.length, arrival)

    def _record_packets(self, run: ActRun, length: int, arrival: int) -> None:
        """Record `arrival` as the step at which `length` elements of a run have arrived, if they are packets."""
        if run.packet:
            self._packets.update(dict.fromkeys(run.cells(length), arrival))


def _with_iterations(timed: Sequence[tuple[int, float]], iterations: float) -> float:
    """Return the time in µs of a plan with another number of iterations than it was timed with.

    The time is a + b / n + c · n for n iterations, with b and c of 0 or more: a pipeline is full after a share of 1 / n
    of its time, and each iteration may have a latency of its own. With fewer than three times, the last one is returned
    whatever the number of iterations.

    Args:
        timed: (iterations, time in µs) of ever more iterations, at most three times.
        iterations: The number of iterations.
    """
    if len(timed) < 3:
        return timed[-1][1]
    (n1, first_us), (n2, second_us), (n3, third_us) = timed
    shares, counts = np.array([1 / n1 - 1 / n2, 1 / n2 - 1 / n3]), np.array([n1 - n2, n2 - n3])
    gains_us = np.array([first_us - second_us, second_us - third_us])
    fill_us, each_us = np.linalg.solve(np.column_stack([shares, counts]), gains_us)
    if each_us < 0:
        fill_us, each_us = max(0.0, gains_us[1] / shares[1]), 0.0
    elif fill_us < 0:
        fill_us, each_us = 0.0, max(0.0, gains_us[1] / counts[1])
    return float(third_us - fill_us * (1 / n3 - 1 / iterations) + each_us * (iterations - n3))


def _growing_cuts(chunks: int, most: int) -> list[tuple[int, int]]:
    """Return cuts (`memory_of`) by which a pipeline of so many chunks has ever more iterations, at most about `most`.

    There is one at least, and each has about twice as many as the one before.
    """
    widths = sorted({-(-chunks // (1 << n)) for n in range(chunks.bit_length())} - {1}, reverse=True)
    cuts = [(1, width) for width in widths if chunks / width <= most]
    if chunks <= most or not cuts:
        cuts += [(1 << n, 1) for n in range(max(1, (most // chunks).bit_length()))]
    return cuts


def _switches(net: Network, *, paced: bool) -> dict[tuple[bool, int, frozenset[int]], int]:
    """Return the number of each hyperlink by (whether it multicasts, its single rank, all members).

    These are the paced hyperlinks, as plans that sum in switches need them, or those that are not paced. The result is
    empty if the network has no hyperlinks.
    """
    h = net.hyperlinks
    if h is None:
        return {}
    return {
        (bool(h.multicast[i]), int(h.hub[i]), frozenset(h.members(i).tolist())): i
        for i in np.flatnonzero(h.paced == paced).tolist()
    }
