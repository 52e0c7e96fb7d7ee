"""The subset of XML that MSCCL readers take, one tag at a time: elements, attributes, comments; nothing else.

Not a general XML parser, so that nothing of one (entities, doctypes, includes) is there to be abused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from topologies.errors import InputError

MAX_BYTES = 64 << 20
MAX_VALUE = 255  # characters in an attribute value
MAX_ATTRIBUTES = 16

_SPACE = re.compile(rb"[ \r\n]*")
_TAG = re.compile(rb'<([A-Za-z]{1,64})((?: +[A-Za-z_]{1,64}="[^"<&\t\r\n]*"){0,64}) *(/?)>')
_CLOSE = re.compile(rb"</([A-Za-z]{1,64})>")
_ATTRIBUTE = re.compile(rb' +([A-Za-z_]+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Tag:
    """kind: "open", "empty" (open and closed) or "close"."""

    kind: str
    name: str
    attributes: dict[str, str]
    line: int


def tags(data: bytes, source: str) -> Iterator[Tag]:
    """The tags of `data` in order. Raises InputError, with `source` and the line, at the first thing else."""
    if len(data) > MAX_BYTES:
        raise InputError(f"{source}: more than {MAX_BYTES} bytes; would be at most that")
    at, line, counted = 0, 1, 0
    while True:
        space = _SPACE.match(data, at)
        assert space is not None  # it matches the empty string
        at = space.end()
        line += data.count(b"\n", counted, at)
        counted = at
        if at == len(data):
            return
        if data.startswith(b"<!--", at):
            end = data.find(b"-->", at + 4)
            if end < 0:
                raise InputError(f"{source} line {line}: comment without an end; would end with -->")
            at = end + 3
            continue
        found = _TAG.match(data, at)
        if found is not None:
            name, inside, slash = found.groups()
            yield Tag(
                "empty" if slash else "open", name.decode(), _attributes(inside, name, source, line), line
            )
        else:
            found = _CLOSE.match(data, at)
            if found is None:
                raise InputError(f"{source} line {line}: {_why(data, at)}")
            yield Tag("close", found.group(1).decode(), {}, line)
        at = found.end()


def _attributes(inside: bytes, tag: bytes, source: str, line: int) -> dict[str, str]:
    attributes: dict[str, str] = {}
    pairs = _ATTRIBUTE.findall(inside)
    if len(pairs) > MAX_ATTRIBUTES:
        raise InputError(
            f"{source} line {line}: <{tag.decode()}> with {len(pairs)} attributes; "
            f"would be at most {MAX_ATTRIBUTES}"
        )
    for key, value in pairs:
        name = key.decode()
        if name in attributes:
            raise InputError(
                f"{source} line {line}: attribute {name} twice in <{tag.decode()}>; would be once"
            )
        if len(value) > MAX_VALUE:
            raise InputError(
                f"{source} line {line}: {name} of {len(value)} characters; would be at most {MAX_VALUE}"
            )
        attributes[name] = value.decode("utf-8", "replace")
    return attributes


def _why(data: bytes, at: int) -> str:
    """What is wrong with the text that is not a tag."""
    start = data[at : at + 40]
    shown = ascii(start[:20].decode("latin-1"))
    if start.startswith(b"\xef\xbb\xbf"):
        return "a byte order mark; would start with <algo"
    if start.startswith(b"<?"):
        return "an XML declaration, which MSCCL readers do not take; would start with <algo"
    if start.startswith((b"<!", b"<![")):
        return f"{shown}: declarations and entities are refused; would be <algo, <gpu, <tb or <step"
    if start[:1] == b"\t":
        return "a tab, which MSCCL readers do not take; would be spaces"
    if start[:1] != b"<":
        return f"text {shown} outside a tag; would be a tag"
    end = data.find(b">", at, at + 8192)
    tag = data[at : end + 1] if end >= 0 else data[at : at + 8192]
    if end < 0:
        return f"tag {shown} without an end; would end with >"
    for bad, word in ((b"\n", "a newline"), (b"\r", "a newline"), (b"\t", "a tab"), (b"&", "an entity (&)")):
        if bad in tag:
            return f"{word} inside tag {shown}, which MSCCL readers do not take; would be without"
    if b"'" in tag:
        return f'single quotes in tag {shown}; would be name="value"'
    if re.search(rb" =|= ", tag):
        return f'a space beside = in tag {shown}; would be name="value"'
    return f'tag {shown} cannot be read; would be <name attribute="value" ...>'
