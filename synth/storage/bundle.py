"""Pack named files and a JSON object into one compressed string of bytes, and unpack it within bounded memory.

A bundle is gzip of one line of JSON, followed by the files one after the other. The line is the object with one more
key, `files`: the length in bytes of each file by its name. The stated lengths are checked before the files are
unpacked, so that a small bundle from a stranger cannot fill the memory.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Mapping
from io import BytesIO
from typing import Any

from synth.storage.columns import json_object
from topologies.errors import InputError
from topologies.text.fields import shown

_FILES = "files"
_MOST_HEAD_BYTES = 64 << 20  # of the line of JSON
_MOST_PLAIN_BYTES = 256 << 20  # of all unpacked files of the smallest bundle
_MOST_RATIO = 50  # more bytes of files for each byte of the bundle
_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,249}"
_NAME = re.compile(rf"{_PART}(/{_PART})?")


def pack(content: Mapping[str, Any], files: Mapping[str, bytes]) -> bytes:
    """Return a JSON object and files as one string of bytes (gzip), which is the same for the same content.

    Files are sorted by name; keys of the object keep their order.

    Args:
        content: The JSON object, without a key `files`.
        files: The bytes of each file by its name, NAME or FOLDER/NAME; nothing is checked here but by `unpack`.
    """
    lengths = {name: len(data) for name, data in sorted(files.items())}
    head = json.dumps({**content, _FILES: lengths}, ensure_ascii=False).encode()
    bundle = BytesIO()
    with gzip.GzipFile(fileobj=bundle, mode="wb", compresslevel=6, mtime=0) as stream:
        for data in (head, b"\n", *(files[name] for name in lengths)):
            stream.write(data)
    return bundle.getvalue()


def unpack(data: bytes, origin: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the JSON object and the files of a bundle, as `pack` got them.

    Args:
        data: The bundle.
        origin: The bundle's name in error messages.

    Returns:
        The object, without the key `files`, and the bytes of each file by its name.

    Raises:
        InputError: The bytes are no bundle, a name could lead out of a folder, or the content is larger than a bundle
            of so many bytes may hold.
    """
    most_bytes = _MOST_PLAIN_BYTES + _MOST_RATIO * len(data)
    try:
        with gzip.GzipFile(fileobj=BytesIO(data)) as stream:
            head = stream.readline(min(most_bytes, _MOST_HEAD_BYTES))
            content = json_object(head, origin)
            lengths = _lengths(content.pop(_FILES, None), most_bytes, origin)
            files = {name: stream.read(length) for name, length in lengths.items()}
            if stream.read(1) or any(len(files[name]) != length for name, length in lengths.items()):
                raise InputError(f"{origin}: its files have other lengths than it states")
    except (zlib.error, OSError, EOFError) as error:
        raise InputError(f"{origin}: cannot be unpacked ({error}); it must be as synth writes it") from None
    return content, files


def _lengths(stated: Any, most_bytes: int, origin: str) -> dict[str, int]:
    """Check the stated lengths of a bundle's files, by name, and return them.

    Raises:
        InputError: They are no object of names and lengths, a name could lead out of a folder, or the files would have
            more than `most_bytes` in all.
    """
    if not isinstance(stated, dict) or not all(type(length) is int and length >= 0 for length in stated.values()):
        raise InputError(f"{origin}: {_FILES}: must be an object of names and lengths in bytes")
    for name in stated:
        if not _NAME.fullmatch(name):
            raise InputError(f"{origin}: {_FILES}: {shown(name)} is no name; it must be NAME or FOLDER/NAME")
    if sum(stated.values()) > most_bytes:
        raise InputError(f"{origin}: {_FILES}: are {sum(stated.values())} bytes; they must be at most {most_bytes}")
    return stated
