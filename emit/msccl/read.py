"""MSCCL XML, all three dialects, into a Program."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from emit.msccl.xml_tags import MAX_BYTES, Tag, tags
from emit.program import BUFFERS, FIFO_DEPTH, OPS, Gpu, Program, Step, ThreadBlock
from synth.storage.columns import opened, origin_of
from topologies.errors import InputError

MAX_RANKS = 4096
MAX_CHUNKS = 1 << 20  # of one buffer; readers take offsets to 32767

# The names of the readers, and synth's own.
_COLLECTIVES = {
    "allreduce": "allreduce",
    "allgather": "allgather",
    "reduce": "reduce",
    "broadcast": "broadcast",
    "alltoall": "alltoall",
    "reducescatter": "reducescatter",
    "reduce_scatter": "reducescatter",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
    "recv": "recv",
    "alltoallv": "alltoallv",
    "custom": "custom",
}
_REDOPS = ("sum", "prod", "max", "min")

# Required attributes of each element, then those that some readers know.
_ATTRIBUTES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "algo": (
        ("name", "proto", "nchannels", "nchunksperloop", "ngpus", "coll", "inplace"),
        ("outofplace", "minBytes", "maxBytes", "nthreads", "redop"),
    ),
    "gpu": (("id", "i_chunks", "o_chunks", "s_chunks"), ()),
    "tb": (("id", "send", "recv", "chan"), ()),
    "step": (
        ("s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "depid", "deps", "hasdep"),
        (),
    ),
}
_INSIDE = {"algo": None, "gpu": "algo", "tb": "gpu", "step": "tb"}
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")


def read_msccl(text_or_path: str | os.PathLike[str]) -> Program:
    """Read a file, or a text that holds a `<`.

    Attributes that files for the original msccl lack get defaults:
    outofplace = not inplace, minBytes 0, maxBytes 0 (no limit).
    The byte range is kept as given. The program is not checked here.

    Raises InputError with the line and attribute at the first thing no reader would take or that contradicts
    what was read before.
    """
    if isinstance(text_or_path, str) and ("<" in text_or_path or "\n" in text_or_path or not text_or_path):
        if len(text_or_path) > MAX_BYTES:
            raise InputError(f"text: more than {MAX_BYTES} bytes; would be at most that")
        try:
            return _Reader("text").read(text_or_path.encode())
        except UnicodeEncodeError:
            raise InputError("text: not encodable as UTF-8; would be ASCII") from None
    path = Path(text_or_path)
    with opened(path, "an MSCCL XML file") as file:
        try:
            data = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise InputError(f"{origin_of(path)}: cannot be read ({error.strerror or error})") from None
    return _Reader(origin_of(path)).read(data)


@dataclass(slots=True)
class _Reader:
    """Reads one document; the lists hold what the open elements have gathered so far."""

    source: str
    algo: Tag | None = None
    ended: bool = False
    nchannels: int = 0
    nranks: int = 0
    used_channels: int = 0
    gpus: dict[int, Gpu] = field(default_factory=dict)
    sizes: tuple[int, int, int] = (0, 0, 0)
    blocks: dict[int, ThreadBlock] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    stack: list[Tag] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)

    def read(self, data: bytes) -> Program:
        for tag in tags(data, self.source):
            if tag.kind == "close":
                if not self.stack or self.stack[-1].name != tag.name:
                    inner = f"</{self.stack[-1].name}>" if self.stack else "nothing more"
                    self.fail(tag, f"</{tag.name}>; would be {inner}")
                self.close(self.stack.pop())
                continue
            self.open(tag)
            if tag.kind == "empty":
                self.close(tag)
            else:
                self.stack.append(tag)
        if self.stack:
            last = self.stack[-1]
            self.fail(last, f"<{last.name}> is never closed; would end with </{last.name}>")
        if self.algo is None:
            raise InputError(f"{self.source}: no <algo>; would be an MSCCL XML file")
        return self.program(self.algo)

    def fail(self, tag: Tag, message: str) -> None:
        raise InputError(f"{self.source} line {tag.line}: {message}")

    def integer(self, tag: Tag, name: str, low: int, high: int) -> int:
        text = tag.attributes[name]
        if not _INTEGER.fullmatch(text) or not low <= int(text) <= high:
            self.fail(tag, f"{tag.name} {name} {text!a}; would be a whole number in {low}..{high}")
        return int(text)

    def choice(self, tag: Tag, name: str, choices: tuple[str, ...]) -> str:
        text = tag.attributes[name]
        if text not in choices:
            self.fail(tag, f"{tag.name} {name} {text!a}; would be one of {', '.join(choices)}")
        return text

    def open(self, tag: Tag) -> None:
        if tag.name not in _ATTRIBUTES:
            self.fail(tag, f"element <{tag.name}>; would be one of {', '.join(_ATTRIBUTES)}")
        parent = self.stack[-1].name if self.stack else None
        if parent != _INSIDE[tag.name] or self.ended:
            where = f"inside <{parent}>" if parent else "after </algo>" if self.ended else "at the top"
            right = f"inside <{_INSIDE[tag.name]}>" if _INSIDE[tag.name] else "once, at the top"
            self.fail(tag, f"<{tag.name}> {where}; would be {right}")
        required, known = _ATTRIBUTES[tag.name]
        for name in required:
            if name not in tag.attributes:
                self.fail(tag, f"<{tag.name}> without {name}; would have it")
        if len(tag.attributes) > len(required):
            for name in tag.attributes:
                if name not in required and name not in known:
                    told = ", ".join(required + known)
                    self.fail(tag, f"<{tag.name}> with unknown attribute {name}; would be of {told}")
        if tag.name == "step":
            self.steps.append(self.step(tag))
        elif tag.name == "tb":
            self.steps = []
        elif tag.name == "gpu":
            self.blocks = {}
            self.sizes = (
                self.integer(tag, "i_chunks", 0, MAX_CHUNKS),
                self.integer(tag, "o_chunks", 0, MAX_CHUNKS),
                self.integer(tag, "s_chunks", 0, MAX_CHUNKS),
            )
        else:
            self.open_algo(tag)

    def open_algo(self, tag: Tag) -> None:
        self.algo = tag
        self.nranks = self.integer(tag, "ngpus", 1, MAX_RANKS)
        self.nchannels = self.integer(tag, "nchannels", 1, 1024)
        self.choice(tag, "proto", tuple(FIFO_DEPTH))
        self.choice(tag, "coll", tuple(_COLLECTIVES))
        self.integer(tag, "nchunksperloop", 1, MAX_CHUNKS)
        inplace = self.integer(tag, "inplace", 0, 1)
        if "outofplace" in tag.attributes and not inplace and not self.integer(tag, "outofplace", 0, 1):
            self.fail(tag, "algo inplace 0 and outofplace 0; would be 1 in at least one")
        if "nthreads" in tag.attributes and self.integer(tag, "nthreads", 0, 1024) % 32:
            self.fail(tag, f"algo nthreads {tag.attributes['nthreads']}; would be a multiple of 32")
        if "redop" in tag.attributes:
            self.choice(tag, "redop", _REDOPS)

    def step(self, tag: Tag) -> Step:
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
            self.fail(
                tag, f"step s {s}; would be {len(self.steps)}, its position, which is when it is executed"
            )
        op = a["type"]
        if op not in OPS or a["srcbuf"] not in BUFFERS or a["dstbuf"] not in BUFFERS:
            op = self.choice(tag, "type", OPS)
            self.choice(tag, "srcbuf", BUFFERS)
            self.choice(tag, "dstbuf", BUFFERS)
        return Step(op, a["srcbuf"], src_off, a["dstbuf"], dst_off, count, dep_tb, dep_step, has_dep == 1)

    def close(self, tag: Tag) -> None:
        if tag.name == "tb":
            number = self.integer(tag, "id", 0, 1 << 20)
            if number in self.blocks:
                self.fail(tag, f"tb id {number} twice; would be once in a gpu")
            peers = [self.integer(tag, side, -1, self.nranks - 1) for side in ("send", "recv")]
            channel = self.integer(tag, "chan", 0, self.nchannels - 1)
            self.used_channels = max(self.used_channels, channel + 1)
            self.blocks[number] = ThreadBlock(peers[0], peers[1], channel, self.steps)
        elif tag.name == "gpu":
            rank = self.integer(tag, "id", 0, self.nranks - 1)
            if rank in self.gpus:
                self.fail(tag, f"gpu id {rank} twice; would be once")
            for number, found in enumerate(sorted(self.blocks)):
                if found != number:
                    self.fail(
                        tag, f"gpu {rank} has no tb {number} but a tb {found}; would be contiguous from 0"
                    )
            for number, block in self.blocks.items():
                if rank in (block.send, block.recv):
                    self.fail(tag, f"gpu {rank} tb {number} has itself as peer; would be another rank or -1")
            self.gpus[rank] = Gpu(*self.sizes, [self.blocks[x] for x in sorted(self.blocks)])
        elif tag.name == "algo":
            self.ended = True

    def program(self, tag: Tag) -> Program:
        a = tag.attributes
        for rank in range(self.nranks):
            if rank not in self.gpus:
                self.fail(
                    tag,
                    f"algo ngpus {self.nranks} with {len(self.gpus)} gpus, none of id {rank}; would be equal",
                )
        if self.nchannels != max(1, self.used_channels):
            self.fail(
                tag,
                f"algo nchannels {self.nchannels}; would be {max(1, self.used_channels)}, largest chan + 1",
            )
        low = self.integer(tag, "minBytes", 0, (1 << 63) - 1) if "minBytes" in a else 0
        high = self.integer(tag, "maxBytes", 0, (1 << 63) - 1) if "maxBytes" in a else 0
        if 0 < high < low:
            self.fail(tag, f"algo minBytes {low} and maxBytes {high}; would be min <= max, or maxBytes 0")
        inplace = a["inplace"] == "1"
        outofplace = self.integer(tag, "outofplace", 0, 1) == 1 if "outofplace" in a else not inplace
        return Program(
            name=a["name"],
            collective=_COLLECTIVES[a["coll"]],
            protocol=a["proto"],
            nranks=self.nranks,
            nchunks_per_loop=int(a["nchunksperloop"]),
            inplace=inplace,
            outofplace=outofplace,
            gpus=[self.gpus[r] for r in range(self.nranks)],
            min_bytes=low,
            max_bytes=high,
            redop=a.get("redop", "sum"),
        )


_STEP_RANGES = (
    ("s", 0, 1 << 20),
    ("srcoff", -1, 32767),
    ("dstoff", -1, 32767),
    ("cnt", 0, 71),
    ("depid", -1, 1023),
    ("deps", -1, 1023),
    ("hasdep", 0, 1),
)
