"""The tags of an MSCCL XML as its readers find them: elements with attributes in double quotes, and comments.

The readers are no XML parsers: they take each tag by itself, character by character, and know neither entities nor
declarations. What they take is taken here, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from topologies.errors import InputError

MAX_VALUE = 255  # bytes of an attribute's value, beyond which readers write over other memory
MAX_ATTRIBUTES = 16  # of an element that readers keep; a second blank between two takes the place of one

_NAME = rb"[^ =>/\r\n]"
_TAG = re.compile(
    rb'<(?![!?])(%s{1,250}+)((?: %s{0,250}+(?:="[^"]{0,%d}+")?(?=[ />]))*+)(/%s*+)?>' % (_NAME, _NAME, MAX_VALUE, _NAME)
)
_CLOSING = re.compile(rb"</(%s{1,250}+)>" % _NAME)
_COMMENT = re.compile(rb"<!--(?=[^ =>/\r\n]{0,250}+[ >/\r\n])(?s:.*?)-->")
_ATTRIBUTE = re.compile(rb' ([^ =>/\r\n]*+)(?:="([^"]*+)")?')
_BLANK = re.compile(rb"[ \r\n]*+")


class Tag(NamedTuple):
    """One tag; line: counted from 1.

    attributes: the first of each name among the MAX_ATTRIBUTES that readers keep.  ignored: the names of the others.
    closes: `</name>`, which has no attributes.  alone: `<name …/>`.
    """

    name: str
    attributes: dict[str, str]
    ignored: tuple[str, ...]
    line: int
    closes: bool = False
    alone: bool = False


def tags(data: bytes, source: str) -> Iterator[Tag]:
    """The tags of a text in order. InputError, beginning with `source` and the line, at what no reader takes."""
    at, line = 0, 1
    while True:
        blank = _BLANK.match(data, at)
        assert blank is not None  # it matches nothing at all
        line += data.count(b"\n", at, blank.end())
        at = blank.end()
        if at == len(data):
            return
        if found := _TAG.match(data, at):
            yield _opened(found, line)
        elif found := _CLOSING.match(data, at):
            yield Tag(_text(found[1]), {}, (), line, closes=True)
        elif not (found := _COMMENT.match(data, at)):
            raise InputError(f"{source} line {line}: {_why(data, at)}")
        line += data.count(b"\n", at, found.end())
        at = found.end()


def _opened(found: re.Match[bytes], line: int) -> Tag:
    kept: dict[str, str] = {}
    ignored = []
    for place, (name, value) in enumerate(_ATTRIBUTE.findall(found[2])):
        word = _text(name)
        if place < MAX_ATTRIBUTES and word not in kept:
            kept[word] = _text(value)
        elif word:
            ignored.append(word)
    kept.pop("", None)  # of a blank before the tag's end, or a second one between two
    return Tag(_text(found[1]), kept, tuple(ignored), line, alone=found[3] is not None)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


_NOT_TAKEN = "which MSCCL readers do not take"
# What is no tag or comment, by how it begins, and what is right instead; the first that fits.
_REFUSED = [
    (re.compile(start, re.DOTALL), what, right)
    for start, what, right in (
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
    """What MSCCL's readers do not take at this place."""
    start = data[at : at + 8192]
    shown = ascii(start[:20].decode("latin-1"))
    for name, value in _ATTRIBUTE.findall(start[: start.find(b">") + 1]):
        if len(value) > MAX_VALUE:
            return f"{_text(name)!a} of {len(value)} characters; it must be at most {MAX_VALUE}"
    for pattern, what, right in _REFUSED:
        if pattern.match(start):
            return f"{what.format(shown=shown)}; it must {right}"
    return f'tag {shown} cannot be read; it must be <name attribute="value" ...>'
