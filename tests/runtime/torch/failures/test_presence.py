"""Strangers at the presence port, and members that send malformed messages."""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

import pytest

if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: pip install '.[torch]'", allow_module_level=True)

import torch.distributed as dist

from runtime.torch.failures.address import Address
from runtime.torch.failures.link import PresenceTuning
from runtime.torch.failures.meeting import meet
from runtime.torch.failures.presence import Presence
from runtime.torch.failures.strangers import Strangers
from runtime.torch.failures.wire import hello
from tests.runtime.torch.failures.test_lost import SOON, FailureWatch, until

HASTY = PresenceTuning(tick=0.02, stranger=0.3, strangers=8)


@contextmanager
def members(count: int, tuning: PresenceTuning = HASTY) -> Iterator[list[Presence]]:
    """Start processes of which every two are connected."""
    presences = [Presence(tuning) for _ in range(count)]
    try:
        for presence in presences:
            for peer in presences:
                if presence is not peer:
                    presence.connect(peer.address)
        until(lambda: all(a.is_open(b.name) for a in presences for b in presences if a is not b))
        yield presences
    finally:
        for member in presences:
            member.close()


def connected(presence: Presence) -> socket.socket:
    return socket.create_connection(presence._strangers.server.getsockname(), 5)


def cpu_seconds(presence: Presence) -> float:
    assert presence._thread.ident is not None
    return time.clock_gettime(time.pthread_getcpuclockid(presence._thread.ident))


def assert_alive(owns: list[Presence]) -> None:
    """Check that all processes hear each other, and that a new one is let in."""
    for own in owns:
        assert own._thread.is_alive()
        assert own.ends == {}
    late = Presence(HASTY)
    try:
        for own in owns:
            late.connect(own.address)
            own.connect(late.address)
        until(lambda: all(own.is_open(late.name) and late.is_open(own.name) for own in owns))
        assert late.ends == {}
    finally:
        late.close()
    until(lambda: all(late.name in own.ends for own in owns))


@pytest.mark.parametrize(
    "data",
    [b"[" * 60_000 + b"\n", b"{" * 50, b"\n" * 70_000, os.urandom(4000), b"", b"GET / HTTP/1.1\r\n\r\n",
     b'{"secret": 1, "name": []}\n' * 3, hello("0" * 32, "0" * 16)],
)  # fmt: skip
def test_data_of_a_stranger_ends_only_its_own_connection(data: bytes) -> None:
    with members(2) as owns, ExitStack() as open_channels:
        for _ in range(3):
            channel = open_channels.enter_context(connected(owns[0]))
            channel.sendall(data)
            channel.settimeout(10)
            with suppress(ConnectionResetError):  # It had sent more than was read.
                assert channel.recv(1) == b""
        assert_alive(owns)


def test_idle_and_slow_strangers_take_few_places_and_little_time() -> None:
    with members(2) as owns, ExitStack() as open_channels:
        channels = [open_channels.enter_context(connected(owns[0])) for _ in range(60)]
        before, start, most = cpu_seconds(owns[0]), time.monotonic(), 0
        while time.monotonic() < start + 2:
            for channel in channels[::2]:
                with suppress(OSError):  # Closed by the other side.
                    channel.send(b"a")
            most = max(most, len(owns[0]._strangers))
            time.sleep(0.02)
        assert 0 < most <= HASTY.strangers
        assert cpu_seconds(owns[0]) - before < 0.2
        assert_alive(owns)


def test_a_shortage_of_descriptors_is_waited_for_without_spinning(monkeypatch: pytest.MonkeyPatch) -> None:
    with members(2) as owns:
        accept, tried = Strangers.accept, []

        def counted(strangers: Strangers) -> None:
            tried.append(time.monotonic())
            accept(strangers)

        monkeypatch.setattr(Strangers, "accept", counted)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        os.close(free := os.dup(0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, limits[1]))  # One descriptor, for the stranger's own end.
        try:
            with connected(owns[0]):
                time.sleep(4 * HASTY.stranger)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert 0 < len(tried) <= 6
        assert_alive(owns)


def test_a_member_that_is_slow_or_was_taken_for_a_stranger_is_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    with members(1) as (own,):
        frame = hello(Address.parse(own.address).secret, "f" * 16)
        with connected(own) as channel:
            for byte in frame:
                channel.sendall(bytes([byte]))
                time.sleep(0.002)
            until(lambda: own.is_open("f" * 16))
    identify, turned_away = Strangers.identify, []

    def late(strangers: Strangers, link: Any) -> str | None:
        if len(turned_away) < 2:
            turned_away.append(link)
            strangers._deadlines.pop(link)
            strangers._selector.unregister(link.channel)
            return None
        return identify(strangers, link)

    monkeypatch.setattr(Strangers, "identify", late)
    with members(2) as owns:
        until(lambda: len(turned_away) == 2)
        assert_alive(owns)


@pytest.mark.parametrize(
    "line",
    [b"[]", b"[" * 60_000, b"\xff", b'{"end": 1}', b'{"left": "x", "group": "g", "counts": ["a", {}]}', b'{"ask": 1}',
     b"x" * ((1 << 20) + 70_000), b'{"held": "t", "state": {"rank": 0}}'],
    ids=lambda line: str(line[:20]),
)  # fmt: skip
def test_a_member_that_sends_a_malformed_message_is_named_and_not_lost(line: bytes) -> None:
    with members(3) as owns:
        watch = FailureWatch(0, (7, 3, 5), None, "0", SOON, lambda: owns[0])
        watch.presence, watch.id, watch.names = owns[0], "g", [own.name for own in owns]
        owns[0].add(watch)
        link = owns[1]._links[owns[0].name]
        link.channel.setblocking(True)
        link.channel.sendall(line + b"\n")
        until(lambda: owns[1].name in owns[0].ends)
        assert not owns[0].ends[owns[1].name].is_closed
        assert all(own._thread.is_alive() for own in owns)
        assert owns[0].is_open(owns[1].name)
        assert owns[0].is_open(owns[2].name)
        why = watch._find_cause(watch.issue("allreduce"), late=False)
        assert (
            why == "; rank 3 sent a message that is not of this version of synth; all ranks must run the same version"
        )


@pytest.mark.parametrize(
    "value", [b"", b"\xff\xfe", b"x", b"[" * 60_000, b"a b c d e f", "ä".encode(), b"0" * 16 + b" host 1 2 3"]
)
def test_an_entry_of_the_store_that_no_rank_wrote_is_named(value: bytes) -> None:
    store = dist.HashStore()
    store.set("1/at/1", value)
    own = Presence(HASTY)
    try:
        with pytest.raises(
            RuntimeError, match="the store's 1/at/1 is not the address of rank 3; it must be written by the same"
        ):
            meet(own, store, 0, (7, 3), timedelta(seconds=5), lambda _: None)
    finally:
        own.close()


def test_the_port_is_on_loopback_where_all_ranks_are_on_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with members(2) as owns:
        for own in owns:
            assert own._strangers.server.getsockname()[0] == "127.0.0.1"
            assert Address.parse(own.address).host not in ("", "-")
        elsewhere = Address.parse(owns[0].address)
        owns[1]._reach(Address("0" * 16, elsewhere.secret, elsewhere.ip, elsewhere.port, "another-host"))
        assert not owns[1].is_open("0" * 16)
        assert "0" * 16 not in owns[1].ends
