"""What a presence port accepts from a connection: addresses, first frames, messages of each shape."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runtime.torch.failures.address import ANYWHERE, Address, all_on_this_host, this_host
from runtime.torch.failures.wire import HELLO_BYTES, hello, name_in_hello, read_message

SECRET, NAME = "0123456789abcdef" * 2, "fedcba9876543210"


def test_an_address_is_read_as_it_was_written() -> None:
    for host in (ANYWHERE, this_host() or "x", "elsewhere"):
        address = Address(NAME, SECRET, "10.0.0.1", 65535, host)
        assert Address.parse(str(address)) == address
        assert address.is_reachable == (host in (ANYWHERE, this_host()))


@pytest.mark.parametrize(
    "text",
    ["", "x", f"{NAME} {SECRET} 10.0.0.1", f"{NAME} {SECRET} host 1 -", f"{NAME} {SECRET} 10.0.0.1 0 -",
     f"{NAME} {SECRET} 10.0.0.1 65536 -", f"{NAME} {SECRET} 10.0.0.1 1 -\n", f"{SECRET} {SECRET} 10.0.0.1 1 -",
     f"{NAME} {SECRET[:16]} 10.0.0.1 1 -", f"{NAME} {SECRET} ::1 1 -", f"{NAME} {SECRET} 10.0.0.1 ١ -",
     "[" * 60_000],
)  # fmt: skip
def test_a_malformed_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not the address of a process; it must be"):
        Address.parse(text)


def test_only_a_frame_with_the_secret_gives_a_name() -> None:
    frame = hello(SECRET, NAME)
    assert len(frame) == HELLO_BYTES
    assert name_in_hello(frame, SECRET) == NAME
    assert name_in_hello(frame, SECRET[::-1]) is None
    for wrong in (
        b"", b"\n", frame[:-1], frame + b"x", frame[:-1] + b" ", b"[" * HELLO_BYTES, bytes(HELLO_BYTES),
        frame[:40] + b"/" + frame[41:], frame.upper(), b"\xff" * HELLO_BYTES,
        json.dumps({"secret": SECRET, "name": NAME}).encode(),
    ):  # fmt: skip
        assert name_in_hello(wrong, SECRET) is None, wrong


SENT: list[dict[str, Any]] = [
    {},
    {"end": "ended", "counts": {"g": [3, 4]}},
    {"ask": "q", "number": None, "group": "g"},
    {"answer": "q", "group": "g", "waits": ["allreduce of group 0"]},
    {"answer": "q", "group": "g", "waits": [], "made": 1, "text": None, "inside": False, "cause": ["why", None, [1]]},
    {"held?": "t"},
    {"held": "t", "state": None},
    {"held": "t", "state": {"rank": 0, "made": {"g": 1}, "calls": [["g", 1, "allreduce", ["a", "b"]]]}},
    {"stuck": "each waits", "calls": [["g", 1]]},
    {"left": "has left", "counts": [1, 2], "group": "g"},
    {"cause": ["why", 3, []], "group": "g"},
    {"call": "allreduce", "number": 3, "group": "g"},
    {"call": "alltoall", "number": 3, "group": "g", "blocks": [5, 6]},
]


@pytest.mark.parametrize("message", SENT, ids=str)
def test_every_message_is_read_and_a_field_of_another_shape_refused(message: dict[str, Any]) -> None:
    assert read_message(json.dumps(message).encode()) == message
    for field in message:
        for value in ({"x": 1}, [[]], [None], 1.5, {"g": ["a"]}, [["g", "x"]], ["why", 3], 1 << 70, True):
            if (field, value) == ("inside", True):
                continue
            with pytest.raises(ValueError, match=r"has no valid field|of an unknown kind"):
                read_message(json.dumps(message | {field: value}).encode())


@pytest.mark.parametrize(
    "line", [b"", b"[]", b"1", b'"end"', b"null", b"\xff", b"[" * 60_000, b"1" * 5000, b'{"x": 1}', b'{"end": "y"}']
)
def test_a_malformed_message_is_a_value_error(line: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - json's own words, too
        read_message(line)


@pytest.mark.parametrize(
    ("surroundings", "right"),
    [
        ({"LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1"}, True),
        ({"LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8", "MASTER_ADDR": "127.0.0.1"}, False),
        ({"MASTER_ADDR": "127.0.0.1"}, True),
        ({"MASTER_ADDR": "localhost"}, True),
        ({"MASTER_ADDR": "127.example.com"}, False),
        ({"MASTER_ADDR": "node0"}, False),
        ({}, False),
    ],
)
def test_the_environment_states_whether_all_ranks_are_on_this_host(
    surroundings: dict[str, str], right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not this_host():
        pytest.skip("this system does not name its boot and network")
    for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in surroundings.items():
        monkeypatch.setenv(name, value)
    assert all_on_this_host() is right
