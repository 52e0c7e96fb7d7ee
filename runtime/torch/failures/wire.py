"""What processes of a job say to each other's presence ports: addresses, the first bytes of a connection, messages.

A port is open to whoever reaches the host. So a connection begins with a frame of a fixed length, of which the secret
is compared before anything else is looked at; only members of the job, who share a store, know it. What a member sends
is still checked against the shape of each kind of message: it may run another version.
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
SECRET_DIGITS, NAME_DIGITS = 32, 16  # hexadecimal
HELLO_BYTES = SECRET_DIGITS + 1 + NAME_DIGITS + 1
ANYWHERE = "-"  # in the place of a host: peers of all hosts reach the address
_HELLO_NAME = re.compile(rb" ([0-9a-f]{%d})\n" % NAME_DIGITS)
_ADDRESS = re.compile(
    rf"([0-9a-f]{{{NAME_DIGITS}}}) ([0-9a-f]{{{SECRET_DIGITS}}}) ((?:\d{{1,3}}\.){{3}}\d{{1,3}}) (\d{{1,5}})"
    r" ([0-9A-Za-z:.-]{1,80})",
    re.ASCII,
)


@dataclass(frozen=True)
class Address:
    """Where a process listens.

    Attributes:
        name: Of the process.
        secret: What a connection to it must begin with.
        ip: IPv4 address.
        port: TCP port.
        host: The host on which alone it can be reached, ANYWHERE where all hosts reach it.
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
        """Read what `str` wrote; raise ValueError for anything else."""
        words = _ADDRESS.fullmatch(text)
        if words is None or not 0 < int(words[4]) < 1 << 16:
            raise ValueError("is no address of a process; it must be NAME SECRET IP PORT HOST")
        return cls(words[1], words[2], words[3], int(words[4]), words[5])

    @property
    def is_reachable(self) -> bool:
        """Whether processes of this host can connect to it."""
        return self.host in (ANYWHERE, this_host())


@cache
def this_host() -> str:
    """Return a name that only processes share that reach each other over loopback; "" where none is known.

    It is made of the boot's identity and the network namespace's.
    """
    boot = namespace = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = str(os.stat("/proc/self/ns/net").st_ino)
    return f"{boot}:{namespace}" if boot and namespace else ""


def all_on_this_host() -> bool:
    """Return whether the environment says that no process of the job is on another host.

    torchrun states how many there are here and in all. Elsewhere the store's address says it, where that is loopback.
    """
    if not this_host():
        return False
    here, all_ranks = os.environ.get("LOCAL_WORLD_SIZE"), os.environ.get("WORLD_SIZE")
    if here is not None and all_ranks is not None:
        return here == all_ranks
    store = os.environ.get("MASTER_ADDR", "")
    return store == "localhost" or re.fullmatch(r"127(\.\d{1,3}){3}", store) is not None


def hello(secret: str, name: str) -> bytes:
    """Return the first frame of a connection, for a process that has this secret, from one of this name."""
    return f"{secret} {name}\n".encode()


def name_in_hello(frame: bytes, secret: str) -> str | None:
    """Return the name that a connection's first bytes state, None where they are not a frame with this secret."""
    if not hmac.compare_digest(frame[:SECRET_DIGITS], secret.encode()):
        return None
    stated = _HELLO_NAME.fullmatch(frame, SECRET_DIGITS)
    return stated[1].decode() if stated else None


def read_message(line: bytes) -> Message:
    """Return the message of a line; raise ValueError where it has not the shape of any."""
    try:
        message = json.loads(line)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(message, dict):
        raise ValueError("is no object")
    if message:
        shape = next((fields for kind, fields in _SHAPES.items() if kind in message), None)
        if shape is None:
            raise ValueError("is of no known kind")
        for field, has_shape in shape.items():
            if not has_shape(message.get(field)):
                raise ValueError(f"{field}: is missing or has another shape")
    return message


_Check = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return type(value) is int and -(1 << 63) <= value < 1 << 63


def _optional(has_shape: _Check) -> _Check:
    return lambda value: value is None or has_shape(value)


def _list_of(has_shape: _Check) -> _Check:
    return lambda value: isinstance(value, list) and all(map(has_shape, value))


def _row(*shapes: _Check) -> _Check:
    return lambda value: (
        isinstance(value, list)
        and len(value) == len(shapes)
        and all(has_shape(part) for has_shape, part in zip(shapes, value, strict=True))
    )


def _object_of(has_shape: _Check) -> _Check:
    return lambda value: isinstance(value, dict) and all(map(has_shape, value.values()))


_cause = _row(_is_text, _optional(_is_number), _list_of(_is_number))


def _is_state(value: Any) -> bool:
    """Whether it is what `deadlock.Held.message` makes."""
    return (
        isinstance(value, dict)
        and _is_number(value.get("rank"))
        and _object_of(_is_number)(value.get("made"))
        and _list_of(_row(_is_text, _is_number, _is_text, _list_of(_is_text)))(value.get("calls"))
    )


def _is_flag(value: Any) -> bool:
    return value is None or isinstance(value, bool)


# By the field that tells a kind from the others, in the order in which they are looked for: all fields that are read.
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
