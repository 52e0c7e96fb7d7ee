"""Reading of MSCCL XML in all dialects as the executors' readers take it, with what they ignore as remarks."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from emit.findings import Finding, Findings
from emit.msccl.lexing import Tag, tags
from emit.msccl.waits import ended_waits
from emit.program import BUFFERS, FIFO_DEPTH, OPS, READS_DST, READS_SRC, WRITES_DST, Gpu, Program, Step, ThreadBlock
from emit.targets import BLOCK_SIZES, TARGETS
from synth.model.deadline import checking_deadline
from synth.model.text import format_size
from topologies.errors import InputError, right_name
from topologies.text.files import origin_of, read_bytes

MAX_BYTES = 64 << 20
MAX_RANKS = 4096
MAX_CHUNKS = 1 << 20  # chunks of one buffer; readers take offsets to 32767
NO_LIMIT = 1 << 50  # bytes; stands for no limit where readers take maxBytes 0 as never, as no buffer is a pebibyte
LEFT_OUT_MAX = 1 << 27  # bytes; exclusive maxBytes that the only reader assumes which does not require it
DEVICE_BYTES = 1 << 40  # bytes; more than the memory of any device
UNNAMED = "unnamed"  # name of a program whose file states none

# Names of collectives in files, and synth's names.
COLLECTIVES = {
    name: name.replace("_", "")
    for name in (
        "allreduce", "allgather", "reduce", "broadcast", "alltoall", "reducescatter", "reduce_scatter", "gather",
        "scatter", "send", "recv", "alltoallv", "custom",
    )
}  # fmt: skip
REDOPS = ("sum", "prod", "max", "min")

# Attributes of each element that all readers require, then further ones that some know.
_ATTRIBUTES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "algo": (
        ("proto", "nchannels", "nchunksperloop", "ngpus", "coll", "inplace"),
        ("name", "outofplace", "minBytes", "maxBytes", "nthreads", "redop"),
    ),
    "gpu": (("id", "i_chunks", "o_chunks", "s_chunks"), ()),
    "tb": (("id", "send", "recv", "chan"), ()),
    "step": (("s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "depid", "deps", "hasdep"), ()),
}
_INSIDE = {None: "algo", "algo": "gpu", "gpu": "tb", "tb": "step"}
_INT = 1 << 31
_STEP_NUMBERS = ("s", "srcoff", "dstoff", "cnt", "depid", "deps", "hasdep")
_INTEGER = re.compile(r"0|-?[1-9][0-9]*")
_LENIENT = re.compile(r"[ \t-\r]*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)?")


@dataclass(frozen=True)
class Reading:
    """A file as executors take it.

    Attributes:
        program: The program.
        remarks: What readers ignore, or read differently than it is spelled.
        refused: Per target, findings on what its reader does not take of the text, or crashes on.
        cautions: Per target, what it takes and its user should know.
    """

    program: Program
    remarks: tuple[str, ...]
    refused: Mapping[str, Sequence[Finding]]
    cautions: Mapping[str, Sequence[str]]


def read_msccl(text_or_path: str | os.PathLike[str]) -> Program:
    """Return the program in a file, or in a text, unchecked.

    A string that is empty or holds a `<` or a newline is a text; anything else is a path.

    Raises:
        InputError: As `read` raises it.
    """
    return read(text_or_path).program


def read(text_or_path: str | os.PathLike[str]) -> Reading:
    """Read a file, or a text (a string that is empty or holds a `<` or a newline); the program is not checked here.

    Attributes that files for the original msccl lack default to outofplace = not inplace, minBytes 0 and maxBytes 0 (no
    limit). In a file that only its reader takes, or that names a reduction, maxBytes is exclusive.

    Raises:
        InputError: At the first thing that no reader takes or that contradicts an earlier one; the message names line
            and attribute.
    """
    if isinstance(text_or_path, str) and ("<" in text_or_path or "\n" in text_or_path or not text_or_path):
        return _MscclReader("text").read(text_or_path.encode(errors="replace"))
    path = Path(text_or_path)
    # Files that no format claims, such as missing ones without a suffix, come here too.
    expected = "an MSCCL XML file" if path.suffix.lower() == ".xml" else "an MSCCL XML (.xml) or a plan (.json)"
    return _MscclReader(origin_of(path)).read(read_bytes(path, expected, MAX_BYTES))


@dataclass(slots=True)
class _MscclReader:
    """A reader of one document; its lists hold what the open elements have gathered so far.

    Attributes:
        source: Name of the document for messages.
        algo: Tag of the <algo> element.
        nchannels: Its number of channels.
        nranks: Its number of ranks.
        gpus: Ranks read so far.
        sizes: Buffer sizes (i, o, s) of the open rank, in chunks.
        blocks: Threadblocks of the open rank.
        steps: Steps of the open threadblock.
        stack: Tags of the open elements.
        numbers: Value of each attribute text that was read as a number.
        remarks: Remarks so far, in order.
        refused: Findings per target.
        cautions: Cautions per target.
    """

    source: str
    algo: Tag | None = None
    nchannels: int = 0
    nranks: int = 0
    gpus: dict[int, Gpu] = field(default_factory=dict)
    sizes: tuple[int, int, int] = (0, 0, 0)
    blocks: dict[int, ThreadBlock] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    stack: list[Tag] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    remarks: dict[str, None] = field(default_factory=dict)
    refused: dict[str, Findings] = field(default_factory=lambda: {name: Findings() for name in _readers()})
    cautions: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in _readers()})

    def read(self, data: bytes) -> Reading:
        """Read a document; raise InputError at the first thing that no executor's reader takes.

        It is to be called once for each object, because what was read stays in the lists.
        """
        if len(data) > MAX_BYTES:
            raise InputError(f"{self.source}: more than {MAX_BYTES} bytes; it must be at most that")
        skipped = 0  # depth of open elements from an ignored one on
        last_line = 1
        for tag in checking_deadline(tags(data, self.source), every=256):
            last_line = tag.line
            if skipped:
                skipped += 0 if tag.alone else -1 if tag.closes else 1
            elif tag.closes:
                if not self.stack or tag.name != self.stack[-1].name:
                    expected = f"</{self.stack[-1].name}>" if self.stack else "at the end of what it opens"
                    self.fail(tag, f"</{tag.name}> stands here; it must be {expected}")
                self.close(self.stack.pop())
            elif self.is_ignored(tag):
                skipped = not tag.alone
            else:
                self.open(tag)
                if tag.alone:
                    self.close(tag)
                else:
                    self.stack.append(tag)
        if self.stack:
            inner = self.stack[-1].name
            raise InputError(f"{self.source} line {last_line}: ends inside <{inner}>; it must be closed by </{inner}>")
        if self.algo is None:
            raise InputError(f"{self.source} line {last_line}: has no <algo>; it must be <algo> … </algo>")
        return self.reading(self.algo)

    def fail(self, tag: Tag, message: str) -> None:
        """Raise InputError with the message, which begins with the source and the line of a tag."""
        raise InputError(f"{self.source} line {tag.line}: {message}")

    def remark(self, tag: Tag, message: str) -> None:
        """Add a remark on what readers ignore, with its line; a message that is there already is not repeated."""
        if not any(text.endswith(f": {message}") for text in self.remarks):
            self.remarks[f"line {tag.line}: {message}"] = None

    def is_ignored(self, tag: Tag) -> bool:
        """Return True if readers skip an element with everything inside it, and add the remark that says so.

        If such an element comes before <algo>, targets whose readers refuse that get a finding.

        Raises:
            InputError: The element is inside <step>.
        """
        parent = self.stack[-1].name if self.stack else None
        if parent == "step":
            self.fail(tag, f"<{tag.name}> inside <step> crashes the readers; a step must be <step …/>")
        if tag.name == _INSIDE[parent] and not (parent is None and self.algo is not None):
            return False
        location = f"inside <{parent}>" if parent else "a second time" if tag.name == "algo" else "at the top"
        self.remark(tag, f"element <{tag.name}> {location} is ignored")
        if parent is None and self.algo is None:
            for target in _readers():
                # These readers look at nothing but the first tag before they load the file.
                if "name" not in TARGETS[target].required:
                    self.refused[target].add(
                        "limit", f"<{tag.name}> comes first; {target}'s reader looks for <algo> there"
                    )
        return True

    def integer(self, tag: Tag, name: str, low: int = -_INT, high: int = _INT - 1) -> int:
        """Return an attribute's number, as C's strtol with base 0 reads it; the tag must have the attribute.

        Another spelling than plain decimal digits adds a remark.

        Raises:
            InputError: The number is not in low..high, both included.
        """
        text = tag.attributes[name]
        value = self.numbers.get(text)
        if value is None:
            value = self.numbers[text] = _number(text)
        if not low <= value <= high:
            self.fail(tag, f"{tag.name} {name} {text!a}; it must be a whole number in {low}..{high}")
        if not _INTEGER.fullmatch(text):
            self.remark(tag, f"{tag.name} {name} {text!a} is read as {value}")
        return value

    def choice(self, tag: Tag, name: str, choices: tuple[str, ...]) -> str:
        """Return an attribute that must be one of some words; the tag must have the attribute.

        Raises:
            InputError: It is none of them.
        """
        text = tag.attributes[name]
        if text not in choices:
            self.fail(tag, f"{tag.name} {name} {text!a}; it must be one of {', '.join(choices)}")
        return text

    def open(self, tag: Tag) -> None:
        """Open an element: check that its attributes are there, remark on ignored ones, and read them; store a step.

        Raises:
            InputError: A required attribute is missing or out of range.
        """
        required, optional = _ATTRIBUTES[tag.name]
        for name in required:
            if name not in tag.attributes:
                explanation = ", which stands behind more attributes than readers keep" if name in tag.ignored else ""
                self.fail(tag, f"<{tag.name}> without {name}{explanation}; it must have it")
        if len(tag.attributes) > len(required) or tag.ignored:
            for name in (*tag.attributes, *tag.ignored):
                if name in tag.ignored or (name not in required and name not in optional):
                    self.remark(tag, f"{tag.name} attribute {name} is ignored")
        if tag.name == "step":
            self.steps.append(self.step(tag))
        elif tag.name == "tb":
            self.steps = []
        elif tag.name == "gpu":
            self.blocks = {}
            i, o, s = (self.integer(tag, f"{buffer}_chunks", 0, MAX_CHUNKS) for buffer in BUFFERS)
            self.sizes = i, o, s
        else:
            self.open_algo(tag)

    def open_algo(self, tag: Tag) -> None:
        """Store the tag <algo> and its numbers of ranks and channels; check its protocol, collective and chunks.

        Raises:
            InputError: An attribute is out of range.
        """
        self.algo = tag
        self.nranks = self.integer(tag, "ngpus", 1, MAX_RANKS)
        self.nchannels = self.integer(tag, "nchannels", 0, _INT - 1)
        self.choice(tag, "proto", tuple(FIFO_DEPTH))
        self.choice(tag, "coll", tuple(COLLECTIVES))
        self.integer(tag, "nchunksperloop", 1, MAX_CHUNKS)

    def step(self, tag: Tag) -> Step:
        """Return the step of a <step> tag; raise InputError if an attribute is out of range.

        Offsets that the instruction does not use become -1 if they are out of range. A nop has count 0 and reports
        nothing. A negative dependency becomes (-1, -1). A number that is not the step's position adds a remark.
        """
        a, numbers = tag.attributes, self.numbers
        values = []
        for name in _STEP_NUMBERS:
            number = numbers.get(a[name])
            if number is None or not -_INT <= number < _INT:
                number = self.integer(tag, name)
            values.append(number)
        s, src_off, dst_off, count, dep_tb, dep_step, has_dep = values
        if s != len(self.steps):
            self.remark(tag, "step s is not its position, which is when a step is executed")
            self.step_number(tag, s)
        op = a["type"]
        if op not in OPS or a["srcbuf"] not in BUFFERS or a["dstbuf"] not in BUFFERS:
            op = self.choice(tag, "type", OPS)
            self.choice(tag, "srcbuf", BUFFERS)
            self.choice(tag, "dstbuf", BUFFERS)
        if op == "nop":  # Readers keep nothing but its dependency.
            count = has_dep = 0
        elif not 0 <= count <= 71 or not 0 <= has_dep <= 1:
            self.integer(tag, "cnt", 0, 71)
            self.integer(tag, "hasdep", 0, 1)
        if not -1 <= src_off <= 32767:
            src_off = self.integer(tag, "srcoff", -1, 32767) if op in READS_SRC else -1
        if not -1 <= dst_off <= 32767:
            dst_off = self.integer(tag, "dstoff", -1, 32767) if op in WRITES_DST | READS_DST else -1
        if dep_tb < 0:
            dep_tb = dep_step = -1
        elif not -1 <= dep_step <= 32767:
            self.integer(tag, "deps", -1, 32767)
        return Step(op, a["srcbuf"], src_off, a["dstbuf"], dst_off, count, dep_tb, dep_step, has_dep == 1)

    def step_number(self, tag: Tag, s: int) -> None:
        """Add a finding of kind "limit" for each target whose reader refuses the number `s` of a step.

        A reader refuses numbers that are negative, or too large for its steps, even if they are not the position.
        """
        for target, findings in self.refused.items():
            most = TARGETS[target].limits.steps_per_tb
            if not 0 <= s < most:
                findings.add("limit", f"line {tag.line}: step s {s}; {target}'s reader takes 0..{most - 1}")

    def close(self, tag: Tag) -> None:
        """Close an element: store its threadblock or its rank; <step> and <algo> need nothing.

        Raises:
            InputError: The threadblock or the rank is wrong: an id that occurs twice, a peer or a channel that does not
                exist.
        """
        if tag.name == "tb":
            number = self.integer(tag, "id", 0, 1 << 20)
            if number in self.blocks:
                self.fail(tag, f"tb id {number} twice; it must be once in a gpu")
            peers = [self.integer(tag, side, -1, self.nranks - 1) for side in ("send", "recv")]
            channel = self.integer(tag, "chan", 0)
            if peers != [-1, -1] and channel >= self.nchannels:
                self.fail(
                    tag, f"tb chan {channel}, which is never connected; it must be below nchannels {self.nchannels}"
                )
            self.blocks[number] = ThreadBlock(peers[0], peers[1], channel, self.counted_steps(tag))
        elif tag.name == "gpu":
            self.close_gpu(tag)

    def counted_steps(self, tag: Tag) -> list[Step]:
        """Return the steps of the open threadblock without the nops that readers drop; these do not count as positions.

        Readers drop nops without a dependency, and all nops at the end. Each of these two adds a remark.
        """
        steps = [step for step in self.steps if step.op != "nop" or step.dep_tb >= 0]
        if len(steps) < len(self.steps):
            self.remark(tag, "a nop without a dependency is ignored, and not counted")
            self.step_number(tag, len(self.steps) - 1)
        if steps and steps[-1].op == "nop":
            self.remark(tag, "a nop at the end of a tb is ignored")
            while steps and steps[-1].op == "nop":
                steps.pop()
        return steps

    def close_gpu(self, tag: Tag) -> None:
        """Store the open rank, where each dependency names the step whose completion ends the wait (`ended_waits`).

        That is the first step with hasdep 1 from the named one on. A dependency that changes so adds a remark. A rank
        beyond the last is left out, and adds a remark.

        Raises:
            InputError: The rank occurs twice, its threadblocks are not numbered from 0 on, or one has its own rank as a
                peer.
        """
        rank = self.integer(tag, "id")
        if not 0 <= rank < self.nranks:
            self.remark(tag, f"gpu id {rank} is ignored: there are {self.nranks} ranks")
            return
        if rank in self.gpus:
            self.fail(tag, f"gpu id {rank} twice; it must be once")
        for number, block_id in enumerate(sorted(self.blocks)):
            if block_id != number:
                self.fail(tag, f"gpu {rank} has no tb {number} but a tb {block_id}; it must be contiguous from 0")
        for number, block in self.blocks.items():
            if rank in (block.send, block.recv):
                self.fail(tag, f"gpu {rank} tb {number} has itself as peer; it must be another rank or -1")
        blocks = [self.blocks[x] for x in sorted(self.blocks)]
        ended = ended_waits(blocks)
        if ended != blocks:
            self.remark(tag, "a wait for a step with hasdep 0 ends with the next step of hasdep 1")
        self.gpus[rank] = Gpu(*self.sizes, ended)

    def reading(self, tag: Tag) -> Reading:
        """Return the result of the whole document, given the tag <algo>.

        A missing name becomes UNNAMED, an unknown reduction sum, and a file that serves no form one out of place.

        Raises:
            InputError: A rank is missing, or an attribute of <algo> is wrong.
        """
        a = tag.attributes
        for rank in sorted(set(range(self.nranks)) - set(self.gpus)):
            hint = f" ({next(iter(self.remarks))})" if self.remarks else ""
            missing = f"{len(self.gpus)} gpus, none of id {rank}{hint}"
            self.fail(tag, f"algo ngpus {self.nranks} with {missing}; the numbers must be equal")
        inplace = self.integer(tag, "inplace") != 0
        outofplace = self.integer(tag, "outofplace") != 0 if "outofplace" in a else not inplace
        redop = a.get("redop", "sum")
        if redop not in REDOPS:
            self.remark(tag, f"algo redop {redop!a} is ignored")
            redop = "sum"
        low, high = self.sizes_served(tag, inplace, outofplace)
        blocks = self.nranks if COLLECTIVES[a["coll"]] in BLOCK_SIZES else 1
        program = Program(
            name=a.get("name") or UNNAMED,
            collective=COLLECTIVES[a["coll"]],
            protocol=a["proto"],
            nranks=self.nranks,
            nchunks_per_loop=self.integer(tag, "nchunksperloop"),
            inplace=inplace,
            outofplace=outofplace or not inplace,
            gpus=[self.gpus[r] for r in range(self.nranks)],
            min_bytes=low * blocks,
            max_bytes=high * blocks,
            redop=redop,
        )
        if self.nchannels > program.nchannels:
            self.remark(tag, f"algo nchannels {self.nchannels}: {program.nchannels} are used")
        for target, findings in self.refused.items():
            most = TARGETS[target].limits.channels
            if self.nchannels > most:
                findings.add("limit", f"nchannels {self.nchannels}; {target} takes at most {most}")
        refused = {target: findings.reported for target, findings in self.refused.items()}
        return Reading(program, tuple(self.remarks), refused, self.cautions)

    def sizes_served(self, tag: Tag, inplace: bool, outofplace: bool) -> tuple[int, int]:
        """Return (smallest, largest) message in bytes as the file counts them, both inclusive, largest 0 for no limit.

        Add what each reader refuses in the tag, and cautions.

        Raises:
            InputError: The sizes exceed 64 bits, or the largest is negative, or below the smallest and not 0.
        """
        a = tag.attributes
        low, high = (self.integer(tag, x, -_MOST - 1, _MOST) if x in a else 0 for x in ("minBytes", "maxBytes"))
        for target, findings in self.refused.items():
            row = TARGETS[target]
            for name in row.required:
                if name not in a:
                    findings.add("limit", f"algo without {name}; {target}'s reader must have it")
            if a["coll"] not in row.collectives.values():
                right = right_name(a["coll"], sorted(row.collectives.values()))
                findings.add("limit", f"algo coll {a['coll']} is not known to {target}; {right}")
            if not row.max_bytes_exclusive:
                if not (inplace or outofplace):
                    self.cautions[target].append("serves no call with it: inplace 0 and outofplace 0")
                continue
            most = high if "maxBytes" in a else LEFT_OUT_MAX
            if low > most or low < 0 or most < 0:
                findings.add("limit", f"algo minBytes {low} and maxBytes {most}; {target} takes 0 <= min <= max")
            elif low == most:
                self.cautions[target].append(f"serves no size: maxBytes {most} is exclusive")
            elif "maxBytes" not in a:
                self.cautions[target].append(f"serves sizes below {format_size(most)} only: there is no maxBytes")
            if "nthreads" in a and self.integer(tag, "nthreads") % 32:
                findings.add("limit", f"algo nthreads {a['nthreads']}; {target} takes a multiple of 32")
            self.report_scratch(tag, target, most)
            if len(a.get("name", "").encode()) > row.longest_name:
                self.cautions[target].append(f"keeps the first {row.longest_name} bytes of the name")
        is_exclusive = "redop" in a or all(
            self.refused[target].reported for target in self.refused if not TARGETS[target].max_bytes_exclusive
        )
        if high < 0 or 0 < high < low:
            self.fail(tag, f"algo minBytes {low} and maxBytes {high}; it must be min <= max, or maxBytes 0")
        if is_exclusive:
            high = 0 if high >= NO_LIMIT else max(high - 1, 0)
        return max(low, 0), high if not 0 < high < low else low

    def report_scratch(self, tag: Tag, target: str, most: int) -> None:
        """Add a caution or a finding on the scratch that a reader allocates in advance for the largest message.

        It is a finding if no device has so much memory, and nothing if it is none.

        Args:
            tag: Tag <algo>.
            target: The reader's target.
            most: Largest message in bytes, as the file counts it.
        """
        chunks = max(gpu.s_chunks for gpu in self.gpus.values())
        scratch_bytes = max(most, 0) * chunks // self.integer(tag, "nchunksperloop")
        if scratch_bytes > DEVICE_BYTES:
            message = (
                f"maxBytes {most} with s_chunks {chunks}: {target} allocates {format_size(scratch_bytes)} of scratch"
            )
            self.refused[target].add("limit", f"{message} at the communicator's start, more than any device has")
        elif scratch_bytes:
            self.cautions[target].append(
                f"allocates {format_size(scratch_bytes)} of scratch a rank at the communicator's start"
            )


_MOST = (1 << 63) - 1


def _readers() -> list[str]:
    """Return the names of the targets whose readers take such files."""
    return [target.name for target in TARGETS.values() if target.format == "msccl"]


def _number(text: str) -> int:
    """Return a text as C's strtol with base 0 reads it: the number it begins with, or 0 if it begins with none."""
    sign, digits = _LENIENT.match(text).groups()  # type: ignore[union-attr]  # The pattern matches the empty text.
    if not digits:
        return 0
    value = int(digits, 16) if digits[:2] in ("0x", "0X") else int(digits, 8) if digits[0] == "0" else int(digits)
    return -value if sign == "-" else value
