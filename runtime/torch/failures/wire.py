"""Define what processes of a job send to each other's presence ports: addresses, first bytes and messages.

A port is open to anybody who reaches the host. So a connection begins with a frame of a fixed length, whose secret is
compared before anything else is read; only members of the job, who share a store, know it. What a member sends is also
checked against the shape of each kind of message, since that member may run another version.
"""

from __future__ import annotations

import hmac
import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

Message = dict[str, Any]
SECRET_DIGITS, NAME_DIGITS = 32, 16  # Hexadecimal digits.
HELLO_BYTES = SECRET_DIGITS + 1 + NAME_DIGITS + 1
ANYWHERE = "-"  # In place of a host: processes of all hosts reach the address.
_HELLO_NAME = re.compile(rb" ([0-9a-f]{%d})\n" % NAME_DIGITS)
_ADDRESS = re.compile(
    rf"([0-9a-f]{{{NAME_DIGITS}}}) ([0-9a-f]{{{SECRET_DIGITS}}}) ((?:\d{{1,3}}\.){{3}}\d{{1,3}}) (\d{{1,5}})"
    r" ([0-9A-Za-z:.-]{1,80})",
    re.ASCII,
)


@dataclass(frozen=True)
class Address:
    """The address at which a process listens.

    Attributes:
        name: Name of the process.
        secret: Secret with which a connection to it must begin.
        ip: IPv4 address.
        port: TCP port.
        host: The only host whose processes can reach it, or ANYWHERE if all hosts can.
    """

    name: str
    secret: str
    ip: str
    port: int
    host: str = ANYWHERE

    def __str__(self) -> str:
        return f"{self.name} {self.secret} {self.ip} {self.port} {self.host}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read what `str` wrote.

        Raises:
            ValueError: The text is not an address.
        """
        match = _ADDRESS.fullmatch(text)
        if match is None or not 0 < int(match[4]) < 1 << 16:
            raise ValueError("is not the address of a process; it must be NAME SECRET IP PORT HOST")
        return cls(match[1], match[2], match[3], int(match[4]), match[5])

    @property
    def is_reachable(self) -> bool:
        """Return True if processes of this host can connect to it."""
        return self.host in (ANYWHERE, this_host())


@cache
def this_host() -> str:
    """Return a name shared only by processes that reach each other over loopback; "" if none is known.

    It consists of the identities of the boot and of the network namespace.
    """
    boot = namespace = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = str(os.stat("/proc/self/ns/net").st_ino)
    return f"{boot}:{namespace}" if boot and namespace else ""


def all_on_this_host() -> bool:
    """Return True if the environment says that all processes of the job are on this host.

    torchrun states the number of processes on this host and in the job. Without it the store's address tells, if that
    is loopback.
    """
    if not this_host():
        return False
    local_ranks, all_ranks = os.environ.get("LOCAL_WORLD_SIZE"), os.environ.get("WORLD_SIZE")
    if local_ranks is not None and all_ranks is not None:
        return local_ranks == all_ranks
    store_host = os.environ.get("MASTER_ADDR", "")
    return store_host == "localhost" or re.fullmatch(r"127(\.\d{1,3}){3}", store_host) is not None


def hello(secret: str, name: str) -> bytes:
    """Return the first frame of a connection from the process of a name to the process with this secret."""
    return f"{secret} {name}\n".encode()


def name_in_hello(frame: bytes, secret: str) -> str | None:
    """Return the name in a connection's first bytes, None if they are not a frame with this secret."""
    if not hmac.compare_digest(frame[:SECRET_DIGITS], secret.encode()):
        return None
    match = _HELLO_NAME.fullmatch(frame, SECRET_DIGITS)
    return match[1].decode() if match else None


def read_message(line: bytes) -> Message:
    """Return the message of a line.

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
    """Return True for a boolean or None."""
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
    "call": {"call": _is_text, "group": _is_text, "number": _is_number},
}  # fmt: skip
