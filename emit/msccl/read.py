"""MSCCL XML, all three dialects, into a Program."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from xml.parsers import expat

from emit.program import BUFFERS, FIFO_DEPTH, OPS, Gpu, Program, Step, ThreadBlock
from emit.targets import BLOCK_SIZES
from topologies.errors import InputError
from topologies.text.files import origin_of, read_bytes

MAX_BYTES = 64 << 20
MAX_VALUE = 255  # bytes of an attribute's value
MAX_ATTRIBUTES = 16
MAX_RANKS = 4096
MAX_CHUNKS = 1 << 20  # of one buffer; readers take offsets to 32767

# The names of the readers, and synth's own.
_COLLECTIVES = {
    name: name.replace("_", "")
    for name in (
        "allreduce", "allgather", "reduce", "broadcast", "alltoall", "reducescatter", "reduce_scatter", "gather",
        "scatter", "send", "recv", "alltoallv", "custom",
    )
}  # fmt: skip
REDOPS = ("sum", "prod", "max", "min")

# Required attributes of each element, then those that some readers know.
_ATTRIBUTES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "algo": (
        ("name", "proto", "nchannels", "nchunksperloop", "ngpus", "coll", "inplace"),
        ("outofplace", "minBytes", "maxBytes", "nthreads", "redop"),
    ),
    "gpu": (("id", "i_chunks", "o_chunks", "s_chunks"), ()),
    "tb": (("id", "send", "recv", "chan"), ()),
    "step": (("s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "depid", "deps", "hasdep"), ()),
}
_INSIDE = {"algo": None, "gpu": "algo", "tb": "gpu", "step": "tb"}
_STEP_RANGES = (
    ("s", 0, 1 << 20),
    ("srcoff", -1, 32767),
    ("dstoff", -1, 32767),
    ("cnt", 0, 71),
    ("depid", -1, 1023),
    ("deps", -1, 1023),
    ("hasdep", 0, 1),
)
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")

# The subset of XML that MSCCL's readers take: elements with attributes in double quotes, and comments. Nothing that
# makes XML dangerous (declarations, entities) gets as far as the parser.
_SUBSET = re.compile(
    rb"(?:[ \r\n]++|<!--(?s:.*?)-->|</[A-Za-z]{1,64}>"
    rb'|<[A-Za-z]{1,64}(?: ++[A-Za-z_]{1,64}="[^"<&\t\r\n]{0,%d}+"){0,%d}+ *+/?>)*+' % (MAX_VALUE, MAX_ATTRIBUTES)
)
_COMMENT = re.compile(rb"<!--((?s:.*?))-->")
_NO_XML_COMMENT = re.compile(rb"<!--(?:[^-]|-(?!-))*+--(?!>)")  # with -- inside, which MSCCL's readers take
_ATTRIBUTE = re.compile(rb' +([A-Za-z_]+)="([^"]*)"')


class _Tag(NamedTuple):
    """An element as it opens; line: counted from 1."""

    name: str
    attributes: dict[str, str]
    line: int


def read_msccl(text_or_path: str | os.PathLike[str]) -> Program:
    """Read a file, or a text that holds a `<`; the program is not checked here.

    What files for the original msccl lack is outofplace = not inplace, minBytes 0, maxBytes 0 (no limit). Raises
    InputError with line and attribute at the first thing no reader would take or that contradicts what came before.
    """
    if isinstance(text_or_path, str) and ("<" in text_or_path or "\n" in text_or_path or not text_or_path):
        try:
            return _Reader("text").read(text_or_path.encode())
        except UnicodeEncodeError:
            raise InputError("text: not encodable as UTF-8; it must be ASCII") from None
    path = Path(text_or_path)
    return _Reader(origin_of(path)).read(read_bytes(path, "an MSCCL XML file", MAX_BYTES))


@dataclass(slots=True)
class _Reader:
    """Reads one document; the lists hold what the open elements have gathered so far."""

    source: str
    algo: _Tag | None = None
    nchannels: int = 0
    nranks: int = 0
    used_channels: int = 0
    gpus: dict[int, Gpu] = field(default_factory=dict)
    sizes: tuple[int, int, int] = (0, 0, 0)
    blocks: dict[int, ThreadBlock] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    stack: list[_Tag] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)  # those that step's attributes spelled

    def read(self, data: bytes) -> Program:
        if len(data) > MAX_BYTES:
            raise InputError(f"{self.source}: more than {MAX_BYTES} bytes; it must be at most that")
        end = _SUBSET.match(data).end()  # type: ignore[union-attr]  # it matches the empty text
        if end < len(data):
            line = 1 + data.count(b"\n", 0, end)
            raise InputError(f"{self.source} line {line}: {_why(data, end)}")
        document = _without_dashes(data) if _NO_XML_COMMENT.search(data) else data
        parser = expat.ParserCreate("utf-8")
        parser.StartElementHandler = lambda name, attributes: self.open(
            _Tag(name, attributes, parser.CurrentLineNumber)
        )
        parser.EndElementHandler = lambda _: self.close(self.stack.pop())
        try:
            parser.Parse(document, True)
        except expat.ExpatError as error:
            where = f"{self.source} line {error.lineno}"
            inner = f"</{self.stack[-1].name}>" if self.stack else "<algo> … </algo>, once"
            raise InputError(f"{where}: {expat.ErrorString(error.code)}; it must be {inner}") from None
        assert self.algo is not None  # an XML document has a root, which `open` has seen
        return self.program(self.algo)

    def fail(self, tag: _Tag, message: str) -> None:
        raise InputError(f"{self.source} line {tag.line}: {message}")

    def integer(self, tag: _Tag, name: str, low: int, high: int) -> int:
        text = tag.attributes[name]
        if not _INTEGER.fullmatch(text) or not low <= int(text) <= high:
            self.fail(tag, f"{tag.name} {name} {text!a}; it must be a whole number in {low}..{high}")
        return int(text)

    def choice(self, tag: _Tag, name: str, choices: tuple[str, ...]) -> str:
        text = tag.attributes[name]
        if text not in choices:
            self.fail(tag, f"{tag.name} {name} {text!a}; it must be one of {', '.join(choices)}")
        return text

    def open(self, tag: _Tag) -> None:
        if tag.name not in _ATTRIBUTES:
            self.fail(tag, f"element <{tag.name}>; it must be one of {', '.join(_ATTRIBUTES)}")
        parent = self.stack[-1].name if self.stack else None
        if parent != _INSIDE[tag.name]:
            where = f"inside <{parent}>" if parent else "at the top"
            right = f"inside <{_INSIDE[tag.name]}>" if _INSIDE[tag.name] else "once, at the top"
            self.fail(tag, f"<{tag.name}> {where}; it must be {right}")
        required, known = _ATTRIBUTES[tag.name]
        for name in required:
            if name not in tag.attributes:
                self.fail(tag, f"<{tag.name}> without {name}; it must have it")
        if len(tag.attributes) > len(required):
            for name in tag.attributes:
                if name not in required and name not in known:
                    names = ", ".join(required + known)
                    self.fail(tag, f"<{tag.name}> with unknown attribute {name}; it must be one of {names}")
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
        self.stack.append(tag)

    def open_algo(self, tag: _Tag) -> None:
        self.nranks = self.integer(tag, "ngpus", 1, MAX_RANKS)
        self.nchannels = self.integer(tag, "nchannels", 1, 1024)
        self.choice(tag, "proto", tuple(FIFO_DEPTH))
        self.choice(tag, "coll", tuple(_COLLECTIVES))
        self.integer(tag, "nchunksperloop", 1, MAX_CHUNKS)
        inplace = self.integer(tag, "inplace", 0, 1)
        left_out = {"outofplace": str(1 - inplace), "minBytes": "0", "maxBytes": "0", "nthreads": "0", "redop": "sum"}
        tag = self.algo = tag._replace(attributes=left_out | tag.attributes)
        if not inplace and not self.integer(tag, "outofplace", 0, 1):
            self.fail(tag, "algo inplace 0 and outofplace 0; it must be 1 in at least one")
        if self.integer(tag, "nthreads", 0, 1024) % 32:
            self.fail(tag, f"algo nthreads {tag.attributes['nthreads']}; it must be a multiple of 32")
        self.choice(tag, "redop", REDOPS)

    def step(self, tag: _Tag) -> Step:
        numbers = self.numbers
        a = tag.attributes
        values = []
        for name, low, high in _STEP_RANGES:
            number = numbers.get(a[name])
            if number is None:
                number = numbers[a[name]] = self.integer(tag, name, low, high)
            elif not low <= number <= high:
                self.integer(tag, name, low, high)
            values.append(number)
        s, src_off, dst_off, count, dep_tb, dep_step, has_dep = values
        if s != len(self.steps):
            self.fail(tag, f"step s {s}; it must be {len(self.steps)}, its position, which is when it is executed")
        op = a["type"]
        if op not in OPS or a["srcbuf"] not in BUFFERS or a["dstbuf"] not in BUFFERS:
            op = self.choice(tag, "type", OPS)
            self.choice(tag, "srcbuf", BUFFERS)
            self.choice(tag, "dstbuf", BUFFERS)
        return Step(op, a["srcbuf"], src_off, a["dstbuf"], dst_off, count, dep_tb, dep_step, has_dep == 1)

    def close(self, tag: _Tag) -> None:
        if tag.name == "tb":
            number = self.integer(tag, "id", 0, 1 << 20)
            if number in self.blocks:
                self.fail(tag, f"tb id {number} twice; it must be once in a gpu")
            peers = [self.integer(tag, side, -1, self.nranks - 1) for side in ("send", "recv")]
            channel = self.integer(tag, "chan", 0, self.nchannels - 1)
            self.used_channels = max(self.used_channels, channel + 1)
            self.blocks[number] = ThreadBlock(peers[0], peers[1], channel, self.steps)
        elif tag.name == "gpu":
            rank = self.integer(tag, "id", 0, self.nranks - 1)
            if rank in self.gpus:
                self.fail(tag, f"gpu id {rank} twice; it must be once")
            for number, found in enumerate(sorted(self.blocks)):
                if found != number:
                    self.fail(tag, f"gpu {rank} has no tb {number} but a tb {found}; it must be contiguous from 0")
            for number, block in self.blocks.items():
                if rank in (block.send, block.recv):
                    self.fail(tag, f"gpu {rank} tb {number} has itself as peer; it must be another rank or -1")
            self.gpus[rank] = Gpu(*self.sizes, [self.blocks[x] for x in sorted(self.blocks)])

    def program(self, tag: _Tag) -> Program:
        a = tag.attributes
        for rank in sorted(set(range(self.nranks)) - set(self.gpus)):
            self.fail(tag, f"algo ngpus {self.nranks} with {len(self.gpus)} gpus, none of id {rank}; it must be equal")
        used = max(1, self.used_channels)
        if self.nchannels != used:
            self.fail(tag, f"algo nchannels {self.nchannels}; it must be {used}, largest chan + 1")
        low, high = (self.integer(tag, name, 0, (1 << 63) - 1) for name in ("minBytes", "maxBytes"))
        if 0 < high < low:
            self.fail(tag, f"algo minBytes {low} and maxBytes {high}; it must be min <= max, or maxBytes 0")
        collective = _COLLECTIVES[a["coll"]]
        blocks = self.nranks if collective in BLOCK_SIZES else 1
        return Program(
            name=a["name"],
            collective=collective,
            protocol=a["proto"],
            nranks=self.nranks,
            nchunks_per_loop=int(a["nchunksperloop"]),
            inplace=a["inplace"] == "1",
            outofplace=self.integer(tag, "outofplace", 0, 1) == 1,
            gpus=[self.gpus[r] for r in range(self.nranks)],
            min_bytes=low * blocks,
            max_bytes=high * blocks,
            redop=a["redop"],
        )


def _without_dashes(data: bytes) -> bytearray:
    """The document with blanks for the dashes inside its comments."""
    out = bytearray(data)
    for comment in _COMMENT.finditer(data):
        if b"-" in comment[1]:
            out[comment.start(1) : comment.end(1)] = comment[1].replace(b"-", b" ")
    return out


_NOT_TAKEN = "which MSCCL readers do not take"
# What is not of the subset, by how it begins, and what is right instead; the first that fits.
_REFUSED = [
    (re.compile(start, re.DOTALL), what, right)
    for start, what, right in (
        (b"\xef\xbb\xbf", "a byte order mark", "start with <algo"),
        (rb"<!--", "comment without an end", "end with -->"),
        (rb"<\?", f"an XML declaration, {_NOT_TAKEN}", "start with <algo"),
        (rb"<!", "{shown}: declarations and entities are refused", "be <algo, <gpu, <tb or <step"),
        (rb"\t", f"a tab, {_NOT_TAKEN}", "be spaces"),
        (rb"[^<]", "text {shown} outside a tag", "be a tag"),
        (rb"[^>]*+\Z", "tag {shown} without an end", "end with >"),
        (rb"[^>]*?[\r\n]", f"a newline inside tag {{shown}}, {_NOT_TAKEN}", "be without"),
        (rb"[^>]*?\t", f"a tab inside tag {{shown}}, {_NOT_TAKEN}", "be without"),
        (rb"[^>]*?&", f"an entity (&) inside tag {{shown}}, {_NOT_TAKEN}", "be without"),
        (rb"[^>]*?'", "single quotes in tag {shown}", 'be name="value"'),
        (rb"[^>]*?(?: =|= )", "a space beside = in tag {shown}", 'be name="value"'),
    )
]


def _why(data: bytes, at: int) -> str:
    """What MSCCL's readers do not take at this place."""
    start = data[at : at + 8192]
    shown = ascii(start[:20].decode("latin-1"))
    for pattern, what, right in _REFUSED:
        if pattern.match(start):
            return f"{what.format(shown=shown)}; it must {right}"
    pairs = _ATTRIBUTE.findall(start[: start.index(b">")])
    if len(pairs) > MAX_ATTRIBUTES:
        return f"tag {shown} with {len(pairs)} attributes; it must have at most {MAX_ATTRIBUTES}"
    for name, value in pairs:
        if len(value) > MAX_VALUE:
            return f"{name.decode()} of {len(value)} characters; it must be at most {MAX_VALUE}"
    return f'tag {shown} cannot be read; it must be <name attribute="value" ...>'
