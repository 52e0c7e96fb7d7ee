"""Collectives of torch.distributed on networks shaped with tc: Gloo's own algorithms beside ours, in one run.

    sudo python results/torch_shaped.py [--quick]

makes torch_shaped.md. Each rank is a process in a network namespace of its own; namespaces are joined by veth pairs as
the network's links say, each direction held to its rate by tc tbf. What has no link of its own is routed by the
shortest way, as IP does. Needs root, ip and tc, and PyTorch; where one is missing it says so and writes nothing.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from measure import grid, page, synth, write

from runtime.torch_choice import Call, Chooser

THICK, THIN = 100, 25  # Mbit/s
GOODPUT = 1448 / 1514  # of what tbf counts, TCP's payload
ALPHA_US = 200  # about what a message takes from process to process here
OPS = ("allreduce", "allgather", "alltoall")
Links = dict[tuple[int, int], int]  # pair of ranks → Mbit/s each way


def networks() -> dict[str, tuple[int, Links]]:
    """Name → ranks and links."""
    halves: Links = {(a + h, b + h): THICK for h in (0, 4) for a in range(4) for b in range(a + 1, 4)}
    mesh: Links = {(r, r + 1): THICK for r in range(9) if r % 3 < 2} | {(r, r + 3): THICK for r in range(6)}
    return {
        "ring of 8": (8, {(r, (r + 1) % 8): THICK for r in range(8)}),
        "2 × 4, thin between": (8, halves | {(r, r + 4): THIN for r in range(4)}),
        "mesh 3 × 3": (9, mesh),
    }


def topology(ranks: int, links: Links) -> str:
    """As synth reads it."""
    lines = [
        'name = "shaped"',
        f"ranks = {ranks}",
        'summary = "namespaces joined by shaped links"',
        'source = "tc tbf"',
    ]
    for (a, b), rate in links.items():
        gbs = rate / 8000 * GOODPUT
        lines += [
            "",
            "[[links]]",
            f'pairs = "{a}>{b}"',
            "both = true",
            f"gbs = {gbs:.6f}",
            f"alpha_us = {ALPHA_US}",
        ]
    return "\n".join(lines) + "\n"


def command(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True, capture_output=True)


@contextmanager
def built(ranks: int, links: Links) -> Iterator[list[str]]:
    """The namespaces' names; they are gone afterwards."""
    spaces = [f"synth-{os.getpid()}-{r}" for r in range(ranks)]
    near: dict[int, list[int]] = {r: [] for r in range(ranks)}
    try:
        for r, space in enumerate(spaces):
            command("ip", "netns", "add", space)
            inside = ("ip", "-n", space)
            command(*inside, "link", "set", "lo", "up")
            command(
                *inside, "link", "add", "me", "type", "veth", "peer", "name", "myself"
            )  # holds the address
            command(*inside, "addr", "add", f"10.77.0.{r + 1}/32", "dev", "me")
            command(*inside, "link", "set", "me", "up")
            command("ip", "netns", "exec", space, "sysctl", "-qw", "net.ipv4.ip_forward=1",
                    "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.default.rp_filter=0")  # fmt: skip
        for (a, b), rate in links.items():
            command("ip", "link", "add", f"e{b}", "netns", spaces[a], "type", "veth",
                    "peer", "name", f"e{a}", "netns", spaces[b])  # fmt: skip
            for one, other in ((a, b), (b, a)):
                near[one].append(other)
                command("ip", "-n", spaces[one], "link", "set", f"e{other}", "up")
                command("tc", "-n", spaces[one], "qdisc", "add", "dev", f"e{other}", "root", "tbf",
                        "rate", f"{rate}mbit", "burst", "128kb", "limit", "4mb")  # fmt: skip
        for r in range(ranks):
            for goal, first in first_steps(r, near).items():
                command("ip", "-n", spaces[r], "route", "add", f"10.77.0.{goal + 1}/32", "via", f"10.77.0.{first + 1}",
                        "dev", f"e{first}", "onlink", "src", f"10.77.0.{r + 1}")  # fmt: skip
        yield spaces
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)


def first_steps(rank: int, near: dict[int, list[int]]) -> dict[int, int]:
    """Goal → the neighbour by way of which it is reached in the fewest steps."""
    first = {other: other for other in near[rank]}
    ready = deque(near[rank])
    while ready:
        at = ready.popleft()
        for other in near[at]:
            if other != rank and other not in first:
                first[other] = first[at]
                ready.append(other)
    return first


def worker(rank: int, ranks: int, store: str, result: Path, sizes: list[int], turns: int) -> None:
    """One rank: every collective and size with Gloo and with ours in turn; rank 0 writes the slowest rank's times."""
    import torch
    import torch.distributed as dist

    import runtime.process_group as ours

    torch.set_num_threads(1)
    dist.init_process_group(
        "cpu:synth,cuda:synth",
        init_method=f"file://{store}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=300),
    )
    rows: list[dict[str, Any]] = []
    for op in OPS:
        for size in sizes:
            count = size // 4 // ranks * ranks
            choice = ""
            seconds: dict[str, list[float]] = {"gloo": [], "auto": []}
            for turn in range(turns + 1):
                for mode, took in seconds.items():
                    given = torch.full((count,), float(rank + 1))
                    made = torch.zeros(count)
                    dist.barrier()
                    begun = time.perf_counter()
                    with ours.using(mode):
                        if op == "allreduce":
                            dist.all_reduce(given)
                        elif op == "allgather":
                            dist.all_gather_into_tensor(made, given[: count // ranks])
                        else:
                            dist.all_to_all_single(made, given)
                    if mode == "auto":
                        choice = ours.tally.last(op)
                    end = torch.tensor([time.perf_counter() - begun], dtype=torch.float64)
                    every = torch.arange(1, ranks + 1).float()
                    want = (
                        torch.full((count,), float(every.sum()))
                        if op == "allreduce"
                        else every.repeat_interleave(count // ranks)
                    )
                    assert torch.equal(given if op == "allreduce" else made, want), (
                        f"{op} of {size} with {mode}"
                    )
                    with ours.using("gloo"):
                        dist.all_reduce(end, dist.ReduceOp.MAX)
                    if turn:
                        took.append(end.item())
            rows.append(
                {"op": op, "size": size, "by": choice} | {k: statistics.median(v) for k, v in seconds.items()}
            )
    if rank == 0:
        result.write_text(json.dumps(rows))
    dist.destroy_process_group()


def measured(name: str, ranks: int, links: Links, sizes: list[int], turns: int) -> list[list[object]]:
    """A network's rows."""
    with tempfile.TemporaryDirectory() as folder:
        topo, library, result = (Path(folder) / part for part in ("shaped.toml", "library", "rows.json"))
        topo.write_text(topology(ranks, links))
        for op in OPS:
            for more in ((), ("--chunks", 8)):  # where a file would be too long: fewer chunks
                words = synth(op, "--topo", topo, "--budget", "20s", *more, "--out", library)
                subprocess.run(words, check=True, capture_output=True)
                calls = [
                    Call(op, size // 4 // ranks * ranks * 4, "float32", tuple(range(ranks))) for size in sizes
                ]
                index = library / "index.json"
                if index.exists() and all(Chooser(library=library).choose(call).program for call in calls):
                    break
        plain = dict(os.environ) | {
            "GLOO_SOCKET_IFNAME": "me",
            "SYNTH_LIBRARY": str(library),
            "OMP_NUM_THREADS": "1",
        }
        with built(ranks, links) as spaces:
            told = [str(ranks), f"{folder}/store", str(result), ",".join(map(str, sizes)), str(turns)]
            workers = [
                subprocess.Popen(
                    ["ip", "netns", "exec", space, sys.executable, __file__, "--worker", str(r), *told],
                    env=plain,
                )
                for r, space in enumerate(spaces)
            ]
            ends = [process.wait() for process in workers]
            if any(ends):
                raise SystemExit(f"{name}: a rank failed")
        rows = json.loads(result.read_text())
    return [
        [name, row["op"], f"{row['size'] >> 20} MiB", row["by"], f"{row['gloo'] * 1e3:.0f}", f"{row['auto'] * 1e3:.0f}",
         row["gloo"] / row["auto"]]
        for row in rows
    ]  # fmt: skip


def main() -> None:
    lacks = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    lacks += ["root"] if os.geteuid() else []
    lacks += [] if find_spec("torch") else ["PyTorch"]
    if lacks:
        print(f"torch_shaped: needs {', '.join(lacks)}; nothing was measured")
        return
    quick = "--quick" in sys.argv
    rows: list[list[object]] = []
    for name, (ranks, links) in networks().items():
        rows += measured(
            name, ranks, links, [1 << 20] if quick else [1 << 20, 4 << 20, 16 << 20], 1 if quick else 3
        )
        print(*rows[-3:], sep="\n")
    gains = [float(str(row[-1])) for row in rows]
    mean = math.exp(statistics.fmean(map(math.log, gains)))
    told = f"Geometric mean of the gain {mean:.2f}, the least {min(gains):.2f}."
    if quick:
        print(told)
        return
    titles = ["network", "collective", "size", "ours", "Gloo ms", "ours ms", "gain"]
    table = grid(titles, [[*row[:-1], f"{row[-1]:.2f}"] for row in rows])
    how = (
        f"Links of {THICK} Mbit/s each way ({THIN} between the halves), a namespace a rank, median of 3 runs of the"
        " slowest rank. Size: of the whole buffer. Ours: from a library made for the network before."
    )
    write(__file__, page(__file__, "torch.distributed on shaped networks", [how, table, told]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        r, n, where, to, listed, times = sys.argv[2:]
        worker(int(r), int(n), where, Path(to), [int(size) for size in listed.split(",")], int(times))
    else:
        main()
