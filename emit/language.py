"""The language for algorithms written by hand: a script copies and reduces chunks, and the compiler does the rest.

    pair = Script("pair", "allreduce", ranks=2)
    total = pair.chunk(1, "i", 0).reduce(pair.chunk(0, "i", 0))
    total.copy(0, "i", 0)

Chunks that are moved as if one rank did it all are MSCCLang's idea (ASPLOS 2023, section 3). Here a script is an object
of its own, and a reference to cells that were overwritten is an error that names the line.
"""

from __future__ import annotations

import ast
import contextlib
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
from synth.model import numbers
from synth.model.numbers import as_flag, as_text, taking, whole
from synth.model.registry import find_kind
from topologies.errors import InputError
from topologies.text.fields import shown
from topologies.text.files import read_bytes

_COLLECTIVES = tuple(name for name in COLLECTIVES if find_kind(name).unit or name == "custom")
_MOST_BYTES = 16 << 20  # of a script's file
_MOST_CELLS = 1 << 24  # ranks × chunks × instances, which limits a script's memory
_FUNCTION = "algorithm"  # that a file must define
_OWN_FILES = {__file__, numbers.__file__, contextlib.__file__}  # They contain or wrap the functions that scripts call.
Cell = tuple[int, int]  # rank, number of the cell
Placement = tuple[int | None, int | None, int | None]  # channel, threadblock that sends, threadblock that receives


@dataclass(frozen=True, eq=False)
class Chunk:
    """A reference to the present contents of `count` neighbouring cells of a rank's buffer.

    Attributes:
        script: Script that the chunk belongs to.
        rank: Rank that holds it.
        buffer: "i", "o" or "s".
        index: First cell in the buffer.
        count: Number of cells.
        versions: Per cell, how often it had been written when the reference was made; a later write makes it stale.
    """

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
        """Return a copy of the chunk in `rank`'s buffer, in the cells from `index` on; itself if it is there already.

        Args:
            rank: Rank that receives the copy.
            buffer: "i", "o" or "s".
            index: First cell of the copy.
            channel: Messages with different numbers share no channel; None leaves it to the compiler.
            sendtb: Number of the threadblock that sends, or that does the copy if it stays on its rank; None leaves it
                to the compiler. A rank's threadblocks stand in the order of their numbers, each on one channel, sending
                to one rank and receiving from one.
            recvtb: Number of the threadblock that receives; None leaves it to the compiler.

        Raises:
            InputError: If the chunk was overwritten since, the cells do not exist or overlap it in part, a number of an
                option is not in 0..32767, or `recvtb` is given for a copy that stays on its rank.
        """
        return self.script._move(self, rank, buffer, index, False, (channel, sendtb, recvtb))

    def reduce(
        self, other: Chunk, *, channel: int | None = None, sendtb: int | None = None, recvtb: int | None = None
    ) -> Chunk:
        """Reduce a chunk of any rank into this one's cells, and return a reference to the result.

        This chunk must not be used any more; `other` may. The options are those of `copy`.

        Raises:
            InputError: If `other` is no chunk, the chunks differ in size, overlap on one rank or belong to different
                scripts, one of them was overwritten since, or an option is wrong as in `copy`.
        """
        if not isinstance(other, Chunk):
            raise self.script._error(f"reduces {shown(other)}; it must be a chunk, such as script.chunk(0, 'i', 0)")
        if other.count != self.count:
            raise self.script._error(f"reduces {other.count} chunks into {self.count}; the numbers must be equal")
        self.script._check_fresh(self)
        return self.script._move(other, self.rank, self.buffer, self.index, True, (channel, sendtb, recvtb))

    def part(self, first: int, count: int = 1) -> Chunk:
        """Return a part of the chunk: `count` of its cells, starting with its cell number `first`, counted from 0.

        Raises:
            InputError: If the part does not lie within the chunk, or is empty.
        """
        if first < 0 or count < 1 or first + count > self.count:
            raise self.script._error(f"part({first}, {count}) of {self.count} chunks; it must lie within")
        return replace(self, index=self.index + first, count=count, versions=self.versions[first : first + count])


class Script:
    """An algorithm under construction: its collective, the buffers of its ranks, and the moves made so far.

    Attributes:
        inplace: True if input and output are one buffer.
        instances: Number of copies of the algorithm that run in parallel.
        interleaved: True if the parts of a chunk are neighbours; None if the compiler chooses.
        ranks: Number of ranks.
        header: The program without its threadblocks.
        goal: What the program must achieve; None if a custom collective states none.
        line: Where the script was made, as "FILE, line NUMBER".
    """

    def __repr__(self) -> str:
        """Return the name, the collective and the number of ranks in one line."""
        return f"<Script {self.header.name} of {self.header.collective} on {self.ranks} ranks>"

    @taking('synth.Script("mine", "allreduce", 4)')
    def __init__(  # Most of its lines describe the arguments.
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
        """Start an algorithm without moves.

        Args:
            name: Name of the program.
            collective: allreduce, allgather, reducescatter, alltoall, broadcast, reduce, gather, scatter or custom.
            ranks: Number of ranks.
            chunks: Into how many chunks a rank's data is cut: its whole buffer in allreduce, broadcast, reduce and
                custom, one rank's block in all other collectives.
            inplace: True for one buffer for input and output; None for the collective's usual form.
            protocol: Simple, LL or LL128.
            min_bytes: Smallest message that the algorithm is for, in bytes.
            max_bytes: Largest message that the algorithm is for, in bytes; 0 for no limit.
            root: Root of a rooted collective.
            instances: Number of copies of the algorithm that run in parallel, each for its share of every chunk, on
                channels of its own.
            interleaved: True: the parts of a chunk are neighbours. False: each instance has one part of every rank's
                block (of the whole buffer if the collective has no blocks). None: the form that costs fewer steps.
            goal: What a custom collective must achieve.

        Raises:
            InputError: If no program can be as the arguments say.
        """
        ranks, chunks, min_bytes, max_bytes, root, instances = self._whole(
            ranks=ranks, chunks=chunks, min_bytes=min_bytes, max_bytes=max_bytes, root=root, instances=instances
        )
        for field, text in (("name", name), ("collective", collective), ("protocol", protocol)):
            as_text(text, field)
        interleaved = None if interleaved is None else as_flag(interleaved, "interleaved")
        kind = find_kind(collective)
        self.inplace = bool(kind.inplace) if inplace is None else as_flag(inplace, "inplace")
        self._check(collective, goal, {"ranks": ranks, "chunks": chunks, "instances": instances})
        per_loop = chunks * ranks if kind.blocks_a_rank else chunks
        self.instances, self.interleaved, self.ranks = instances, interleaved, ranks
        self.line = self._line()
        self._parts: list[int] = []  # per instruction, the number of parts that it is cut into
        self._parallel = 1
        self._sizes = [buffer_sizes(collective, ranks, per_loop, rank, root) for rank in range(ranks)]
        # In place, both buffers share memory, and the program uses only one of their names.
        self._unnamed_buffer = {"o": "i", "i": "o"}.get(kind.inplace) if self.inplace else None
        self.header = Program(
            name=name,
            collective=collective,
            protocol=protocol,
            nranks=ranks,
            nchunks_per_loop=per_loop,
            inplace=self.inplace,
            outofplace=not self.inplace,
            gpus=[
                Gpu(i * (self._unnamed_buffer != "i"), o * (self._unnamed_buffer != "o"), 0, ()) for i, o in self._sizes
            ],
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            root=root,
        )
        self.goal = goal or goal_for(collective, ranks, per_loop, self.inplace, root)
        self._ir = Instructions(self.header, goal)
        self._aliases = self._ir.calls()[0][1]
        initial = zip(*(column.tolist() for column in self.goal.initial[:3]), strict=True) if self.goal else ()
        self._versions = {(rank, self._cell(rank, BUFFERS[code], index)): 0 for rank, code, index in initial}
        self._written: dict[Cell, str] = {}  # the script's line that last wrote the cell

    def _check(self, collective: str, goal: Goal | None, counts: dict[str, int]) -> None:
        """Raise InputError for an unknown collective, a goal for another one than custom, or wrong counts.

        `counts` holds the numbers of ranks, chunks and instances by these names. Each must be 1 or more, and their
        product at most _MOST_CELLS.
        """
        if collective not in _COLLECTIVES:
            raise self._error(f"collective {collective!r}; it must be one of {', '.join(_COLLECTIVES)}")
        if goal is not None and collective != "custom":
            raise self._error(f"a goal for {collective}, whose name implies its goal; it must be for custom")
        if min(counts.values()) < 1:
            values = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise self._error(f"{values}; it must be 1 or more each")
        if math.prod(counts.values()) > _MOST_CELLS:
            raise self._error(f"ranks × chunks × instances is more than {_MOST_CELLS}; it must be less")

    def _whole(self, **numbers: Any) -> list[int]:
        """Return the values in order, as ints; raise InputError with the script's line if one is no whole number."""
        try:
            return [whole(value, name) for name, value in numbers.items()]
        except InputError as error:
            raise self._error(str(error)) from None

    def chunk(self, rank: int, buffer: str, index: int, count: int = 1) -> Chunk:
        """Return a reference to the contents of `count` cells of `rank`'s buffer "i", "o" or "s", from `index` on.

        Raises:
            InputError: If the rank has no such cells, or nothing has been put into one of them yet.
        """
        versions = []
        for k, place in enumerate(self._cells(rank, buffer, index, count)):
            if place not in self._versions:
                raise self._error(f"rank {rank} {buffer}[{index + k}] holds nothing yet")
            versions.append(self._versions[place])
        return Chunk(self, rank, buffer, index, count, tuple(versions))

    @contextmanager
    def parallelize(self, instances: int) -> Iterator[None]:
        """Cut every move inside the `with` block into `instances` parts, each on a channel of its own.

        Inside another such block the numbers multiply. Moves after the block are cut as before it.

        Raises:
            InputError: If the number is no whole number of 1 or more.
        """
        (instances,) = self._whole(instances=instances)
        if instances < 1:
            raise self._error(f"parallelize({instances}); it must be 1 or more")
        outer, self._parallel = self._parallel, self._parallel * instances
        try:
            yield
        finally:
            self._parallel = outer

    def instructions(self) -> Instructions:
        """Return the moves made so far, as instructions for the compiler, which later moves do not change.

        They are cut into the parts of `parallelize`, and ordered by depth.

        Raises:
            InputError: If the script moves nothing.
        """
        if not len(self._ir):
            raise InputError(f"{self.line}: {self.header.name}: moves nothing")
        ir, parts = self._ir, self._parts
        # A goal of any kind can be restated only for parts that are neighbours, so every move is cut.
        if self._ir.goal is not None:
            parts = [part * self.instances for part in parts]
        finer = math.lcm(*parts)
        ir = order_by_depth(ir if finer == 1 else cut_parts(ir, parts, finer))
        result = ir.copy()
        result.instances, result.interleaved = (1 if ir.goal is not None else self.instances), self.interleaved
        return result

    def _move(self, source: Chunk, rank: int, buffer: str, index: int, adds: bool, options: Placement) -> Chunk:
        """Add a copy or a reduction of a chunk to a rank's cells, and return a reference to the result.

        References to the earlier contents of these cells become stale. A copy onto the chunk's own cells adds nothing
        and returns `source`.

        Args:
            source: Chunk to move.
            rank: Rank that receives.
            buffer: Its buffer.
            index: First cell there.
            adds: True to reduce, False to copy.
            options: (channel, sending threadblock, receiving threadblock), each a number or None.

        Raises:
            InputError: If the chunk is of another script or stale, the cells do not exist or overlap it, an option is
                not in 0..32767, or a receiving threadblock is given for a move within one rank.
        """
        if source.script is not self:
            raise self._error("a chunk of another script")
        for name, value in zip(("channel", "sendtb", "recvtb"), options, strict=True):
            if value is not None and not 0 <= value < 1 << 15:
                raise self._error(f"{name} {value}; it must be 0 to {(1 << 15) - 1}")
        channel, sendtb, recvtb = (NONE if value is None else value for value in options)
        self._check_fresh(source)
        places = list(self._cells(rank, buffer, index, source.count))
        src, dst = self._cell(source.rank, source.buffer, source.index), places[0][1]
        if (rank, src) == (source.rank, dst) and not adds:
            return source
        if rank == source.rank:
            if abs(src - dst) < source.count:
                raise self._error(
                    f"{source.buffer}[{source.index}] and {buffer}[{index}], {source.count} chunks each, overlap"
                )
            if recvtb != NONE:
                raise self._error(f"recvtb {recvtb} of what stays on rank {rank}; it must be sendtb")
            self._ir.add(rank, "re" if adds else "cpy", src, dst, source.count, threadblock=sendtb)
        else:
            send_at = self._ir.add(source.rank, "s", src, NONE, source.count, NONE, channel, sendtb)
            receive_at = self._ir.add(rank, "rrc" if adds else "r", NONE, dst, source.count, send_at, channel, recvtb)
            if adds:
                self._ir.src[receive_at] = dst
        self._parts += [self._parallel] * (len(self._ir) - len(self._parts))
        line = self._line()
        for place in places:
            self._versions[place] = self._versions.get(place, 0) + 1
            self._written[place] = line
        return Chunk(self, rank, buffer, index, source.count, tuple(self._versions[place] for place in places))

    def _check_fresh(self, chunk: Chunk) -> None:
        """Raise InputError if a cell of a chunk was overwritten since the reference was made."""
        places = self._cells(chunk.rank, chunk.buffer, chunk.index, chunk.count)
        for place, version in zip(places, chunk.versions, strict=True):
            if self._versions[place] != version:
                raise self._error(
                    f"rank {chunk.rank} {chunk.buffer}[{chunk.index}] was overwritten since, by {self._written[place]}"
                )

    def _cells(self, rank: int, buffer: str, index: int, count: int) -> Iterator[Cell]:
        """Return an iterator over (rank, cell number) of `count` cells of a rank's buffer, from `index` on.

        Raises:
            InputError: At once, if the rank, the buffer or one of the cells does not exist, or `count` is below 1.
        """
        rank, index, count = self._whole(rank=rank, index=index, count=count)
        if not 0 <= rank < self.ranks:
            raise self._error(f"rank {rank}; it must be in 0..{self.ranks - 1}")
        if not isinstance(buffer, str) or buffer not in BUFFERS:
            raise self._error(f"buffer {shown(buffer)}; it must be one of i, o, s")
        size = (*self._sizes[rank], BUFFER)[BUFFERS.index(buffer)]
        if index < 0 or count < 1 or index + count > size:
            size_hint = "" if buffer == "s" else f"; it has {size}"
            raise self._error(f"rank {rank} {buffer}[{index}], {count} chunks: beyond the buffer{size_hint}")
        return ((rank, self._cell(rank, buffer, at)) for at in range(index, index + count))

    def _cell(self, rank: int, buffer: str, index: int) -> int:
        """Return the number of a cell among all cells of its rank.

        In place, where input and output share memory, the two names of one cell give the same number.
        """
        shift = self._aliases[rank]
        if buffer == self._unnamed_buffer and shift is not None:
            return cell("o", index - shift) if buffer == "i" else cell("i", index + shift)
        return cell(buffer, index)

    def _line(self) -> str:
        """Return "FILE, line NUMBER" of the innermost call from outside this module and what wraps its functions."""
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename in _OWN_FILES:
            frame = frame.f_back
        return f"{frame.f_code.co_filename}, line {frame.f_lineno}"

    def _error(self, message: str) -> InputError:
        """Return an InputError that begins with the script's line."""
        return InputError(f"{self._line()}: {message}")


def load_scripts(path: str | Path, settings: Sequence[str] = ()) -> list[Script]:
    """Run a file and call its function `algorithm`, which returns a Script or a list of them.

    The file is the user's own program: it is executed.

    Args:
        path: Python file.
        settings: Arguments for the function, such as "ranks=4"; a value that is no Python literal is a string.

    Returns:
        The scripts in the function's order, at least one.

    Raises:
        InputError: If the file, its function, a setting or the algorithm is at fault, or the file raises any exception;
            the message names the file's line.
    """
    origin = Path(path)
    text = read_bytes(origin, "a Python script", _MOST_BYTES)
    names: dict[str, Any] = {"__name__": origin.stem, "__file__": str(origin)}
    try:
        code = compile(text, str(origin), "exec", dont_inherit=True)
    # RecursionError and MemoryError mean that the file is nested too deeply.
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise InputError(
            f"{origin}{line}: no Python: {getattr(error, 'msg', error) or 'nested too deeply'}; it must"
            " be a Python script"
        ) from None
    _call(origin, lambda: exec(code, names))
    function = names.get(_FUNCTION)
    if not callable(function):
        raise InputError(f"{origin}: has no function {_FUNCTION}(); it must return a Script, or a list of them")
    arguments = _settings(settings)
    try:
        signature = _call(origin, lambda: inspect.signature(function))
        signature.bind(**arguments)
    except TypeError as error:
        parameters = ", ".join(signature.parameters) or "none"
        raise InputError(f"{origin}: {_FUNCTION}() with these settings: {error}; it takes {parameters}") from None
    returned = _call(origin, lambda: function(**arguments))
    scripts = list(returned) if type(returned) in (list, tuple) else [returned]
    wrong_types = [type(script).__name__ for script in scripts if type(script) is not Script or not vars(script)]
    if wrong_types or not scripts:
        description = "nothing" if not scripts or returned is None else wrong_types[0]
        raise InputError(f"{origin}: {_FUNCTION}() returned {description}; it must be a Script, or a list of them")
    return scripts


def _settings(texts: Sequence[str]) -> dict[str, Any]:
    """Return the arguments in texts "name=value" by name; a value that is no Python literal stays a string.

    Of two texts with one name the last counts.

    Raises:
        InputError: If a text is not of this form, or its name is no Python identifier.
    """
    arguments: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"--set {text}; it must be name=value")
        try:
            arguments[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            arguments[name] = value
    return arguments


def _call(origin: Path, call: Any) -> Any:
    """Return the result of `call()`, which runs code of the user's file `origin`.

    KeyboardInterrupt passes unchanged, and so does an InputError that begins with the file's name.

    Raises:
        InputError: For any other exception, with the file, the innermost of its lines, the type, unless it is an
            InputError, and the first line of the message.
    """
    try:
        return call()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # A script may raise any exception.
        is_refusal, text = isinstance(error, InputError), _text_of(error)
        if is_refusal and text.startswith(str(origin)):
            raise
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(origin)]
        line = f", line {lines[-1]}" if lines else ""
        message = text.strip().splitlines()
        parts = [*([] if is_refusal else [type(error).__name__]), *message[:1]]
        raise InputError(f"{origin}{line}: {': '.join(parts)}") from None


def _text_of(error: BaseException) -> str:
    """Return the text of an error of the user's file, at most 1000 characters; "" if its own __str__ fails.

    A KeyboardInterrupt meanwhile is raised.
    """
    try:
        return str(error)[:1000]
    except KeyboardInterrupt:
        raise
    except BaseException:
        return ""
