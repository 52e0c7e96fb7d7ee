"""Define what processes of a job send to each other's presence ports: first bytes and messages.

A port is open to anybody who reaches the host. So a connection begins with a frame of a fixed length, whose secret is
compared before anything else is read; only members of the job, who share a store, know it. What a member sends is also
checked against the shape of each kind of message, since that member may run another version.
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Callable
from typing import Any

from runtime.torch.failures.address import NAME_DIGITS, SECRET_DIGITS

Message = dict[str, Any]
HELLO_BYTES = SECRET_DIGITS + 1 + NAME_DIGITS + 1
_HELLO_NAME = re.compile(rb" ([0-9a-f]{%d})\n" % NAME_DIGITS)


def hello(secret: str, name: str) -> bytes:
    """Return the first frame of a connection, from the process `name` to the process with this secret."""
    return f"{secret} {name}\n".encode()


def name_in_hello(frame: bytes, secret: str) -> str | None:
    """Return the name in a connection's first bytes, None if they are not a frame with this secret."""
    if not hmac.compare_digest(frame[:SECRET_DIGITS], secret.encode()):
        return None
    match = _HELLO_NAME.fullmatch(frame, SECRET_DIGITS)
    return match[1].decode() if match else None


def read_message(line: bytes) -> Message:
    """Return the message of a line; an empty object is a message, too, and fields that nobody reads are not checked.

    Raises:
        ValueError: The line does not have the shape of any message.
    """
    try:
        message = json.loads(line)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(message, dict):
        raise ValueError("is not an object")
    if message:
        shape = next((fields for kind, fields in _SHAPES.items() if kind in message), None)
        if shape is None:
            raise ValueError("is of an unknown kind")
        for field, has_shape in shape.items():
            if not has_shape(message.get(field)):
                raise ValueError(f"has no valid field {field!r}")
    return message


_Check = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    """Return True for a string."""
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    """Return True for a signed 64-bit integer that is not a boolean."""
    return type(value) is int and -(1 << 63) <= value < 1 << 63


def _optional(has_shape: _Check) -> _Check:
    """Return a check that also accepts None."""
    return lambda value: value is None or has_shape(value)


def _list_of(has_shape: _Check) -> _Check:
    """Return a check for a list of items."""
    return lambda value: isinstance(value, list) and all(map(has_shape, value))


def _row(*shapes: _Check) -> _Check:
    """Return a check for a list with one item per shape."""
    return lambda value: (
        isinstance(value, list)
        and len(value) == len(shapes)
        and all(has_shape(part) for has_shape, part in zip(shapes, value, strict=True))
    )


def _object_of(has_shape: _Check) -> _Check:
    """Return a check for a dictionary with values of a shape."""
    return lambda value: isinstance(value, dict) and all(map(has_shape, value.values()))


_cause = _row(_is_text, _optional(_is_number), _list_of(_is_number))


def _is_state(value: Any) -> bool:
    """Return True for a state that `deadlock.Held.message` made."""
    return (
        isinstance(value, dict)
        and _is_number(value.get("rank"))
        and _object_of(_is_number)(value.get("made"))
        and _list_of(_row(_is_text, _is_number, _is_text, _list_of(_is_text)))(value.get("calls"))
    )


def _is_flag(value: Any) -> bool:
    """Return True for a boolean and for None."""
    return value is None or isinstance(value, bool)


# All fields that are read, by the field that identifies a kind of message, in the order in which kinds are tried.
_SHAPES: dict[str, dict[str, _Check]] = {
    "end": {"end": _is_text, "counts": _object_of(_row(_is_number, _is_number))},
    "ask": {"ask": _is_text, "group": _is_text, "number": _optional(_is_number)},
    "held?": {"held?": _is_text},
    "held": {"held": _is_text, "state": _optional(_is_state)},
    "stuck": {"stuck": _is_text, "calls": _list_of(_row(_is_text, _is_number))},
    "left": {"left": _is_text, "group": _is_text, "counts": _row(_is_number, _is_number)},
    "answer": {
        "answer": _is_text, "group": _is_text, "waits": _list_of(_is_text), "made": _optional(_is_number),
        "text": _optional(_is_text), "inside": _is_flag, "cause": _optional(_cause),
    },
    "cause": {"cause": _cause, "group": _is_text},
    "call": {
        "call": _is_text, "group": _is_text, "number": _is_number, "blocks": _optional(_row(_is_number, _is_number)),
    },
}  # fmt: skip
