"""Find the address at which a process listens, and write it as a text that other processes of the job can check."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SECRET_DIGITS, NAME_DIGITS = 32, 16  # Hexadecimal digits.
ANYWHERE = "-"  # In place of a host: processes of all hosts reach the address.
_LOOPBACK = "127.0.0.1"
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
        """Read an address from the text NAME SECRET IP PORT HOST that `str` makes of one.

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
    """Return True if the environment says that all processes of the job are on this host; False if none is known.

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


def own_ip() -> str:
    """Return the IPv4 address at which other processes reach this host.

    It is loopback if the environment says that all ranks are on this host. Otherwise it is, as for Gloo, the address of
    the interface of GLOO_SOCKET_IFNAME, or that of the host's name, or loopback.
    """
    if all_on_this_host():
        return _LOOPBACK
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(","):
            with suppress(OSError):
                request = struct.pack("256s", name.strip()[:15].encode())
                return socket.inet_ntoa(fcntl.ioctl(any_socket.fileno(), 0x8915, request)[20:24])  # SIOCGIFADDR
    with suppress(OSError), socket.socket() as probe:
        ip = socket.gethostbyname(socket.gethostname())
        probe.bind((ip, 0))
        return ip
    return _LOOPBACK
