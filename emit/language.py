"""Algorithms written by hand, chunk by chunk: what is copied and reduced where; the compiler does the rest.

    pair = Script("pair", "allreduce", ranks=2)
    total = pair.chunk(1, "i", 0).reduce(pair.chunk(0, "i", 0))
    total.copy(0, "i", 0)

The idea of chunks that are moved as if one rank did it all is MSCCLang's (ASPLOS 2023, section 3). Here a script is an
object of its own, and a reference to what has been overwritten since is an error that names the line.
"""

from __future__ import annotations

import ast
import inspect
import math
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from emit.compiler.instances import cut_parts
from emit.compiler.ir import BUFFER, NONE, Instructions, cell
from emit.compiler.passes.depth import order_by_depth
from emit.goal import Goal, buffer_sizes, goal_for
from emit.program import BUFFERS, COLLECTIVES, Gpu, Program
from synth.model.numbers import as_flag, as_text, whole
from synth.model.registry import find_kind
from topologies.errors import InputError
from topologies.text.fields import shown
from topologies.text.files import read_bytes

_COLLECTIVES = tuple(name for name in COLLECTIVES if find_kind(name).unit or name == "custom")
_MOST_BYTES = 16 << 20  # of a script
_MOST_CELLS = 1 << 24  # ranks × chunks × instances: of what a script holds in memory
_FUNCTION = "algorithm"  # what a file must define
Cell = tuple[int, int]  # rank, number of the cell
Asked = tuple[int | None, int | None, int | None]  # channel, threadblock that sends, threadblock that receives


@dataclass(frozen=True, eq=False)
class Chunk:
    """What `count` neighbouring cells of a rank's buffer hold now."""

    script: Script
    rank: int
    buffer: str
    index: int
    count: int
    versions: tuple[int, ...]

    def copy(
        self,
        rank: int,
        buffer: str,
        index: int,
        *,
        channel: int | None = None,
        sendtb: int | None = None,
        recvtb: int | None = None,
    ) -> Chunk:
        """Copy it to `rank`'s buffer ("i", "o" or "s") from `index` on; what it is there.

        channel: messages with different numbers share no channel. sendtb, recvtb: the number of the threadblock that
        sends (or does what stays on one rank), and of that which receives; a rank's threadblocks stand in the order of
        their numbers, each on one channel, sending to one rank and receiving from one. None leaves it to the compiler.
        """
        return self.script._move(self, rank, buffer, index, False, (channel, sendtb, recvtb))

    def reduce(
        self, other: Chunk, *, channel: int | None = None, sendtb: int | None = None, recvtb: int | None = None
    ) -> Chunk:
        """Reduce `other`, of any rank, into this; what is here afterwards. Options as those of `copy`."""
        if other.count != self.count:
            raise self.script._wrong(f"reduces {other.count} chunks into {self.count}; it must be as many")
        self.script._fresh(self)
        return self.script._move(other, self.rank, self.buffer, self.index, True, (channel, sendtb, recvtb))

    def part(self, first: int, count: int = 1) -> Chunk:
        """`count` of its cells from the `first` on."""
        if first < 0 or count < 1 or first + count > self.count:
            raise self.script._wrong(f"part({first}, {count}) of {self.count} chunks; it must lie within")
        return replace(self, index=self.index + first, count=count, versions=self.versions[first : first + count])


class Script:
    """One algorithm: the collective, the ranks' buffers, and what has been moved so far."""

    def __init__(  # over 60 lines: most of them say what the arguments are
        self,
        name: str,
        collective: str,
        ranks: int,
        chunks: int = 1,
        *,
        inplace: bool | None = None,
        protocol: str = "Simple",
        min_bytes: int = 0,
        max_bytes: int = 0,
        root: int = 0,
        instances: int = 1,
        interleaved: bool | None = None,
        goal: Goal | None = None,
    ) -> None:
        """
        Args:
            collective: allreduce, allgather, reducescatter, alltoall, broadcast, reduce, gather, scatter or custom.
            chunks: into how many a rank's data is cut: its whole buffer in allreduce, broadcast, reduce and custom,
                one rank's block in all others.
            inplace: one buffer for input and output; None: as is usual for the collective.
            protocol: Simple, LL or LL128. min_bytes, max_bytes: message sizes it is for (0: no limit).
            root: of a rooted collective.
            instances: so many copies of the algorithm side by side, each for its share of every chunk, on channels
                of their own.
            interleaved: True: the parts of a chunk are neighbours; False: each instance has one part of every
                rank's block (of the whole buffer where there are none); None: as costs fewer steps.
            goal: what a custom one must achieve.

        Raises InputError: what no program can be.
        """
        ranks, chunks, min_bytes, max_bytes, root, instances = self._whole(
            ranks=ranks, chunks=chunks, min_bytes=min_bytes, max_bytes=max_bytes, root=root, instances=instances
        )
        for what, text in (("name", name), ("collective", collective), ("protocol", protocol)):
            as_text(text, what)
        interleaved = None if interleaved is None else as_flag(interleaved, "interleaved")
        kind = find_kind(collective)
        self.inplace = bool(kind.inplace) if inplace is None else as_flag(inplace, "inplace")
        self._check(collective, goal, {"ranks": ranks, "chunks": chunks, "instances": instances})
        per_loop = chunks * ranks if kind.blocks_a_rank else chunks
        self.instances, self.interleaved, self.ranks = instances, interleaved, ranks
        self._parts: list[int] = []  # of every instruction, into how many it is cut
        self._parallel = 1
        self._sizes = [buffer_sizes(collective, ranks, per_loop, rank, root) for rank in range(ranks)]
        # in place, one of the two buffers is the other's memory, and the program knows it by one name only
        self._left_out = {"o": "i", "i": "o"}.get(kind.inplace) if self.inplace else None
        self.header = Program(
            name=name,
            collective=collective,
            protocol=protocol,
            nranks=ranks,
            nchunks_per_loop=per_loop,
            inplace=self.inplace,
            outofplace=not self.inplace,
            gpus=[Gpu(i * (self._left_out != "i"), o * (self._left_out != "o"), 0, ()) for i, o in self._sizes],
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            root=root,
        )
        self.goal = goal or goal_for(collective, ranks, per_loop, self.inplace, root)
        self._ir = Instructions(self.header, goal)
        self._aliases = self._ir.calls()[0][1]
        initial = zip(*(column.tolist() for column in self.goal.initial[:3]), strict=True) if self.goal else ()
        self._versions = {(rank, self._cell(rank, BUFFERS[code], index)): 0 for rank, code, index in initial}
        self._written: dict[Cell, str] = {}  # by which line

    def _check(self, collective: str, goal: Goal | None, counts: dict[str, int]) -> None:
        """Raises InputError for arguments that no script can have."""
        if collective not in _COLLECTIVES:
            raise self._wrong(f"collective {collective!r}; it must be one of {', '.join(_COLLECTIVES)}")
        if goal is not None and collective != "custom":
            raise self._wrong(f"a goal for {collective}, whose name says it; it must be for custom")
        if min(counts.values()) < 1:
            given = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise self._wrong(f"{given}; it must be 1 or more each")
        if math.prod(counts.values()) > _MOST_CELLS:
            raise self._wrong(f"ranks × chunks × instances is more than {_MOST_CELLS}; it must be less")

    def _whole(self, **given: Any) -> list[int]:
        """Whole numbers by name; InputError with the script's line for what is none."""
        try:
            return [whole(value, name) for name, value in given.items()]
        except InputError as error:
            raise self._wrong(str(error)) from None

    def chunk(self, rank: int, buffer: str, index: int, count: int = 1) -> Chunk:
        """What `rank`'s buffer "i", "o" or "s" holds from `index` on.

        Raises InputError for what no rank has, or what nothing has been put into yet.
        """
        versions = []
        for k, at in enumerate(self._cells(rank, buffer, index, count)):
            if at not in self._versions:
                raise self._wrong(f"rank {rank} {buffer}[{index + k}] holds nothing yet")
            versions.append(self._versions[at])
        return Chunk(self, rank, buffer, index, count, tuple(versions))

    @contextmanager
    def parallelize(self, instances: int) -> Iterator[None]:
        """Whatever is moved inside is cut into so many parts, each on a channel of its own."""
        (instances,) = self._whole(instances=instances)
        if instances < 1:
            raise self._wrong(f"parallelize({instances}); it must be 1 or more")
        before, self._parallel = self._parallel, self._parallel * instances
        try:
            yield
        finally:
            self._parallel = before

    def instructions(self) -> Instructions:
        """What was written so far, for the compiler. Raises InputError where nothing was."""
        if not len(self._ir):
            raise InputError(f"{self.header.name}: moves nothing")
        ir, parts = self._ir, self._parts
        if self._ir.goal is not None:  # only what lies side by side can be told for any goal: all is cut
            parts = [part * self.instances for part in parts]
        finer = math.lcm(*parts)
        ir = order_by_depth(ir if finer == 1 else cut_parts(ir, parts, finer))
        made = ir.copy()
        made.instances, made.interleaved = (1 if ir.goal is not None else self.instances), self.interleaved
        return made

    def _move(self, what: Chunk, rank: int, buffer: str, index: int, adds: bool, asked: Asked) -> Chunk:
        if what.script is not self:
            raise self._wrong("a chunk of another script")
        for name, value in zip(("channel", "sendtb", "recvtb"), asked, strict=True):
            if value is not None and not 0 <= value < 1 << 15:
                raise self._wrong(f"{name} {value}; it must be 0 to {(1 << 15) - 1}")
        channel, sendtb, recvtb = (NONE if value is None else value for value in asked)
        self._fresh(what)
        to = list(self._cells(rank, buffer, index, what.count))
        src, dst = self._cell(what.rank, what.buffer, what.index), to[0][1]
        if (rank, src) == (what.rank, dst) and not adds:
            return what
        if rank == what.rank:
            if abs(src - dst) < what.count:
                raise self._wrong(
                    f"{what.buffer}[{what.index}] and {buffer}[{index}], {what.count} chunks each, overlap"
                )
            if recvtb != NONE:
                raise self._wrong(f"recvtb {recvtb} of what stays on rank {rank}; it must be sendtb")
            self._ir.add(rank, "re" if adds else "cpy", src, dst, what.count, threadblock=sendtb)
        else:
            sent = self._ir.add(what.rank, "s", src, NONE, what.count, NONE, channel, sendtb)
            at = self._ir.add(rank, "rrc" if adds else "r", NONE, dst, what.count, sent, channel, recvtb)
            if adds:
                self._ir.src[at] = dst
        self._parts += [self._parallel] * (len(self._ir) - len(self._parts))
        line = self._line()
        for place in to:
            self._versions[place] = self._versions.get(place, 0) + 1
            self._written[place] = line
        return Chunk(self, rank, buffer, index, what.count, tuple(self._versions[place] for place in to))

    def _fresh(self, what: Chunk) -> None:
        places = self._cells(what.rank, what.buffer, what.index, what.count)
        for place, version in zip(places, what.versions, strict=True):
            if self._versions[place] != version:
                raise self._wrong(
                    f"rank {what.rank} {what.buffer}[{what.index}] was overwritten since, by {self._written[place]}"
                )

    def _cells(self, rank: int, buffer: str, index: int, count: int) -> Iterator[Cell]:
        rank, index, count = self._whole(rank=rank, index=index, count=count)
        if not 0 <= rank < self.ranks:
            raise self._wrong(f"rank {rank}; it must be in 0..{self.ranks - 1}")
        if not isinstance(buffer, str) or buffer not in BUFFERS:
            raise self._wrong(f"buffer {shown(buffer)}; it must be one of i, o, s")
        size = (*self._sizes[rank], BUFFER)[BUFFERS.index(buffer)]
        if index < 0 or count < 1 or index + count > size:
            has = "" if buffer == "s" else f"; it has {size}"
            raise self._wrong(f"rank {rank} {buffer}[{index}], {count} chunks: beyond the buffer{has}")
        return ((rank, self._cell(rank, buffer, at)) for at in range(index, index + count))

    def _cell(self, rank: int, buffer: str, index: int) -> int:
        shift = self._aliases[rank]
        if buffer == self._left_out and shift is not None:
            return cell("o", index - shift) if buffer == "i" else cell("i", index + shift)
        return cell(buffer, index)

    def _line(self) -> str:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get("__name__") == __name__:
            frame = frame.f_back
        return f"{frame.f_code.co_filename}, line {frame.f_lineno}"

    def _wrong(self, what: str) -> InputError:
        return InputError(f"{self._line()}: {what}")


def load_script(path: str | Path, settings: Sequence[str] = ()) -> Script:
    """The only script of a file, as `load_scripts` has it."""
    scripts = load_scripts(path, settings)
    if len(scripts) > 1:
        raise InputError(f"{path}: {_FUNCTION}() returned {len(scripts)} scripts; it must be one")
    return scripts[0]


def load_scripts(path: str | Path, settings: Sequence[str] = ()) -> list[Script]:
    """Run a file and call its function `algorithm`, with settings such as "ranks=4" as arguments.

    It returns a Script, or several in a list. The file is the user's own program: it is executed.

    Raises InputError: the file, its function, a setting or the algorithm is at fault; with the file's line.
    """
    where = Path(path)
    text = read_bytes(where, "a Python script", _MOST_BYTES)
    names: dict[str, Any] = {"__name__": where.stem, "__file__": str(where)}
    try:
        code = compile(text, str(where), "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two: nested too deeply
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise InputError(
            f"{where}{line}: no Python: {getattr(error, 'msg', error) or 'nested too deeply'}; it must"
            " be a Python script"
        ) from None
    _call(where, lambda: exec(code, names))
    function = names.get(_FUNCTION)
    if not callable(function):
        raise InputError(f"{where}: has no function {_FUNCTION}(); it must return a Script, or a list of them")
    asked = _settings(settings)
    try:
        signature = _call(where, lambda: inspect.signature(function))
        signature.bind(**asked)
    except TypeError as error:
        takes = ", ".join(signature.parameters) or "none"
        raise InputError(f"{where}: {_FUNCTION}() with these settings: {error}; it takes {takes}") from None
    returned = _call(where, lambda: function(**asked))
    scripts = list(returned) if type(returned) in (list, tuple) else [returned]
    others = [type(one).__name__ for one in scripts if type(one) is not Script or not vars(one)]
    if others or not scripts:
        what = "nothing" if not scripts or returned is None else others[0]
        raise InputError(f"{where}: {_FUNCTION}() returned {what}; it must be a Script, or a list of them")
    return scripts


def _settings(texts: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"--set {text}; it must be name=value")
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            found[name] = value
    return found


def _call(where: Path, call: Any) -> Any:
    """What a call returns; an error in the user's file is one line that names its line."""
    try:
        return call()
    except InputError:
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a script may raise whatever it likes
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(where)]
        line = f", line {lines[-1]}" if lines else ""
        message = _words_of(error).strip().splitlines()
        raise InputError(f"{where}{line}: {type(error).__name__}{': ' + message[0] if message else ''}") from None


def _words_of(error: BaseException) -> str:
    """Return what an error of the user's file says, or nothing where its own __str__ fails."""
    try:
        return str(error)[:1000]
    except KeyboardInterrupt:
        raise
    except BaseException:
        return ""
