"""What the command prints to: streams that may be closed, know few letters, or be a terminal that obeys a text."""

from __future__ import annotations

import codecs
import io
import os
import re
import sys
from contextlib import suppress
from typing import TextIO

# Control characters beside tab and line ends, marks that turn the order of letters, and halves of characters.
_UNPRINTED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

_CLEAR = "\r\x1b[2K"


class PlainStream(io.TextIOWrapper):
    """A text stream that writes control characters as escapes, as JSON has them, so that no terminal obeys a file."""

    def write(self, text: str) -> int:
        """Write a text; return its length."""
        super().write(_UNPRINTED.sub(lambda found: f"\\u{ord(found[0]):04x}", text))
        return len(text)


def clear_line() -> None:
    """Clear the line of the terminal that standard error is, which no text of a file may do."""
    if isinstance(sys.stderr, PlainStream):
        io.TextIOWrapper.write(sys.stderr, _CLEAR)
    else:
        sys.stderr.write(_CLEAR)


def drawing_stream() -> TextIO:
    """Return standard error for a library that draws on the terminal and may write control characters."""
    if not isinstance(sys.stderr, PlainStream):
        return sys.stderr
    return open(2, "w", encoding=sys.stderr.encoding, errors="backslashreplace", buffering=1, closefd=False)


def prepare() -> None:
    """Make standard input, output and error usable: what is closed leads nowhere, what is printed is plain text.

    A closed stream's number would be given to the next file that is opened, into which all would be printed.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            with suppress(OSError):
                null = os.open(os.devnull, os.O_RDWR)
                if null != number:
                    os.dup2(null, number)
                    os.close(null)
    sys.stdout, sys.stderr = _plain(sys.stdout, 1), _plain(sys.stderr, 2)
    for name in ("stdout", "stderr"):  # libraries ask the originals how wide the terminal is
        setattr(sys, f"__{name}__", getattr(sys, name))


def _plain(stream: TextIO | None, number: int) -> TextIO:
    if stream is None:  # Python found it closed
        return open(number, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    if type(stream) is not io.TextIOWrapper:  # somebody else's, as a test's
        return stream
    stream.flush()
    # click puts a stream of its own in the place of an ASCII one, which would escape nothing
    encoding = "utf-8" if codecs.lookup(stream.encoding).name == "ascii" else stream.encoding
    return PlainStream(
        stream.detach(),
        encoding=encoding,
        errors="backslashreplace",
        line_buffering=number == 2 or os.isatty(number),
        write_through=stream.write_through,
    )
