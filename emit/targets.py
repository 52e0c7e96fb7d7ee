"""The executors that files are written for: what each can express, where its files stand and how it loads them.

A target needs one row of TARGETS, and a row of `emit.formats.PROGRAM_FORMATS` if its files have a format of their own.
The library's folders, `--target` of every command, the compiler's limits and the checks follow from the row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from emit.findings import Findings
from emit.program import FIFO_DEPTH, FREE_SLOTS, OPS, Program
from synth.model.registry import COLLECTIVE_KINDS, CollectiveKind, find_kind
from synth.search.settings import AUTO, TargetSettings
from topologies.errors import InputError, did_you_mean

if TYPE_CHECKING:  # The command line lists targets before it loads NumPy.
    from synth.model.problem import Problem
    from topologies.topology import Topology

MSCCL_FILES = 4  # files of a list that Microsoft's msccl loads
BLOCK_SIZES = frozenset({"gather", "scatter"})  # whose XML states minBytes and maxBytes of one rank's block
FEWEST_SMS = 60  # SMs of the smallest device among the machines that come with the package
RESERVED_SMS = 8  # SMs that a collective leaves to computing kernels by default
SCRATCH_LIMIT = 1 << 30  # bytes per rank that a reader may allocate before it serves anything, by default
NO_ALGORITHM = "nothing"  # What serves calls that have no file, where no library has an algorithm of its own.
LL_MOST_BYTES = 256 << 10  # message size up to which LL's flags cost less than Simple's barriers


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a reader and its kernel; each number is the largest that they take, unless it says otherwise.

    Attributes:
        name: Name of the target.
        steps_per_tb: Steps of a threadblock.
        tbs_per_gpu: Threadblocks of a rank.
        channels: Channels.
        ops: Instructions that the kernel runs.
        tbs_per_channel: Threadblocks of a channel that send, and as many that receive.
        dep_tb: Largest threadblock id that a step can wait for.
        offset: Largest offset in a buffer, in chunks.
        count: Chunks of an instruction.
        nodes: XML nodes, counted for algo and all gpus, and for one gpu's tbs and steps. With 4096 readers have no room
            to go on.
        node: Name of what `nodes` counts.
        children: Children of an XML element.
        reduce_chain: Steps `re` that the kernel makes one loop of; 0 if it makes none.
        sms: SMs of a device that a rank may use; 0 if not known.
        scratch_bytes: Scratch in bytes that may be allocated at the communicator's start, for the largest message; 0 if
            none is allocated before a call.
        slots: FIFO slots of a connection; None for as many as the protocol has.
    """

    name: str
    steps_per_tb: int
    tbs_per_gpu: int
    channels: int
    ops: frozenset[str] = frozenset(OPS)
    tbs_per_channel: int = 32  # of each direction
    dep_tb: int = 127
    offset: int = 32767  # chunks
    count: int = 71  # chunks
    nodes: int = 4095
    node: str = "XML nodes"
    children: int = 1024
    reduce_chain: int = 16
    sms: int = 0
    scratch_bytes: int = 0
    slots: int | None = None

    def rank_sends(self, nranks: int) -> int:
        """Return the number of sends that a rank can take part in, if all `nranks` ranks have as many; at least 1.

        Each send is an instruction at both of its ends.
        """
        return max(1, (self.nodes - 1 - nranks) // 2)


@dataclass(frozen=True)
class Target:
    """An executor that files are written for.

    Attributes:
        name: Name for `--target`.
        reader: What reads its files.
        load: Environment variables (or the class) that make it load them; the library is in out/.
        state: State of the executor's development, in a few words.
        format: Key of PROGRAM_FORMATS.
        folder: Folder of its files in a library, which holds nothing else.
        suffix: Suffix of its files.
        collectives: Maps each collective that it can do (`Program.collective`) to its spelling in files.
        limits: Limits that a program compiled for it keeps.
        only_outofplace: Collectives that it can do only out of place.
        uncallable: Collectives that it reads but that its library has no function for.
        not_simple_between_nodes: Collectives for which its host and its kernel count the steps of Simple
            differently over a network.
        protocols: Maps each protocol of a program to its spelling in files.
        longest_name: Largest number of characters of an algorithm's name.
        needs_buffers: True if every rank must have an input and an output.
        runs_here: True if a Program can be made of its files, which `synth bench`, `simulate` and the torch.distributed
            back end take.
        required: Attributes of <algo> without which its reader does not take a file, in addition to those that all
            readers require.
        max_bytes_exclusive: True if its reader takes maxBytes as exclusive, and 0 as never.
        whole_custom: True if every rank's input and output of a custom collective must have all chunks of a loop, or
            none.
        states_redop: True if its files name the reduction.
        flags_by_process: True if its LL counts launches by process, so that ranks of several groups must not use LL.
        switch_ops: True if its files can express multicasts and reductions of switches.
        cell_bytes: Every cell of a message must be a multiple of this many bytes; 0 for whole elements of the type.
        capability_from: Compute capability from which NVIDIA's GPUs take this target first; 0 for none.
        gcn: Architectures of AMD's GPUs that take this target first.
        amd: Whether its executor runs on AMD's GPUs only (True) or not on them (False); None: on these and others.
        otherwise: What serves a call that none of its files serves.
        libraries: Libraries (`synth.baselines.vendors.LIBRARIES`) whose own algorithms are among that.
        remarks: What its users must know, one sentence each.
    """

    name: str
    reader: str
    load: str
    state: str
    format: str
    folder: str
    suffix: str
    collectives: Mapping[str, str]
    limits: Limits
    only_outofplace: frozenset[str] = frozenset({"alltoall"})
    uncallable: tuple[str, ...] = ()
    not_simple_between_nodes: frozenset[str] = frozenset({"broadcast", "reduce"})
    protocols: Mapping[str, str] = field(default_factory=lambda: {name: name for name in FIFO_DEPTH})
    longest_name: int = 255
    needs_buffers: bool = False
    runs_here: bool = True
    required: tuple[str, ...] = ()
    max_bytes_exclusive: bool = False
    whole_custom: bool = False
    states_redop: bool = False
    flags_by_process: bool = False
    switch_ops: bool = False
    cell_bytes: int = 0
    capability_from: int = 0
    gcn: tuple[str, ...] = ()
    amd: bool | None = False
    otherwise: str = "NCCL's own algorithm"
    libraries: tuple[str, ...] = ("NCCL",)
    remarks: tuple[str, ...] = ()

    def own_protocols(self, names: Sequence[str]) -> list[str]:
        """Return those of `names` that its executor has under their own name, in the same order.

        A protocol that its files spell as another one is left out.
        """
        return [name for name in names if self.protocols.get(name) == name]

    def is_first_on(self, topology: Topology | None) -> bool:
        """Return True if the devices of a topology take this target before others; False if `topology` is None.

        That follows from the compute capability of NVIDIA's GPUs, or the architecture of AMD's.
        """
        if topology is None:
            return False
        return 0 < self.capability_from <= topology.compute_capability or topology.gcn in self.gcn

    def own_algorithm(self, collective: str) -> str:
        """Return what serves calls of a collective that have no file: its libraries' own algorithm, or NO_ALGORITHM.

        Libraries have none for patterns, and for collectives that they cannot call by name.

        Args:
            collective: Name of the collective or of a pattern.
        """
        kind = COLLECTIVE_KINDS.get(collective)
        is_known = kind is not None and name_in_files(collective, kind) != "custom"
        return self.otherwise if is_known and collective not in self.uncallable else NO_ALGORITHM

    def fallback(self, problem: Problem, calls: str) -> str:
        """Return a clause on what serves calls that have no file, such as "NCCL's own algorithm serves the others".

        Libraries have algorithms of their own for collectives that they can call by name, on GPUs only. Of a topology
        that names no GPUs the devices are unknown.

        Args:
            problem: What the files do.
            calls: The calls as the clause names them, such as "the others".
        """
        name, topology = problem.collective.name, problem.topology
        if self.own_algorithm(name) == NO_ALGORITHM:
            return f"there is no fallback for {calls}"
        own = f"{self.otherwise} serves {calls}"
        is_of_gpus = topology.compute_capability or topology.gcn
        return own if is_of_gpus else f"on GPUs {own}, other devices have no fallback"


def _spelled(*names: str, **spellings: str) -> dict[str, str]:
    """Return a table of spellings: names that stay the same, and keywords for those that are spelt otherwise."""
    return {name: name for name in names} | spellings


_NCCL_NAMES = _spelled(
    "reduce", "broadcast", "allreduce", "reducescatter", "allgather", "send", "recv", "gather", "scatter",
    "alltoall", "alltoallv",
)  # fmt: skip
_NO_END = 1 << 31
# Limits of a program that becomes a plan. The writer splits threadblocks of more than the executor's 64 operations and
# checks the plan against the executor's other limits. 6,912 operations are 64 on each of an A100's 108 SMs.
_MSCCLPP_LIMITS = Limits(
    "mscclpp", 256, 1024, 32, dep_tb=_NO_END, offset=_NO_END, count=_NO_END, nodes=6912, node="operations",
    children=_NO_END, reduce_chain=0, slots=FREE_SLOTS,
)  # fmt: skip
_NCCL_REQUIRED = ("outofplace", "minBytes", "maxBytes")
_ONE_GROUP = (
    "it takes the first file that fits collective, number of ranks, form and size: the folder must hold the files of"
    " one group of one topology, and of one root"
)
_ONE_FORM = "all ranks of a call are in place, or none: each takes a file by its own form, and different files hang"

# Without `--target`, of the targets that can express the question the one that is first on the devices is taken, else
# the first in this order.
TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target(
            name="executor-nccl", reader="msccl-executor-nccl", load="MSCCL_ALGO_DIR=out/msccl",
            state="last commit of 2024", uncallable=("gather", "scatter"),
            remarks=(_ONE_GROUP, _ONE_FORM, "it has no function for gather and scatter: nothing calls such files"),
            format="msccl", folder="msccl", suffix=".xml", collectives=_NCCL_NAMES,
            limits=Limits("executor-nccl", 64, 1024, 32), required=_NCCL_REQUIRED,
        ),
        Target(
            name="rccl", reader="RCCL", load="RCCL_MSCCL_FORCE_ENABLE=1 MSCCL_ALGO_DIR=out/msccl-rccl",
            state="MSCCL removed in 2026; ROCm before that",
            remarks=(
                _ONE_GROUP,
                _ONE_FORM,
                "without RCCL_MSCCL_FORCE_ENABLE=1 it looks at files on two machine models only",
                "only the first communicator that a thread makes sees files",
            ),
            format="msccl", folder="msccl-rccl", suffix=".xml", collectives=_NCCL_NAMES,
            limits=Limits("rccl", 64, 64, 128, frozenset({"s", "r", "cpy", "re", "nop"})),
            gcn=("gfx906", "gfx908", "gfx90a"), amd=True,
            required=_NCCL_REQUIRED, otherwise="RCCL's own algorithm", libraries=("RCCL",),
        ),
        Target(
            name="msccl", reader="Microsoft's msccl", load="NCCL_ALGO=MSCCL,RING,TREE MSCCL_XML_FILES=FILE:FILE",
            state="followed by MSCCL++",
            remarks=(_ONE_FORM, f"it loads only the first {MSCCL_FILES} of MSCCL_XML_FILES"),
            format="msccl", folder="msccl-original", suffix=".xml",
            collectives=_spelled(
                "allreduce", "allgather", "reduce", "broadcast", "alltoall", "custom", reducescatter="reduce_scatter"
            ),
            limits=Limits("msccl", 256, 216, 32, scratch_bytes=SCRATCH_LIMIT), longest_name=63, required=("name",),
            max_bytes_exclusive=True, whole_custom=True, states_redop=True,
        ),
        Target(
            name="mscclpp", reader="MSCCL++'s executor", load="synth.Plans",
            state="maintained",
            remarks=(
                "its shim for NCCL loads plans of four names only, for 16, 32 and 64 ranks on several nodes, which"
                " synth library install writes (0.8: any folder, MSCCLPP_EXECUTION_PLAN_DIR); all other plans are"
                " registered in Python",
                "ranks that are in several groups at a time need plans of protocol Simple (--groups-overlap): the flag"
                " of packets (LL) is one counter a process, and they hang where ranks launched different numbers of"
                " plans",
                _ONE_FORM,
                "a plan of packets (LL) may read old data if one rank starts two plans more than another has started;"
                " our plans prevent that, and of other plans launch only those of which synth verify gives no caution",
                "buffers lie at equal offsets in their allocations on all ranks, with port channels at an allocation's"
                " base; for packets in allocations of one size, or of max_message_size and more",
            ),
            format="mscclpp", folder="mscclpp", suffix=".json",
            collectives=_spelled(
                "allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce", "custom"
            ),
            limits=_MSCCLPP_LIMITS, protocols={"Simple": "Simple", "LL": "LL", "LL128": "Simple"},
            only_outofplace=frozenset(), not_simple_between_nodes=frozenset(),
            needs_buffers=True, flags_by_process=True, switch_ops=True,
            cell_bytes=16, capability_from=80, gcn=("gfx942", "gfx950"), amd=None,
            otherwise="an algorithm of MSCCL++'s or NCCL's own", libraries=("MSCCL++", "NCCL", "RCCL"),
        ),
    )
}  # fmt: skip


USUAL_LIMITS = TARGETS["executor-nccl"].limits


def right_target(name: str, others: Sequence[str] = ()) -> str:
    """Return the end of an error on an unknown target: the right words, and which of them `name` may stand for.

    Args:
        name: The wrong name.
        others: Words that are right too, such as "auto".
    """
    names = [*others, *TARGETS]
    containing = [target for target in TARGETS if name and name in target]
    similar = f"; did you mean {' or '.join(containing)}?" if containing else did_you_mean(name, names, "; ")
    return f"it must be one of {', '.join(names)}{similar}"


def target_named(name: str, others: Sequence[str] = ()) -> Target:
    """Return the target with a name; raise InputError if there is none, which also names the right words `others`."""
    if name not in TARGETS:
        raise InputError(f"target {name[:40]!r}: is not known; {right_target(name, others)}")
    return TARGETS[name]


def only_target_of(suffix: str) -> Target | None:
    """Return the target whose files have a suffix (".xml", in any case); None unless exactly one target has it."""
    rows = [target for target in TARGETS.values() if target.suffix == suffix.lower()]
    return rows[0] if len(rows) == 1 else None


def choose_target(
    collective: str, target_name: str = AUTO, topology: Topology | None = None, suffix: str = ""
) -> Target:
    """Return the target of a name, or for AUTO the first that can do a program's collective.

    Of these, targets whose files have the suffix come first, then those that the topology's devices take before others,
    then those for GPUs of the devices' vendor.

    Args:
        collective: The program's collective.
        target_name: Name of the target, or AUTO.
        topology: The network whose devices count for AUTO, if it is known.
        suffix: Suffix of the file that is to be written; empty if none is preferred.

    Raises:
        InputError: If the name is unknown, the target cannot do the collective, or none can.
    """
    capable = [t for t in TARGETS.values() if collective in t.collectives]
    return _first(_preferred(capable, topology, suffix), target_name, collective)


def name_in_files(collective: str, kind: CollectiveKind) -> str:
    """Return the name of a collective in files without relays: its own if a reader knows it, else "custom"."""
    is_known = kind.by_name and any(collective in target.collectives for target in TARGETS.values())
    return collective if is_known else "custom"


def target_for(problem: Problem, target_name: str = AUTO, suffix: str = "") -> Target:
    """Return the target of a name, or for AUTO the first on the problem's devices that can express the problem.

    With relays, and where no reader names the collective, the problem's algorithms are written as "custom". A target
    that needs all buffers cannot express a collective in which some rank has no input or no output.

    Args:
        problem: The problem.
        target_name: Name of the target, or AUTO.
        suffix: Suffix of the file that is to be written; for AUTO targets whose files have it come first.

    Raises:
        InputError: If the name is unknown, the target cannot express the problem, or none can.
    """
    collective = problem.collective
    name = "custom" if problem.relays else name_in_files(collective.name, collective.kind)
    lacking = collective.kind.blocks_at_root  # Some rank has no input or no output.
    capable = [t for t in TARGETS.values() if name in t.collectives and not (lacking and t.needs_buffers)]
    description, hint = (
        (f"{collective.name} with relays", " or --relay none") if problem.relays else (collective.name, "")
    )
    return _first(_preferred(capable, problem.topology, suffix), target_name, description, hint)


def usual_target(topology: Topology) -> Target | None:
    """Return the first target that the devices of a topology take before others; None if there is none."""
    return next((target for target in TARGETS.values() if target.is_first_on(topology)), None)


def _preferred(targets: Sequence[Target], topology: Topology | None, suffix: str) -> list[Target]:
    """Return targets in the order of preference for a topology and a file's suffix; equals stay in their order.

    Targets whose files have the suffix come first, then those that the devices take before others, then those that run
    on the devices of the topology's vendor.
    """

    def key(target: Target) -> tuple[bool, bool, bool]:
        """Return the key by which a preferred target comes first: False for each preference that it meets."""
        is_amd = topology is not None and bool(topology.gcn)
        return target.suffix != suffix.lower(), not target.is_first_on(topology), target.amd not in (None, is_amd)

    return sorted(targets, key=key)


def _first(capable: Sequence[Target], target_name: str, description: str, hint: str = "") -> Target:
    """Return the target of a name if it is among `capable`, or for AUTO the first of these.

    Args:
        capable: Targets that can do what is asked.
        target_name: Name of the target, or AUTO.
        description: What is asked, for the error.
        hint: Further advice at the end of the error.

    Raises:
        InputError: If the name is unknown or not among `capable`, or `capable` is empty.
    """
    if target_name == AUTO and capable:
        return capable[0]
    if target_name != AUTO and target_named(target_name) in capable:
        return TARGETS[target_name]
    names = " or ".join(target.name for target in capable) or "of another collective"
    raise InputError(f"--target {target_name}: has no name for {description}; use --target {names}{hint}")


def check_overlap(name: str) -> None:
    """Raise InputError unless a target's packets count launches by process; also for AUTO and for unknown names."""
    if name not in TARGETS or not TARGETS[name].flags_by_process:
        names = " or ".join(name for name, target in TARGETS.items() if target.flags_by_process)
        raise InputError(f"--groups-overlap: concerns only the packets of {names}; use it with --target {names}")


def on_devices(target: Target, sms: int, settings: TargetSettings) -> Target:
    """Return the target limited by the settings, and to the threadblocks of a rank that run at once on a device.

    If groups overlap, it loses the protocol LL. A scratch limit counts only if the target has one. Without a number of
    SMs in the settings, RESERVED_SMS of the device's are left free, but at most half of them. If neither the settings
    nor `sms` state a number of SMs, threadblocks are not limited any further.

    Args:
        target: Target to limit.
        sms: SMs of the device; 0 if not known.
        settings: The user's settings; their name is not read.

    Raises:
        InputError: If the settings give a rank no SM, or more SMs than the device has.
    """
    if settings.groups_overlap:
        packetless = {name: spelt for name, spelt in target.protocols.items() if name != "LL"}
        target = replace(target, protocols=packetless)
    if settings.scratch_limit is not None and target.limits.scratch_bytes:
        target = replace(target, limits=replace(target.limits, scratch_bytes=settings.scratch_limit))
    if settings.sms is not None and (settings.sms < 1 or 0 < sms < settings.sms):
        requirement = f"1 to {sms}, the SMs of a device of --topo" if sms else "1 or more"
        raise InputError(f"--sms {settings.sms}: is not possible; it must be {requirement}")
    most = settings.sms or max(sms - RESERVED_SMS, (sms + 1) // 2)
    limits = target.limits
    if not most:
        return target
    return replace(target, limits=replace(limits, sms=most, tbs_per_gpu=min(most, limits.tbs_per_gpu)))


def most_bytes(program: Program, limits: Limits) -> int | None:
    """Return the largest message in bytes for which the reader's scratch is within its limit, rounded down.

    None stands for no limit: the reader allocates no scratch before a call, or the program uses none.
    """
    scratch = max(gpu.s_chunks for gpu in program.gpus)
    if not limits.scratch_bytes or not scratch:
        return None
    return limits.scratch_bytes * program.nchunks_per_loop // scratch


def within_scratch(program: Program, limits: Limits) -> Program:
    """Return the program limited to the sizes whose scratch the reader may allocate; itself if all its sizes are such.

    Raises:
        InputError: If no size that the program serves is such.
    """
    most = most_bytes(program, limits)
    if most is None or 0 < program.max_bytes <= most:
        return program
    if most < max(1, program.min_bytes):
        raise InputError(
            f"{limits.name} allocates scratch at the communicator's start, and messages of {max(1, program.min_bytes)} "
            f"bytes need more than --scratch-limit {limits.scratch_bytes}; give a larger one"
        )
    return replace(program, max_bytes=most)


def check_between_nodes(program: Program, nodes: Sequence[int], target: Target, findings: Findings) -> None:
    """Add a finding if a rank sends to another node with a protocol that the target cannot use there.

    That is Simple with one of the target's `not_simple_between_nodes`. Only the first such send is reported. `nodes`
    holds the node of each rank of the program.
    """
    if program.protocol != "Simple" or program.collective not in target.not_simple_between_nodes:
        return
    for rank, gpu in enumerate(program.gpus):
        for tb, block in enumerate(gpu.threadblocks):
            if block.send >= 0 and nodes[rank] != nodes[block.send]:
                description = f"{program.collective} with Simple over a network, to rank {block.send}"
                findings.add(
                    "hang",
                    f"{description}: host and kernel count its steps differently; the protocol must be LL or LL128",
                    rank,
                    tb,
                )
                return


def check_resident(threadblocks: Sequence[int], sms: int, findings: Findings) -> None:
    """Add a finding if a rank has more threadblocks than run at once on its device (sms 0: not known).

    Threadblocks wait for each other, and one that is not resident never starts, so the kernel hangs. Only the rank with
    most threadblocks is reported. `threadblocks` holds the number of threadblocks of each rank.
    """
    most = max(threadblocks, default=0)
    if 0 < sms < most:
        findings.add("hang", f"has {most} threadblocks on {sms} SMs; all must run at once", threadblocks.index(most))


def divisor(program: Program, target: Target) -> int:
    """Return the number of bytes that must divide a call's message size for it to be served.

    Where the cells are counted in elements, it is for elements of one byte.
    """
    blocks = program.nranks if find_kind(program.collective).blocks_at_root else 1
    return program.file_chunks * blocks * (target.cell_bytes or 1)


def choose_protocol(
    largest_bytes: int | None, target: Target | None = None, collective: str = "", nodes: Sequence[int] = ()
) -> str:
    """Return LL for messages of up to LL_MOST_BYTES, else Simple; always Simple if the target has no LL.

    Between nodes LL is taken at any size if the target cannot do the program's collective with Simple there. LL128 is
    never chosen here: it is right only on links that keep the order of stores, and no topology states which links do.

    Args:
        largest_bytes: Largest message; None if there is no limit.
        target: Executor; None for any.
        collective: The program's collective.
        nodes: Node of each rank; empty if all share one.
    """
    only_ll = target is not None and collective in target.not_simple_between_nodes and len(set(nodes)) > 1
    small = largest_bytes is not None and largest_bytes <= LL_MOST_BYTES
    has_ll = target is None or "LL" in target.protocols
    return "LL" if has_ll and (small or only_ll) else "Simple"
