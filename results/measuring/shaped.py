"""Networks of namespaces on one host: veth pairs are links, and tc tbf holds each direction to its rate.

Vertices from `ranks` on are switches: namespaces that only forward. Messages between vertices without a common link
take the shortest path, by IP routes. Needs root, ip and tc.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

MTU = 9000  # Bytes. With fewer packets, two cores keep up with all links at once.
GOODPUT = (MTU - 52) / (MTU + 14)  # Share of TCP's payload in the bytes that tbf counts.
# Long queues in front of a slow link delay the acknowledgements of the other direction.
QUEUES = ("net.ipv4.tcp_limit_output_bytes=32768", "net.ipv4.tcp_slow_start_after_idle=0")
# With small windows, a switch's queue has room for all bytes in flight of the connections that meet there.
SMALL_WINDOWS = ("net.ipv4.tcp_rmem=4096 65536 262144", "net.ipv4.tcp_wmem=4096 65536 262144")
Links = dict[tuple[int, int], float]  # Pair of vertices → Mbit/s each way.


def missing() -> list[str]:
    """Return the tools and rights that this host lacks."""
    lacks = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    return lacks + (["root"] if os.geteuid() else [])


def topology(ranks: int, links: Links, alpha_us: float) -> str:
    """Return the text of a topology file that describes the network.

    Args:
        ranks: Number of ranks; vertices from this number on are switches.
        links: Rate of each link in Mbit/s each way.
        alpha_us: Latency of a message in µs. Each link of a rank has half of it, links between switches have none, and
            a link between two ranks has all of it.
    """
    above = sorted({v for pair in links for v in pair if v >= ranks})
    lines = [
        'name = "shaped"',
        f"ranks = {ranks}",
        'summary = "namespaces joined by shaped links"',
        'source = "tc tbf"',
        "switches = [" + ", ".join(f'"s{v}"' for v in above) + "]",
    ]
    for pair, rate in links.items():
        ends = sum(v < ranks for v in pair)
        a, b = (str(v) if v < ranks else f"s{v}" for v in pair)
        lines += [
            "",
            "[[links]]",
            f'from = "{a}"',
            f'to = "{b}"',
            "both = true",
            f"gbs = {rate / 8000 * GOODPUT:.6f}",
            f"alpha_us = {ends / 2 * alpha_us:.1f}",
        ]
    return "\n".join(lines) + "\n"


def command(*words: object) -> None:
    """Run a command and raise CalledProcessError if it fails."""
    subprocess.run([str(word) for word in words], check=True, capture_output=True)


@contextmanager
def built(ranks: int, links: Links, burst_kb: int = 32, settings: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """Build the network, yield the names of the ranks' namespaces, and remove the network afterwards.

    Args:
        ranks: Number of ranks.
        links: Rate of each link in Mbit/s each way.
        burst_kb: Kilobytes of a burst that an idle link passes without delay.
        settings: Further settings for sysctl.
    """
    vertices = 1 + max(v for pair in links for v in pair)
    spaces = [f"synth-{os.getpid()}-{v}" for v in range(vertices)]
    near: dict[int, list[int]] = {v: [] for v in range(vertices)}
    try:
        for r, space in enumerate(spaces):
            command("ip", "netns", "add", space)
            inside = ("ip", "-n", space)
            command(*inside, "link", "set", "lo", "up")
            command(
                *inside, "link", "add", "me", "type", "veth", "peer", "name", "myself"
            )  # This device has the rank's address.
            command(*inside, "addr", "add", f"10.77.0.{r + 1}/32", "dev", "me")
            command(*inside, "link", "set", "me", "mtu", MTU, "up")
            command("ip", "netns", "exec", space, "sysctl", "-qw", "net.ipv4.ip_forward=1",
                    "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.default.rp_filter=0",
                    *QUEUES, *settings)  # fmt: skip
        for (a, b), rate in links.items():
            command("ip", "link", "add", f"e{b}", "netns", spaces[a], "type", "veth",
                    "peer", "name", f"e{a}", "netns", spaces[b])  # fmt: skip
            for near_end, far_end in ((a, b), (b, a)):
                near[near_end].append(far_end)
                command("ip", "-n", spaces[near_end], "link", "set", f"e{far_end}", "mtu", MTU, "up")
                command("tc", "-n", spaces[near_end], "qdisc", "add", "dev", f"e{far_end}", "root", "tbf",
                        "rate", f"{rate}mbit", "burst", f"{burst_kb}kb", "limit", "4mb")  # fmt: skip
        _route(spaces, near)
        yield spaces[:ranks]
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)


def cut(spaces: list[str], links: Links, pair: tuple[int, int]) -> None:
    """Remove a link, after which messages take the shortest paths over the other links.

    Args:
        spaces: Names of the namespaces of all vertices.
        links: Links of the network, with the one that is removed.
        pair: The ends of that link.
    """
    command("ip", "-n", spaces[pair[0]], "link", "del", f"e{pair[1]}")
    near: dict[int, list[int]] = {v: [] for v in range(len(spaces))}
    for a, b in links:
        if {a, b} != set(pair):
            near[a].append(b)
            near[b].append(a)
    _route(spaces, near)


def _route(spaces: list[str], near: dict[int, list[int]]) -> None:
    """Set the routes of all vertices, which are the shortest paths between neighbours in `near`."""
    for r, space in enumerate(spaces):
        for goal, first in first_steps(r, near).items():
            command("ip", "-n", space, "route", "replace", f"10.77.0.{goal + 1}/32", "via", f"10.77.0.{first + 1}",
                    "dev", f"e{first}", "onlink", "src", f"10.77.0.{r + 1}")  # fmt: skip


def first_steps(rank: int, near: dict[int, list[int]]) -> dict[int, int]:
    """Return the neighbour through which each goal is reached in the fewest steps, by goal."""
    first = {neighbour: neighbour for neighbour in near[rank]}
    ready = deque(near[rank])
    while ready:
        vertex = ready.popleft()
        for neighbour in near[vertex]:
            if neighbour != rank and neighbour not in first:
                first[neighbour] = first[vertex]
                ready.append(neighbour)
    return first


def started(spaces: list[str], words: list[object], about: dict[str, str]) -> list[subprocess.Popen[bytes]]:
    """Start the same command as a rank in each namespace and return the processes."""
    plain = dict(os.environ) | about | {
        "GLOO_SOCKET_IFNAME": "me",
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "10.77.0.1",
        "MASTER_PORT": "29500",
        "WORLD_SIZE": str(len(spaces)),
    }  # fmt: skip
    return [
        subprocess.Popen(
            ["ip", "netns", "exec", space, *map(str, words)],
            env=plain | {"RANK": str(r)},
            stdout=None if r == 0 else subprocess.DEVNULL,
        )
        for r, space in enumerate(spaces)
    ]


def everywhere(spaces: list[str], words: list[object], about: dict[str, str]) -> None:
    """Run the same command as a rank in each namespace.

    Raises:
        SystemExit: If a rank fails.
    """
    wait_for(started(spaces, words, about))


def wait_for(ranks: list[subprocess.Popen[bytes]]) -> None:
    """Wait until all ranks have ended; if one fails, kill the others.

    Raises:
        SystemExit: If a rank fails.
    """
    try:
        while any(process.poll() is None for process in ranks):
            if any(process.poll() for process in ranks):
                break
            time.sleep(0.1)
        if any(process.poll() != 0 for process in ranks):
            raise SystemExit(f"A rank of this command failed: {ranks[0].args!r}")
    finally:
        for process in ranks:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()
