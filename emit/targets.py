"""The executors that files are written for: what each can say, where its files stand, how it loads them.

One row of TARGETS is all that a target needs, beside a row of `emit.formats.FORMATS` where its files are of a format of
their own: the library's folders, `--target` of every command, the compiler's limits and the checks follow from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from emit.findings import Findings
from emit.program import FIFO_DEPTH, OPS, Program
from synth.model.registry import find_kind
from topologies.errors import InputError

if TYPE_CHECKING:  # the command line lists targets before it loads NumPy
    from synth.model.problem import Problem

AUTO = "auto"  # in place of a target: the first that can express the question
MSCCL_FILES = 4  # of a list that Microsoft's msccl loads
BLOCK_SIZES = frozenset({"gather", "scatter"})  # minBytes and maxBytes of whose XML are one rank's block's
FEWEST_SMS = 60  # of a device of the machines that come with the package
RESERVED_SMS = 8  # of a device, which a collective leaves to the kernels that compute, unless told how many to use
SCRATCH_LIMIT = 1 << 30  # bytes a rank, that a reader may allocate before it serves anything, unless told otherwise
LL_MOST_BYTES = 256 << 10  # of a message: up to here LL's flags cost less than Simple's barriers


@dataclass(frozen=True, slots=True)
class Limits:
    """What a reader and its kernel take at most; `name`: whose they are, `ops`: the instructions that it runs."""

    name: str
    steps_per_tb: int
    tbs_per_gpu: int
    channels: int
    ops: frozenset[str] = frozenset(OPS)
    tbs_per_channel: int = 32  # that send, and as many that receive
    dep_tb: int = 127
    offset: int = 32767  # chunks of a buffer
    count: int = 71  # chunks of an instruction
    nodes: int = 4095  # of XML: algo, all gpus, and one gpu's tbs and steps; with 4096 readers have no room to go on
    node: str = "XML nodes"  # what these are
    children: int = 1024  # of an XML element
    reduce_chain: int = 16  # re steps that the kernel makes one loop of; 0: it makes none
    sms: int = 0  # of a device, that a rank may use; 0: not known
    scratch_bytes: int = 0  # allocated at the communicator's start for the largest message; 0: none is before a call

    def rank_sends(self, nranks: int) -> int:
        """Sends in which a rank can take part, all ranks alike: each is an instruction at both ends."""
        return max(1, (self.nodes - 1 - nranks) // 2)


@dataclass(frozen=True)
class Target:
    """One executor.

    name: as `--target` has it.  reader: who reads its files.  load: the variables that tell it of them; the library is
    in out.
    state: of that executor's development, in a few words.  remarks: what its users must know, a sentence each.
    format: key of FORMATS.  folder, suffix: in a library its files are FOLDER/NAME + SUFFIX, and nothing else is there.
    collectives: those it can do (`Program.collective`) → as its files spell them.
    limits: that a program compiled for it keeps.
    only_outofplace: collectives that it has in that form alone.
    uncallable: collectives that it reads and that its library has no function for.
    only_ll_between_nodes: collectives whose Simple its host and its kernel count in different steps over a network.
    switch_ops: its files can say multicasts and reductions of switches.
    cell_bytes: of which every cell of a message must be a multiple; 0: whole elements of the type.
    otherwise: what serves a call that none of its files does.
    protocols: of a program → as its files spell them.
    longest_name: characters of an algorithm's name.
    needs_buffers: every rank must have an input and an output.
    runs_here: of its files a Program can be had, which `synth bench`, `simulate` and torch.distributed's back end take.
    required: attributes of <algo> without which its reader does not take a file, beside those that all require.
    max_bytes_exclusive: its reader takes maxBytes as exclusive and 0 as never.
    whole_custom: of a custom collective every rank's input and output have all chunks of a loop, or none.
    states_redop: its files name the reduction.
    flags_by_process: its LL counts launches by process: ranks of several groups must not use it.
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
    only_ll_between_nodes: frozenset[str] = frozenset({"broadcast", "reduce"})
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
    otherwise: str = "NCCL's own algorithm"
    remarks: tuple[str, ...] = ()


def _spelled(*names: str, **others: str) -> dict[str, str]:
    return {name: name for name in names} | others


_NCCL_NAMES = _spelled(
    "reduce", "broadcast", "allreduce", "reducescatter", "allgather", "send", "recv", "gather", "scatter",
    "alltoall", "alltoallv",
)  # fmt: skip
_NO_END = 1 << 31
# Of a program that is to become a plan: the writer cuts threadblocks of more than the executor's 64 operations, and
# holds the plan against what else it takes. There is no XML; 6,912 operations are 64 on each of an A100's 108 SMs.
_MSCCLPP_LIMITS = Limits(
    "mscclpp", 256, 1024, 32, dep_tb=_NO_END, offset=_NO_END, count=_NO_END, nodes=6912, node="operations",
    children=_NO_END, reduce_chain=0,
)  # fmt: skip
_NCCL_REQUIRED = ("outofplace", "minBytes", "maxBytes")
_ONE_GROUP = (
    "it takes the first file that fits collective, number of ranks, form and size: the folder must hold the files of"
    " one group of one topology, and of one root"
)
_ONE_FORM = "all ranks of a call are in place, or none: each takes a file by its own form, and different files hang"

# In the order of preference: without `--target` the first that can express the question is taken.
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
            required=_NCCL_REQUIRED, otherwise="RCCL's own algorithm",
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
            name="mscclpp", reader="MSCCL++'s executor", load="runtime.mscclpp.Plans",
            state="maintained",
            remarks=(
                "from 0.9 on it loads no folder (0.8 has MSCCLPP_EXECUTION_PLAN_DIR): plans are registered in Python",
                "ranks that are in several groups at a time need plans of protocol Simple (--groups-overlap): the flag"
                " of packets (LL) is one counter a process, and they hang where ranks launched different numbers of"
                " plans",
                _ONE_FORM,
                "no rank may be two launches ahead of another where plans of packets are used: between them launch only"
                " plans whose ranks hear of each other, as ours do (synth verify says of which that is not so)",
                "buffers lie at equal offsets in their allocations on all ranks, with port channels at an allocation's"
                " base; for packets in allocations of one size, or of max_message_size and more",
            ),
            format="mscclpp", folder="mscclpp", suffix=".json",
            collectives=_spelled(
                "allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce", "custom"
            ),
            limits=_MSCCLPP_LIMITS, protocols={"Simple": "Simple", "LL": "LL", "LL128": "Simple"},
            only_outofplace=frozenset(), only_ll_between_nodes=frozenset(),
            needs_buffers=True, flags_by_process=True, switch_ops=True,
            cell_bytes=16, otherwise="an algorithm of MSCCL++'s or NCCL's own",
        ),
    )
}  # fmt: skip


def target_named(name: str) -> Target:
    """The row of a name; InputError where there is none."""
    if name not in TARGETS:
        raise InputError(f"target {name!r}: is not known; it must be one of {', '.join(TARGETS)}")
    return TARGETS[name]


def only_target_of(suffix: str) -> Target | None:
    """The target that alone writes files of a suffix."""
    rows = [target for target in TARGETS.values() if target.suffix == suffix.lower()]
    return rows[0] if len(rows) == 1 else None


def choose_target(collective: str, asked: str = AUTO) -> Target:
    """The target asked for, or the first that names a program's collective. Raises InputError where there is none."""
    return _first([t for t in TARGETS.values() if collective in t.collectives], asked, collective)


def target_for(problem: Problem, asked: str = AUTO) -> Target:
    """The target to write a problem's algorithms for: the one asked for, or the first that can express it.

    With relays, and where no reader names the collective, it is written as "custom". Raises InputError where the one
    asked for cannot, or none can.
    """
    collective = problem.collective
    known = {name for target in TARGETS.values() for name in target.collectives}
    by_name = collective.name in known and collective.kind.by_name
    name = collective.name if by_name and not problem.relays else "custom"
    lacking = collective.kind.blocks_at_root  # some rank has no input or no output
    able = [t for t in TARGETS.values() if name in t.collectives and not (lacking and t.needs_buffers)]
    what, hint = (f"{collective.name} with relays", " or --relay none") if problem.relays else (collective.name, "")
    return _first(able, asked, what, hint)


def _first(able: Sequence[Target], asked: str, what: str, hint: str = "") -> Target:
    """The one asked for, if it is `able`, or the first of these."""
    if asked == AUTO and able:
        return able[0]
    if asked != AUTO and target_named(asked) in able:
        return TARGETS[asked]
    names = " or ".join(target.name for target in able) or "of another collective"
    raise InputError(f"--target {asked}: has no name for {what}; use --target {names}{hint}")


def check_overlap(name: str) -> None:
    """Raise InputError for the name of a target whose packets do not count launches by process."""
    if name not in TARGETS or not TARGETS[name].flags_by_process:
        names = " or ".join(name for name, one in TARGETS.items() if one.flags_by_process)
        raise InputError(f"--groups-overlap: is about the packets of {names}; it must be with --target {names}")


def without_packets(target: Target) -> Target:
    """The target for ranks that are in several groups at a time: without LL."""
    return replace(target, protocols={name: spelt for name, spelt in target.protocols.items() if name != "LL"})


def on_devices(target: Target, sms: int, asked: int | None = None, scratch_limit: int | None = None) -> Target:
    """The target with a rank's threadblocks limited to what runs at once on a device of `sms` SMs (0: not known).

    asked: how many a rank may use; None: all but RESERVED_SMS. scratch_limit: bytes of scratch a rank that its reader
    may allocate before it serves anything; None: SCRATCH_LIMIT. Raises InputError where `asked` is more than there are.
    """
    if scratch_limit is not None and target.limits.scratch_bytes:
        target = replace(target, limits=replace(target.limits, scratch_bytes=scratch_limit))
    if asked is not None and (asked < 1 or 0 < sms < asked):
        right = f"1 to {sms}, the SMs of a device of --topo" if sms else "1 or more"
        raise InputError(f"--sms {asked}: is not possible; it must be {right}")
    most = asked or max(sms - RESERVED_SMS, (sms + 1) // 2)
    limits = target.limits
    if not most:
        return target
    return replace(target, limits=replace(limits, sms=most, tbs_per_gpu=min(most, limits.tbs_per_gpu)))


def most_bytes(program: Program, limits: Limits) -> int | None:
    """The largest message, in bytes, for which the reader's scratch is within its limit; None: any."""
    scratch = max(gpu.s_chunks for gpu in program.gpus)
    if not limits.scratch_bytes or not scratch:
        return None
    return limits.scratch_bytes * program.nchunks_per_loop // scratch


def within_scratch(program: Program, limits: Limits) -> Program:
    """The program for the sizes for which the reader's scratch is within its limit; InputError where these are none."""
    most = most_bytes(program, limits)
    if most is None or 0 < program.max_bytes <= most:
        return program
    if most < max(1, program.min_bytes):
        raise InputError(
            f"{limits.name} allocates scratch at the communicator's start, for messages of {max(1, program.min_bytes)} "
            f"bytes more than --scratch-limit {limits.scratch_bytes}; give a larger one"
        )
    return replace(program, max_bytes=most)


def check_between_nodes(program: Program, nodes: Sequence[int], target: Target, found: Findings) -> None:
    """Add a finding where a rank sends to one on another node what the target does not do so."""
    if program.protocol != "Simple" or program.collective not in target.only_ll_between_nodes:
        return
    for rank, gpu in enumerate(program.gpus):
        for tb, block in enumerate(gpu.threadblocks):
            if block.send >= 0 and nodes[rank] != nodes[block.send]:
                what = f"{program.collective} with Simple over a network, to rank {block.send}"
                found.add("hang", f"{what}: host and kernel count its steps differently; it must be LL", rank, tb)
                return


def check_resident(threadblocks: Sequence[int], sms: int, found: Findings) -> None:
    """Add a finding where a rank has more threadblocks than run at once on its device (sms 0: not known).

    They wait for each other, and one that is not resident never starts: the kernel hangs.
    """
    most = max(threadblocks, default=0)
    if 0 < sms < most:
        found.add("hang", f"has {most} threadblocks on {sms} SMs; all must run at once", threadblocks.index(most))


def divisor(program: Program, target: Target) -> int:
    """In bytes: a call is served only if this divides its message size; where elements count, those of one byte."""
    blocks = program.nranks if find_kind(program.collective).blocks_at_root else 1
    return program.nchunks_per_loop * blocks * (target.cell_bytes or 1)


def choose_protocol(
    largest_bytes: int | None, target: Target | None = None, collective: str = "", nodes: Sequence[int] = ()
) -> str:
    """LL for messages of up to LL_MOST_BYTES, Simple for the rest; None: there is no largest one.

    Between nodes (those of the ranks) LL at any size where the target does not do a program's collective otherwise.
    LL128 is never chosen here: it is right only on links that keep the order of stores, and no topology says which do.
    """
    only_ll = target is not None and collective in target.only_ll_between_nodes and len(set(nodes)) > 1
    small = largest_bytes is not None and largest_bytes <= LL_MOST_BYTES
    able = target is None or "LL" in target.protocols
    return "LL" if able and (small or only_ll) else "Simple"
