"""The streams that a command prints to: closed ones, ones without some characters, and terminals with control codes."""

from __future__ import annotations

import codecs
import io
import logging
import os
import re
import sys
from contextlib import suppress
from typing import TextIO

from synth.app.present.layout import warn

# Control characters except tab and line ends, marks that change the order of letters, and surrogates.
_UNPRINTED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

_CLEAR = "\r\x1b[2K"


class PlainStream(io.TextIOWrapper):
    """A text stream that writes control characters as escapes, as JSON does, so that no terminal obeys a file."""

    def write(self, text: str) -> int:
        """Write a text with control characters as escapes, and return the length of the text before that."""
        super().write(_UNPRINTED.sub(lambda match: f"\\u{ord(match[0]):04x}", text))
        return len(text)


def clear_line() -> None:
    """Write the code that clears the terminal's current line to standard error."""
    if isinstance(sys.stderr, PlainStream):
        io.TextIOWrapper.write(sys.stderr, _CLEAR)
    else:
        sys.stderr.write(_CLEAR)


class _Warner(logging.Handler):
    """A handler that prints records on standard error, each as a line of its own."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record, on a terminal in place of the line of progress."""
        if sys.stderr.isatty():
            clear_line()
        warn(record.getMessage())


def show_logs(*names: str) -> None:
    """Print what is logged under some names, from level INFO on; Python users set logging up themselves."""
    for log in map(logging.getLogger, names):
        log.setLevel(logging.INFO)
        log.handlers = [_Warner()]
        log.propagate = False


def drawing_stream() -> TextIO:
    """Return standard error for a library that draws on the terminal and may write control characters.

    If `prepare` replaced standard error, it is a new stream on the same terminal.
    """
    if not isinstance(sys.stderr, PlainStream):
        return sys.stderr
    return open(2, "w", encoding=sys.stderr.encoding, errors="backslashreplace", buffering=1, closefd=False)


def prepare() -> None:
    """Make standard input, output and error usable: closed ones lead nowhere, and printed text is plain.

    `sys.stdout` and `sys.stderr` are replaced. Otherwise the next opened file would get the number of a closed stream,
    and all output would go into that file.
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
    for name in ("stdout", "stderr"):  # Libraries ask the original streams for the terminal's width.
        setattr(sys, f"__{name}__", getattr(sys, name))


def _plain(stream: TextIO | None, number: int) -> TextIO:
    """Return a stream that prints plain text in place of standard output or error.

    A stream that is not Python's own, such as a test's, is returned unchanged; Python's own is detached.

    Args:
        stream: The stream; None if it is closed.
        number: Its file descriptor.
    """
    if stream is None:  # The stream is closed.
        return open(number, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    if type(stream) is not io.TextIOWrapper:  # The stream was replaced, for example by a test.
        return stream
    stream.flush()
    # Click would replace an ASCII stream by its own, which escapes nothing.
    encoding = "utf-8" if codecs.lookup(stream.encoding).name == "ascii" else stream.encoding
    return PlainStream(
        stream.detach(),
        encoding=encoding,
        errors="backslashreplace",
        line_buffering=number == 2 or os.isatty(number),
        write_through=stream.write_through,
    )
