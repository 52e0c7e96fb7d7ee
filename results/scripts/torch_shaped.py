"""Compare collectives of torch.distributed on networks shaped with tc: Gloo's own algorithms and ours, in one run.

    sudo python -m results.scripts.torch_shaped [--quick]

makes torch_shaped.md. The script calibrates each network, searches on the measured network, tunes, and then runs the
table's choices and Gloo. It also compares every schedule's predicted time with the measured one. Each rank is a process
in its own network namespace. Veth pairs join namespaces as the network's links state, and tc tbf holds each direction
to its rate. Messages between ranks without a link take the shortest path, by IP routes. Needs root, ip and tc, and
PyTorch; without one of them the script says so and writes nothing.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from emit.library.index import load_index
from emit.msccl.read import read_msccl
from emit.timing.predict import Predictor
from results.measuring.measure import grid, page, synth, write
from results.measuring.shaped import Links, built, everywhere, missing, topology
from runtime.measure.tune import LEAST_PAIRS
from runtime.torch.choice import Chooser, Method
from runtime.torch.table import SPLIT_ALLTOALL, TableCall
from topologies.load import load

THICK, THIN = 50, 12.5  # Mbit/s
ALPHA_US = 200  # Approximate time of a message between processes; `synth calibrate` measures it.
OPS = ("allreduce", "allgather", "alltoall")
BUDGET = "20s"
UNBOUND = 1 << 20  # FIFO slots; messages do not wait for slots here.


def networks() -> dict[str, tuple[int, Links]]:
    """Return the ranks and links of each network, by name."""
    halves: Links = {(a + h, b + h): THICK for h in (0, 4) for a in range(4) for b in range(a + 1, 4)}
    mesh: Links = {(r, r + 1): THICK for r in range(9) if r % 3 < 2} | {(r, r + 3): THICK for r in range(6)}
    return {
        "ring of 8": (8, {(r, (r + 1) % 8): THICK for r in range(8)}),
        "2 × 4, thin between": (8, halves | {(r, r + 4): THIN for r in range(4)}),
        "mesh 3 × 3": (9, mesh),
    }


def worker(result: Path, sizes: list[int], turns: int) -> None:
    """Run one rank: measure every collective and size with Gloo and with the table's choice, alternately."""
    from runtime.measure.over_torch import Bench, Case, joined

    rows: list[dict[str, Any]] = []
    with joined() as (me, world):
        for op in OPS:
            for size in sizes:
                bench = Bench(Case(op, size, ranks=tuple(range(world))), [Method("gloo"), Method("auto")])
                for _ in range(turns):
                    bench.measure_once()
                gloo, auto = bench.measured
                if gloo.wrong or auto.wrong:
                    raise SystemExit(f"{op} of {size} bytes has wrong elements")
                rows.append(
                    {"op": op, "size": size, "by": auto.algorithm, "gloo": gloo.median_s, "auto": auto.median_s}
                )
    if me == 0:
        result.write_text(json.dumps(rows))


def library_for(
    topo: Path, library: Path, ranks: int, sizes: list[int], ops: Sequence[str] = OPS, budget: str = BUDGET
) -> None:
    """Build a library of algorithms for collectives on the measured network."""
    for op in ops:
        for options in ((), ("--chunks", 8)):  # Fewer chunks are for algorithms whose file would be too long.
            words = synth(op, "--topo", topo, "--budget", budget, *options, "--out", library)
            subprocess.run(words, check=True, capture_output=True)
            calls = [TableCall(op, size // 4 // ranks * ranks * 4, "float32", tuple(range(ranks))) for size in sizes]
            index = library / "index.json"
            if index.exists() and all(
                Chooser("synth", library).choose(call).reason == "in the library" for call in calls
            ):
                break


def predicted(topo: Path, library: Path, table: Path) -> list[dict[str, Any]]:
    """Return the predicted and measured time of each schedule of the library at each size."""
    network = load(topo)
    programs = {entry.path.stem: read_msccl(entry.path) for entry in load_index(library)}
    rows = []
    for row in json.loads(table.read_text())["measured"]:
        if row["algorithm"] in programs:
            program = programs[row["algorithm"]]
            time_us = Predictor(program, network, fifo_depth=UNBOUND).time_us(row["size_bytes"])
            rows.append(row | {"predicted_us": time_us})
    return rows


@dataclass(frozen=True)
class Tuned:
    """What the steps of the PyTorch guide have written for a network.

    Attributes:
        topo: The measured network.
        library: Folder of the algorithms; None if there are none.
        table: Table of the methods that were measured to be fastest.
    """

    topo: Path
    library: Path | None
    table: Path

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment variables of a job that uses the network, the library and the table."""
        library = {} if self.library is None else {"SYNTH_LIBRARY": str(self.library)}
        return {**library, "SYNTH_TABLE": str(self.table), "SYNTH_TOPOLOGY": str(self.topo)}


def tune(
    spaces: list[str],
    folder: Path,
    links: Links,
    sizes: list[int],
    ops: Sequence[str] = OPS,
    turns: int = LEAST_PAIRS,
    budget: str = BUDGET,
    calibrates: bool = True,
    nodes: Sequence[str] = (),
) -> Tuned:
    """Measure a network, search algorithms for it, and measure which of them are faster than Gloo.

    Args:
        spaces: Namespaces of the ranks.
        folder: Folder for the files.
        links: Links of the network.
        sizes: Sizes to tune, in bytes.
        ops: Collectives.
        turns: Number of pairs of runs of each size.
        budget: Time of the search for each collective.
        calibrates: Whether the links are measured; otherwise they are as tc shapes them.
        nodes: Nodes, as texts of ranks, if the network has some.
    """
    ranks = len(spaces)
    nominal = folder / "wired.toml"
    topo = folder / "shaped.toml" if calibrates else nominal
    searched = [op for op in ops if op != SPLIT_ALLTOALL]  # Files are for sizes that are known beforehand.
    made = Tuned(topo, folder / "library" if searched else None, folder / "table.json")
    stated_nodes = f"nodes = {json.dumps(list(nodes))}\n" if nodes else ""
    nominal.write_text(stated_nodes + topology(ranks, links, ALPHA_US))
    cli = [sys.executable, "-m", "synth"]
    if calibrates:
        everywhere(spaces, [*cli, "calibrate", "--topo", nominal, "-o", topo], {})
    if made.library is not None:
        library_for(made.topo, made.library, ranks, sizes, searched, budget)
    asked = ["--ops", ",".join(ops), "--sizes", ",".join(map(str, sizes)), "--turns", max(turns, LEAST_PAIRS)]
    given = [] if made.library is None else ["--library", made.library]
    words: list[object] = [*cli, "tune", *asked, *given, "-o", made.table]
    everywhere(spaces, words, {"SYNTH_TOPOLOGY": str(topo)})
    return made


def measured(
    ranks: int, links: Links, sizes: list[int], turns: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows of a network with Gloo's and our times, and its rows with predicted times."""
    with tempfile.TemporaryDirectory() as folder, built(ranks, links) as spaces:
        made, result = tune(spaces, Path(folder), links, sizes, turns=turns), Path(folder) / "rows.json"
        listed = ",".join(map(str, sizes))
        words: list[object] = [sys.executable, "-m", "results.scripts.torch_shaped", "--worker", result, listed, turns]
        everywhere(spaces, words, made.variables)
        return json.loads(result.read_text()), predicted(made.topo, Path(folder) / "library", made.table)


def main() -> None:
    """Measure the networks, and write the table."""
    lacks = missing()
    lacks += [] if find_spec("torch") else ["PyTorch"]
    if lacks:
        print(f"torch_shaped needs {', '.join(lacks)}; nothing was measured")
        return
    quick = "--quick" in sys.argv
    sizes, turns = ([1 << 20], 1) if quick else ([1 << 20, 4 << 20, 16 << 20], 5)
    gains: list[list[object]] = []
    ratios: list[float] = []
    times: list[list[object]] = []
    ranked: list[bool] = []
    for name, (ranks, links) in networks().items():
        rows, forecast = measured(ranks, links, sizes, turns)
        for row in rows:
            ratios.append(row["gloo"] / row["auto"])
            gains.append([name, row["op"], f"{row['size'] >> 20} MiB", row["by"], f"{row['gloo'] * 1e3:.0f}",
                          f"{row['auto'] * 1e3:.0f}", f"{ratios[-1]:.2f}"])  # fmt: skip
        for op in OPS:
            for size in sorted({row["size_bytes"] for row in forecast if row["collective"] == op}):
                schedules = [row for row in forecast if (row["collective"], row["size_bytes"]) == (op, size)]
                fastest = min(schedules, key=lambda row: float(row["time_us"]))
                first = sorted(schedules, key=lambda row: float(row["predicted_us"]))[:3]
                ranked.append(fastest in first)
                for row in schedules:
                    times.append([name, row["algorithm"], f"{size / 2**20:.3g} MiB", f"{row['predicted_us'] / 1e3:.1f}",
                                  f"{row['time_us'] / 1e3:.1f}", row["time_us"] / row["predicted_us"] - 1])  # fmt: skip
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    error = statistics.median(abs(float(str(row[-1]))) for row in times)
    summary = [
        f"The geometric mean of the gains is {mean:.2f}, the least gain {min(ratios):.2f}.",
        f"The median error of the prediction is {100 * error:.1f} % ({len(times)} pairs). The fastest measured"
        f" schedule is among the three fastest by prediction in {sum(ranked)} of {len(ranked)} cases.",
    ]
    first_table = grid(["network", "collective", "size", "table's choice", "Gloo ms", "ours ms", "gain"], gains)
    second = grid(
        ["network", "schedule", "size", "predicted ms", "measured ms", "error"],
        [[*row[:-1], f"{100 * float(str(row[-1])):+.0f} %"] for row in times],
    )
    if quick:
        print(first_table, second, *summary, sep="\n\n")
        return
    about = (
        f"Links have {THICK} Mbit/s each way ({THIN} between the halves), and each rank has a namespace. Times are"
        f" medians of {turns} runs of the slowest rank; a size is that of the whole buffer. The links are calibrated,"
        " a library is searched on the measured network, the table is tuned, and then Gloo and the table's choice run"
        " alternately."
    )
    write(
        __file__,
        page(__file__, "torch.distributed on shaped networks", [about, first_table, summary[0], second, summary[1]]),
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        to, listed, times_ = sys.argv[2:]
        worker(Path(to), [int(size) for size in listed.split(",")], int(times_))
    else:
        main()
