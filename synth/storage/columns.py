"""Read and write a header and NumPy columns in one file: an uncompressed zip of `header.json` and one .npy a column.

`numpy.load` reads it too. The bytes depend only on the content: no clock, no user, one order of members. The
reader parses the file itself, accepts nothing that the writer would not have written, and evaluates nothing.
"""

from __future__ import annotations

import errno
import json
import os
import re
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from synth.storage.leftovers import PREFIX, lock_file, remove_leftovers
from topologies.errors import InputError
from topologies.text.fields import shown
from topologies.text.files import open_regular_file, origin_of, parse_json

HEADER = "header.json"
MAX_HEADER_BYTES = 64 << 20
MAX_MEMBERS = 32
_END = struct.Struct("<4s4H2LH")  # last record of a zip file without a comment
_NPY = re.compile(
    rb"\{'descr': '([<|][bif][1248])', 'fortran_order': False, 'shape': \(([0-9]{1,15}),(?: ([0-9]{1,3}))?\), \} *\n"
)
_LOCAL_HEAD_BYTES = 30  # of a member, before its name
_MOST_GAP = 64  # bytes of a member's extra fields and of the checksum behind it, as zipfile writes them
_KINDS = {"int": ("|i1", "<i2", "<i4", "<i8"), "float": ("<f8",), "bool": ("|b1",)}
_WRONG = (
    OSError, EOFError, ValueError, LookupError, RuntimeError, OverflowError, struct.error, zlib.error,
    zipfile.BadZipFile,
)  # fmt: skip


@contextmanager
def replaced(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file to write that replaces `path` only once it is complete; the old file stays until then.

    If the context is left by an error, the old file stays for good. A link is followed and stays one. Everyone may read
    the new file. What killed writers left in the folder is removed first.

    Yields:
        The new file, open to write and read bytes.

    Raises:
        InputError: The file cannot be written, or the path is a folder, a device or the like; also for an OSError that
            is raised inside the context.
    """
    target, temporary, lock = Path(path), "", -1
    place = _place(target)
    remove_leftovers(place.parent)
    try:
        handle, temporary = tempfile.mkstemp(prefix=PREFIX, dir=place.parent)
        lock = lock_file(handle)
        with os.fdopen(handle, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, place)
        temporary = ""
    except OSError as error:
        raise _not_written(target, error.strerror or error) from None
    finally:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        if lock >= 0:
            os.close(lock)


def replace_all(files: Iterable[tuple[str | Path, bytes]]) -> None:
    """Write files (path, content) completely; none is at its path before all are written.

    Everyone may read the new files. What killed writers left in their folders is removed first.

    Raises:
        InputError: A file cannot be written; as for `replaced`. If one cannot be moved to its path, those before it
            have been replaced, and the others have not.
    """
    with ExitStack() as stack:
        ready: list[tuple[str, Path, Path]] = []
        for path, content in files:
            target = Path(path)
            place = _place(target)
            remove_leftovers(place.parent)
            try:
                handle, temporary = tempfile.mkstemp(prefix=PREFIX, dir=place.parent)
                stack.callback(os.close, lock_file(handle))
                stack.callback(Path(temporary).unlink, missing_ok=True)
                with os.fdopen(handle, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                os.chmod(temporary, 0o644)
            except OSError as error:
                raise _not_written(target, error.strerror or error) from None
            ready.append((temporary, place, target))
        for temporary, place, target in ready:
            try:
                os.replace(temporary, place)
            except OSError as error:
                raise _not_written(target, error.strerror or error) from None


def check_replaceable(path: str | Path) -> None:
    """Raise InputError now if `replaced` would raise it later; nothing is left in the folder."""
    target = Path(path)
    place = _place(target)
    try:
        tempfile.TemporaryFile(dir=place.parent).close()
    except OSError as error:
        raise _not_written(target, error.strerror or error) from None


def _place(target: Path) -> Path:
    """Return the absolute path of a file to write, with links followed; the file need not exist.

    Raises:
        InputError: The path holds a zero byte, is a folder, a device or the like, or leads through a loop of links.
    """
    if "\0" in str(target):
        raise _not_written(target, "its name holds a zero byte")
    try:
        place = target.resolve()
        if place.is_dir():
            raise _not_written(target, os.strerror(errno.EISDIR))
        if place.exists() and not place.is_file():
            raise _not_written(target, "not a plain file")
    except (OSError, RuntimeError) as error:  # A loop of links raises RuntimeError.
        raise _not_written(target, getattr(error, "strerror", None) or "a loop of links") from None
    return place


def _not_written(target: Path, reason: object) -> InputError:
    """Return, and do not raise, the error that a file cannot be written."""
    return InputError(
        f"{origin_of(target)}: cannot be written ({reason}); it must be a file in a folder where you may write"
    )


def write_columns(path: str | Path, header: Mapping[str, Any], columns: Mapping[str, NDArray[np.generic]]) -> None:
    """Write the header and the columns: integers in the fewest bytes that hold them, floats in eight, bools in one.

    Args:
        path: The file, which is replaced if it exists.
        header: The content of header.json.
        columns: Arrays of integers, floats or bools by name, in the order of the file.

    Raises:
        InputError: The file cannot be written.
        ValueError: The header holds a number that is not finite.
    """
    with replaced(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        text = json.dumps(header, ensure_ascii=False, allow_nan=False, indent=1) + "\n"
        _write_member(archive, HEADER, text.encode(), np.zeros(0, dtype=np.int8))
        for name, column in columns.items():
            narrow = np.ascontiguousarray(column, dtype=_dtype(column))
            head, npy_header = BytesIO(), {"descr": narrow.dtype.str, "fortran_order": False, "shape": narrow.shape}
            np.lib.format.write_array_header_1_0(head, npy_header)
            _write_member(archive, f"{name}.npy", head.getvalue(), narrow)


def _dtype(column: NDArray[Any]) -> str:
    """Return the stored type of a column, such as "<i4": the narrowest signed one for integers, "<f8" or "|b1" else.

    Args:
        column: Integers, floats or bools of any width; without entries, integers are "|i1".
    """
    if column.dtype.kind in "bf":
        return "|b1" if column.dtype.kind == "b" else "<f8"
    low, high = (int(column.min()), int(column.max())) if column.size else (0, 0)
    return next(t for t in _KINDS["int"] if np.iinfo(t).min <= low and high <= np.iinfo(t).max)


def _write_member(archive: zipfile.ZipFile, name: str, head: bytes, body: NDArray[Any]) -> None:
    """Write one uncompressed member of the zip: the bytes `head`, then those of the contiguous array `body`."""
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    info.create_system = 3  # By default zipfile would name the system that it runs on.
    info.external_attr = 0o100644 << 16
    info.file_size = len(head) + body.nbytes
    with archive.open(info, "w") as stream:
        stream.write(head)
        if body.size:
            stream.write(body.data.cast("B"))


class ColumnFile:
    """An open file of columns; use it as a context manager.

    Attributes:
        origin: The file's name in messages.
        size: Size of the file in bytes.
        header: The content of header.json.
        names: Names of the columns in the file.
    """

    def __init__(self, path: str | Path) -> None:
        """Open a file and read its header.

        Raises:
            InputError: There is no such file, or it is no file of columns.
        """
        self.origin = origin_of(path)
        self._file = open_regular_file(path, "a schedule's .synth file")
        try:
            self.size = self._check_end()
            with self._errors_in_one_line("its table of members"):
                self._archive = zipfile.ZipFile(self._file)
            self._members = self._checked_members()
            self._columns_read: set[str] = set()
            self.names = [name.removesuffix(".npy") for name in self._members if name != HEADER]
            self.header = self._read_header()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> ColumnFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()
        self._file.close()

    def rows(self, name: str) -> int:
        """Return the number of rows that a column claims to have; the column itself is not read.

        It counts as read for `taken_all`.

        Raises:
            InputError: The column is missing or damaged.
        """
        with self._reading(name) as stream:
            return _npy_head(stream)[1][0]

    def column(self, name: str, kind: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """Read one column; integers keep the width in which they are stored.

        Args:
            name: The column's name, without .npy.
            kind: int, float or bool.
            shape: The shape that the column must have.

        Raises:
            InputError: The column is missing, damaged, of another kind or shape, or too large for the memory.
        """
        member = f"{name}.npy"
        with self._reading(name) as stream:
            dtype, stored_shape, skipped = _npy_head(stream)
            if dtype not in _KINDS[kind]:
                raise InputError(f"{self.origin}: {member}: holds {dtype}; it must be one of {_KINDS[kind]}")
            if stored_shape != shape:
                raise InputError(f"{self.origin}: {member}: has the shape {stored_shape}; it must be {shape}")
            nbytes = int(np.prod(shape, dtype=object)) * np.dtype(dtype).itemsize
            stored_bytes = self._members[member].file_size - skipped
            if stored_bytes != nbytes:
                raise InputError(f"{self.origin}: {member}: has {stored_bytes} bytes; {shape} of {dtype} take {nbytes}")
            column = np.empty(shape, dtype=dtype)
            # Reading to the end also checks the member's checksum.
            if nbytes and stream.readinto(column.data.cast("B")) != nbytes:  # type: ignore[attr-defined]
                raise EOFError("ends before its size")
        if kind == "bool" and (column.view(np.uint8) > 1).any():
            raise InputError(f"{self.origin}: {member}: holds bytes other than 0 and 1; it must be bool")
        return column

    def within(self, name: str, column: NDArray[Any], low: float, high: float) -> None:
        """Check that all values of a column are in low..high, both included; NaN is not.

        Args:
            name: The column's name, for the message.
            column: The column, as `column` returned it, or a part of it.
            low: Least value.
            high: Largest value.

        Raises:
            InputError: A value is outside.
        """
        if len(column) and not (column.min() >= low and column.max() <= high):
            row = int(np.argmin((column >= low) & (column <= high)))
            span = f"it must be {low:.17g} to {high:.17g}"
            raise InputError(f"{self.origin}: {name}.npy: row {row} is {column[row]}; {span}")

    def taken_all(self) -> None:
        """Check that `column` or `rows` was called for every column of the file.

        Raises:
            InputError: The file has a column that no reader needs.
        """
        for name in self.names:
            if name not in self._columns_read:
                raise InputError(f"{self.origin}: {name}.npy: is not expected in such a file")

    @contextmanager
    def _reading(self, name: str) -> Iterator[IO[bytes]]:
        """Open a column's member for reading, and note that the column is read.

        Raises:
            InputError: The column is missing; or reading fails inside the context, in one line about the member.
        """
        member = f"{name}.npy"
        self._columns_read.add(name)
        if member not in self._members:
            raise InputError(f"{self.origin}: {member}: missing; a schedule file must have it")
        with self._errors_in_one_line(member), self._archive.open(self._members[member]) as stream:
            yield stream

    @contextmanager
    def _errors_in_one_line(self, part: str) -> Iterator[None]:
        """Raise InputError, with one line about a part of the file, in place of an error that reading it raises.

        Such errors are those of the system, of the formats and of memory. InputError is raised as it is.

        Args:
            part: The part, for the message.
        """
        try:
            yield
        except InputError:
            raise
        except MemoryError:
            raise InputError(f"{self.origin}: {part}: more than fits in memory") from None
        except _WRONG as error:
            message = " ".join(str(error).split())[:120] or type(error).__name__
            message = message if message.isprintable() else repr(message)
            raise InputError(f"{self.origin}: {part}: cannot be read ({message})") from None

    def _check_end(self) -> int:
        """Return the file's size in bytes, and leave the file at its start.

        Raises:
            InputError: The file does not end as a zip of 1 to 32 members without a comment does.
        """
        with self._errors_in_one_line("its last bytes"):
            size = self._file.seek(0, os.SEEK_END)
            self._file.seek(max(0, size - _END.size))
            last = self._file.read(_END.size)
            self._file.seek(0)
        if len(last) < _END.size:
            raise InputError(f"{self.origin}: has {size} bytes; it must be a schedule file (.synth)")
        mark, *counts, comment = _END.unpack(last)
        if mark != b"PK\x05\x06" or comment or not 1 <= counts[3] <= MAX_MEMBERS:
            raise InputError(f"{self.origin}: is cut short, or no schedule file; it must be a whole .synth file")
        return size

    def _checked_members(self) -> dict[str, zipfile.ZipInfo]:
        """Return the zip's members by file name, in their order, from the table of members.

        Raises:
            InputError: A name is there twice or is no column's, a member is compressed, encrypted or longer than the
                file, or there are bytes between members.
        """
        members: dict[str, zipfile.ZipInfo] = {}
        for info in self._archive.infolist():
            name = shown(info.filename)
            if info.filename in members:
                raise InputError(f"{self.origin}: {name}: is in the file twice; it must be there once")
            if info.filename != HEADER and not re.fullmatch(r"[a-z][a-z_/]{0,39}\.npy", info.filename):
                raise InputError(f"{self.origin}: {name}: is no member of a schedule file")
            if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
                raise InputError(f"{self.origin}: {name}: is compressed or encrypted; it must be stored without either")
            if info.file_size != info.compress_size or info.file_size > self.size:
                raise InputError(f"{self.origin}: {name}: claims {info.file_size} bytes of a file of {self.size}")
            members[info.filename] = info
        self._check_gaps()
        return members

    def _check_gaps(self) -> None:
        """Raise InputError where members overlap, or the file holds bytes before the first or unknown ones between two.

        The few bytes that zipfile writes between members are allowed; what stands after the last is not looked at.
        """
        end = 0
        for info in sorted(self._archive.infolist(), key=lambda member: member.header_offset):
            extra_bytes = info.header_offset - end
            if extra_bytes < 0 or extra_bytes > (_MOST_GAP if end else 0):
                gap = "between members" if end else "before its first member"
                raise InputError(
                    f"{self.origin}: {shown(info.filename)}: {abs(extra_bytes)} unknown bytes {gap}; it"
                    " must be a zip of columns and nothing else"
                )
            end = info.header_offset + _LOCAL_HEAD_BYTES + len(info.filename.encode()) + info.compress_size

    def _read_header(self) -> dict[str, Any]:
        """Read header.json; raise InputError if it is missing, too large or no JSON object."""
        if HEADER not in self._members:
            raise InputError(f"{self.origin}: {HEADER}: missing; a schedule file must have it")
        if self._members[HEADER].file_size > MAX_HEADER_BYTES:
            raise InputError(f"{self.origin}: {HEADER}: too large; it must be at most {MAX_HEADER_BYTES >> 20} MiB")
        with self._errors_in_one_line(HEADER):
            data = self._archive.read(HEADER)
        return json_object(data, f"{self.origin}: {HEADER}")


def _npy_head(stream: IO[bytes]) -> tuple[str, tuple[int, ...], int]:
    """Read the (dtype, shape, bytes before the data) of a .npy stream, which is then at its data.

    The dtype is text such as "<i4"; the shape has one or two lengths.

    Raises:
        ValueError: The head is not as numpy writes it.
    """
    start = stream.read(10)
    if start[:8] != b"\x93NUMPY\x01\x00" or len(start) < 10:
        raise ValueError("not a .npy column of version 1.0")
    length = int.from_bytes(start[8:], "little")
    match = _NPY.fullmatch(stream.read(length)) if length <= 512 else None
    if match is None:
        raise ValueError("the .npy header is not as numpy writes it for a column")
    shape = tuple(int(n) for n in match.groups()[1:] if n is not None)
    return match[1].decode(), shape, 10 + length


def json_object(data: bytes, origin: str) -> dict[str, Any]:
    """Return the JSON object in the bytes.

    Raises:
        InputError: The bytes are not UTF-8, not JSON as `parse_json` accepts it, or no object; the line begins with
            `origin`.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{origin}: byte {error.start} is not UTF-8; it must be as synth writes it") from None
    value = parse_json(text, origin, "JSON as synth writes it")
    if not isinstance(value, dict):
        raise InputError(f"{origin}: is {shown(value)}; it must be an object")
    return value
