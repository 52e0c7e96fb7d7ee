"""A library only gets better: a good answer, then a worse, narrower, interrupted, simultaneous or other one beside it.

    python -m results.scripts.kept [--every N] [--only KIND …]

makes kept.md. Each pair writes into one folder: a question answered well, then again in a way that is likely to be
worse. A reader of its own looks up the file for every size and form in `index.json`, before and after, and `synth
simulate` says what each takes. The same is done with `--replace`, which is what was always done before: the table must
see it as worse.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from results.measuring.measure import grid, page, synth, write
from synth.cli import cli

QUESTIONS = (
    ("reducescatter", "--topo", "ring:4"),
    ("allreduce", "--topo", "dgx1", "--group", "0-3"),
    ("allgather", "--topo", "torus:2x3", "--target", "mscclpp"),
    ("broadcast", "--topo", "dgx1", "--group", "0-3", "--root", "2"),
    ("alltoall", "--topo", "ring:5"),
    ("allreduce", "--topo", "ring:4", "--target", "mscclpp"),
    ("alltonext", "--topo", "ring:5", "--target", "msccl"),
    ("allreduce", "--topo", "dgx-a100", "--group", "0,2,4,6"),
)
GOOD = ("--budget", "4s")
WORSE = {  # what comes second, by kind
    "worse": ("--budget", "100ms", "--engine", "baseline"),
    "narrower": ("--budget", "1s", "--engine", "route", "--size", "960K"),
    "interrupted": ("--budget", "20s"),
    "simultaneous": ("--budget", "1s", "--engine", "route"),
    "other shape": ("--budget", "2s", "--steps", "4"),
}
INTERRUPT_S = 0.9  # after the start of the search, whatever it has by then
SIZES = tuple(base << e for e in range(9, 30) for base in (2, 3))  # bytes of a block, of which a message has some
ELEMENT_BYTES = 4

Times = dict[tuple[int, bool], float]


def call(*arguments: str) -> str:
    """What a command printed; in this process, where all is loaded."""
    return CliRunner().invoke(cli, list(arguments)).output


def started(arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    """A command in a process of its own."""
    return subprocess.Popen(synth(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def second(kind: str, question: Sequence[str], folder: str, extra: Sequence[str] = ()) -> None:
    """Answer again, and let that go wrong in the way that `kind` says."""
    again = [*question, *WORSE[kind], *extra, "--out", folder]
    if kind == "interrupted":
        process = started(again)
        time.sleep(start_s() + INTERRUPT_S)
        process.send_signal(signal.SIGINT)
        process.wait()
    elif kind == "simultaneous":
        narrow = [*question, *WORSE["narrower"], *extra, "--out", folder]
        for process in [started(again), started(narrow)]:
            process.wait()
    else:
        call(*again)


def start_s(known: list[float] = []) -> float:  # noqa: B006 - measured once
    """Seconds that a command takes to load, here and now."""
    if not known:
        begun = time.monotonic()
        subprocess.run(synth("allreduce", "--topo", "ring:2", "--target", "none", "--out", tempfile.mkdtemp()),
                       stdout=subprocess.DEVNULL, check=False)  # fmt: skip
        known.append(time.monotonic() - begun)
    return known[0]


def times(folder: str, question: Sequence[str]) -> tuple[Times, list[dict[str, Any]]]:
    """In µs, of what the index has for each size and form; its entries."""
    index = Path(folder, "index.json")
    if not index.exists():
        return {}, []
    entries = json.loads(index.read_text())["algorithms"]
    topology = question[question.index("--topo") + 1]
    found: Times = {}
    for entry in entries:
        blocks = len(entry["group"]) if entry["collective"] in ("allgather", "reducescatter", "alltoall") else 1
        unit = entry["divides"] * (1 if entry["target"] == "mscclpp" else ELEMENT_BYTES)
        sizes = [blocks * size for size in SIZES]
        most = entry["max_bytes"]
        mine = [s for s in sizes if entry["min_bytes"] <= s and (most is None or s <= most) and s % unit == 0]
        for size, us in zip(mine, simulated(Path(folder, entry["file"]), topology, mine), strict=True):
            assert (size, entry["inplace"]) not in found, "two files for one size"
            found[size, entry["inplace"]] = us
    return found, entries


def simulated(file: Path, topology: str, sizes: Sequence[int]) -> list[float]:
    """What `synth simulate` says, in µs."""
    if not sizes:
        return []
    told = json.loads(call("simulate", str(file), "--topo", topology, "--sizes", ",".join(map(str, sizes)), "--json"))
    assert told["status"] == "right", told
    return [row["time_us"] for row in told["sizes"]]


def worse(before: Times, after: Times) -> tuple[int, int, float]:
    """At how many sizes and forms the time is longer, at how many there is no file now; the longest / before."""
    longer = [after[at] / us for at, us in before.items() if at in after and after[at] > us * (1 + 1e-9)]
    return len(longer), sum(at not in after for at in before), max(longer, default=1.0)


def better(before: Times, after: Times) -> int:
    """At how many sizes and forms the time is shorter, or there is a file now."""
    return sum(us < before.get(at, float("inf")) * (1 - 1e-9) for at, us in after.items())


def pair(kind: str, question: Sequence[str]) -> tuple[object, ...]:
    """A row: what was worse and better after the second answer, and after the same one with --replace."""
    with tempfile.TemporaryDirectory() as folder:
        call(*question, *GOOD, "--out", folder)
        had, entries = times(folder, question)
        second(kind, question, folder)
        now, merged = times(folder, question)
        names = {entry["file"] for entry in merged}
        files = {p.relative_to(folder).as_posix() for p in Path(folder).rglob("*") if p.suffix in (".xml", ".json")}
        stray = len(files - names - {"index.json"}) + len(names - files)
        second(kind, question, folder, ("--replace",))
        planted, _ = times(folder, question)
    longer, gone, _ = worse(had, now)
    slower, lost, most = worse(now, planted)
    counts = (len(had), longer, gone, better(had, now), stray, slower, lost, f"{most:.2f} ×")
    return kind, " ".join(question), f"{len(entries)} → {len(merged)}", *counts


def main(arguments: Sequence[str] | None = None) -> None:
    """Make all pairs, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each N-th pair only")
    parser.add_argument("--only", nargs="+", choices=WORSE, metavar="KIND")
    given = parser.parse_args(arguments)
    asked = [(kind, question) for kind in given.only or WORSE for question in QUESTIONS]
    rows = []
    for kind, question in asked[:: given.every]:
        rows.append(pair(kind, question))
        print(rows[-1], flush=True)
    lost, seen = sum(bool(row[4] or row[5] or row[7]) for row in rows), sum(bool(row[8] or row[9]) for row in rows)
    about = (
        f"{len(rows)} of {len(asked)} pairs: a good answer ({' '.join(GOOD)}), then one of another kind into the same"
        f" folder. Sizes are those of blocks of 2^k and 3·2^k bytes, 1 KiB to 1.5 GiB, of float32, in both forms. In"
        f" {lost} pairs anything is slower than before, or has no file any more, or a file is in no entry. The same"
        f" second answer with --replace, which is what writing did without a look at what was there: {seen} of"
        f" {len(rows)} pairs are then worse."
    )
    kinds = grid(("kind", "second answer"), [(kind, " ".join(words)) for kind, words in WORSE.items()])
    titles = (
        "kind", "question", "files", "served", "slower", "lost", "faster or new", "stray files",
        "--replace: slower", "lost", "at most",
    )  # fmt: skip
    write(__file__, page(__file__, "Libraries that are written to again", [about, kinds, grid(titles, rows)]))


if __name__ == "__main__":
    main()
