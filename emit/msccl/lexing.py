"""The tags of an MSCCL XML as its readers find them: elements with attributes in double quotes, and comments.

The readers are no XML parsers: they take each tag by itself, character by character, and know neither entities nor
declarations. This module takes what they take, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from topologies.errors import InputError
from topologies.text.files import is_binary

MAX_VALUE = 255  # bytes of an attribute's value; readers overrun their memory beyond
_SHOWN = 20  # Bytes of a refused text that a message shows.
MAX_ATTRIBUTES = 16  # attributes of an element that readers keep; a second blank between two counts as one

_NAME = rb"[^ =>/\r\n]"
_TAG = re.compile(
    rb'<(?![!?])(%s{1,250}+)((?: %s{0,250}+(?:="[^"]{0,%d}+")?(?=[ />]))*+)(/%s*+)?>' % (_NAME, _NAME, MAX_VALUE, _NAME)
)
_CLOSING = re.compile(rb"</(%s{1,250}+)>" % _NAME)
_COMMENT = re.compile(rb"<!--(?=[^ =>/\r\n]{0,250}+[ >/\r\n])(?s:.*?)-->")
_ATTRIBUTE = re.compile(rb' ([^ =>/\r\n]*+)(?:="([^"]*+)")?')
_BLANK = re.compile(rb"[ \r\n]*+")


class Tag(NamedTuple):
    """A tag of an MSCCL XML.

    Attributes:
        name: Name of the element.
        attributes: First value of each name among the MAX_ATTRIBUTES that readers keep.
        ignored: Names of the other attributes.
        line: Line, counted from 1.
        closes: True for `</name>`, which has no attributes.
        alone: True for `<name …/>`.
    """

    name: str
    attributes: dict[str, str]
    ignored: tuple[str, ...]
    line: int
    closes: bool = False
    alone: bool = False


def tags(data: bytes, source: str) -> Iterator[Tag]:
    """Yield the tags of a text in order, without comments; whether they are nested rightly is not checked.

    Raises:
        InputError: At what no reader takes; the message begins with `source` and mostly the line.
    """
    at, line = 0, 1
    while True:
        blank = _BLANK.match(data, at)
        assert blank is not None  # The pattern matches the empty text.
        line += data.count(b"\n", at, blank.end())
        at = blank.end()
        if at == len(data):
            return
        if match := _TAG.match(data, at):
            yield _opening_tag(match, line)
        elif match := _CLOSING.match(data, at):
            yield Tag(_text(match[1]), {}, (), line, closes=True)
        elif not (match := _COMMENT.match(data, at)):
            if at == 0 and is_binary(data):
                raise InputError(f"{source}: is a binary file; it must be MSCCL XML, which begins with <algo")
            if at == 0 and _PLAIN.match(data):
                raise InputError(f"{source}: is not MSCCL XML (line 1 is plain text); it must begin with <algo")
            raise InputError(f"{source} line {line}: {_why(data, at)}")
        line += data.count(b"\n", at, match.end())
        at = match.end()


def _opening_tag(match: re.Match[bytes], line: int) -> Tag:
    """Return the tag of a match of `<name …>` at a line.

    The first value of a name counts. Attributes beyond MAX_ATTRIBUTES, and repeated ones, are listed as ignored.
    """
    attributes: dict[str, str] = {}
    ignored = []
    for position, (name, value) in enumerate(_ATTRIBUTE.findall(match[2])):
        word = _text(name)
        if position < MAX_ATTRIBUTES and word not in attributes:
            attributes[word] = _text(value)
        elif word:
            ignored.append(word)
    # A blank before the tag's end, or a second one between two attributes, makes an empty name.
    attributes.pop("", None)
    return Tag(_text(match[1]), attributes, tuple(ignored), line, alone=match[3] is not None)


def _text(data: bytes) -> str:
    """Return bytes as text; bytes that are no UTF-8 become escapes."""
    return data.decode("utf-8", "backslashreplace")


_PLAIN = re.compile(rb"[^<\t\r\n\xef]")
_NOT_TAKEN = "which MSCCL readers do not take"
# Beginnings of what is no tag or comment, the fault, and what is right instead; the first row that fits counts.
_REFUSED = [
    (re.compile(start, re.DOTALL), fault, remedy)
    for start, fault, remedy in (
        (b"\xef\xbb\xbf", "a byte order mark", "start with <algo"),
        (rb"<!--.*?-->", f"comment {{shown}} with = in its first word, {_NOT_TAKEN}", "begin with a blank"),
        (rb"<!--", "comment without an end", "end with -->"),
        (rb"<\?", f"an XML declaration, {_NOT_TAKEN}", "start with <algo"),
        (rb"<!", "{shown}: declarations and entities are refused", "be <algo, <gpu, <tb or <step"),
        (rb"\t", f"a tab, {_NOT_TAKEN}", "be spaces"),
        (rb"[^<]", "text {shown} outside a tag", "be a tag"),
        (rb"[^>]*+\Z", "tag {shown} without an end", "end with >"),
        (rb"[^>]*?[\r\n]", f"a newline inside tag {{shown}}, {_NOT_TAKEN}", "be without"),
        (rb"[^>]*?\t", f"a tab inside tag {{shown}}, {_NOT_TAKEN}", "be without"),
        (rb"[^>]*?'", "single quotes in tag {shown}", 'be name="value"'),
        (rb"[^>]*?(?: =|= )", "a space beside = in tag {shown}", 'be name="value"'),
    )
]


def _why(data: bytes, at: int) -> str:
    """Return what MSCCL's readers do not take at offset `at`, and what is right, in words."""
    start = data[at : at + 8192]
    shown = ascii(start[:_SHOWN].decode("latin-1"))
    for name, value in _ATTRIBUTE.findall(start[: start.find(b">") + 1]):
        if len(value) > MAX_VALUE:
            return f"{_text(name[:_SHOWN])!a} of {len(value)} characters; it must be at most {MAX_VALUE}"
    for pattern, fault, remedy in _REFUSED:
        if pattern.match(start):
            return f"{fault.format(shown=shown)}; it must {remedy}"
    return f'tag {shown} cannot be read; it must be <name attribute="value" ...>'
