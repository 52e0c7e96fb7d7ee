"""Programs that are executed and take the time of a network: measured against predicted, for whole frontiers.

    python -m results.scripts.emulated [--last SECONDS] [--budget 4s] [--largest BYTES]

makes emulated.md on CPU threads (the GPU's kernel behind its shim), or, where CuPy finds a GPU, gpu-NAME-emulated.md.
"""

from __future__ import annotations

import argparse
import itertools
import re
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from emit.formats import verify_file
from emit.goal import Goal
from emit.library.index import load_index
from emit.program import Program
from emit.timing.predict import Predictor
from results.measuring.measure import grid, page, run, synth, write
from runtime.bench import Settings, measure
from runtime.gpu.cuda import cupy
from runtime.gpu.executor import GpuExecutor
from runtime.gpu.pace import Pace
from tests.runtime.gpu.cpu_shim.shim import ShimExecutor, built
from topologies.errors import InputError
from topologies.load import load

NETWORKS = ("dgx1", "ndv2:2")  # the second: two of eight, one NIC of 12.5 GB/s each
COLLECTIVES = ("allreduce", "allgather", "alltoall")
CHUNKS = (0, 1, 2, 4)  # a block; 0: as the search finds best, a frontier
SIZES = (8 << 10, 256 << 10, 4 << 20, 64 << 20, 256 << 20)
APART = 1.01  # predictions that differ by less are no ranking
CPU = (
    0.5,
    4 << 20,
)  # seconds that the fastest of a size is stretched to for each MANY threadblocks, largest message
GPU = (0.02, 256 << 20)
MANY = 256

Make = Callable[[Program, Goal | None, Pace], GpuExecutor | ShimExecutor]


@dataclass(frozen=True)
class Found:
    """A schedule at a size: µs of the network; `due` is what the network itself would have taken as it was used."""

    question: str
    name: str
    blocks: int
    shared: int
    size_bytes: int
    slower: float
    predicted: float
    due: float
    measured: float
    wrong: int


def programs(folder: Path, network: str, collective: str, budget: str) -> list[tuple[str, Program, Goal | None]]:
    """A frontier's programs and those of given numbers of chunks, synthesised now."""
    found: dict[str, tuple[str, Program, Goal | None]] = {}
    for chunks in CHUNKS:
        out = folder / f"{collective}-{network.replace(':', '-')}-{chunks or 'any'}"
        asked = ["--chunks", chunks] if chunks else []
        made = run(synth(collective, "--topo", network, "--budget", budget, "--out", out, *asked))
        if made.code:
            raise SystemExit(f"emulated: synth {collective} ended with {made.code}: {made.err or made.out}")
        for entry in load_index(out):
            if entry.path.suffix == ".xml" and entry.path.stem not in found:
                goal = entry.goal()
                program = verify_file(entry.path, goal).program
                assert program is not None
                found[entry.path.stem] = entry.path.stem, program, goal
    return list(found.values())


def executed(
    make: Make,
    network: str,
    question: str,
    frontier: list[tuple[str, Program, Goal | None]],
    size: int,
    last: float,
) -> Iterator[Found]:
    """Every schedule at one size, all as much slower, so that the fastest takes `last` seconds or more."""
    topology = load(network)
    fastest = min(Predictor(program, topology).time_us(size) for _, program, _ in frontier)
    most = max(sum(len(gpu.threadblocks) for gpu in program.gpus) for _, program, _ in frontier)
    slower = max(1.0, last * 1e6 / fastest * max(1.0, most / MANY))
    for name, program, goal in frontier:
        pace = Pace(program, topology, slower=slower)
        executor = make(program, goal, pace)
        try:
            row = measure(program, goal, size, executor, Settings(iterations=1, warmup=0))
        except InputError as error:
            print(f"{name} at {size}: {error}", flush=True)
            continue
        took = executor.emulated
        assert took is not None
        predicted = pace.predictor.time_us(row.size_bytes)
        blocks = len(executor.encoded.blocks)
        print(f"{name} {size} B: predicted {predicted:.2f}, measured {took.measured_us:.2f} µs", flush=True)
        yield Found(
            question, name, blocks, pace.shared, row.size_bytes, slower, predicted, took.due_us, took.measured_us,
            row.wrong,
        )  # fmt: skip


def ranking(found: list[Found]) -> tuple[int, int, int, int]:
    """Pairs told apart by the prediction, how many of them measured so; sizes, at how many the same is fastest."""
    pairs = kept = sizes = same = 0
    by_size: dict[tuple[str, int], list[Found]] = defaultdict(list)
    for each in found:
        by_size[each.question, each.size_bytes].append(each)
    for rows in by_size.values():
        if len(rows) < 2:
            continue
        sizes += 1
        best = min(rows, key=lambda r: r.measured)
        same += best.predicted <= min(r.predicted for r in rows) * APART
        for one, other in itertools.combinations(sorted(rows, key=lambda r: r.predicted), 2):
            if other.predicted > one.predicted * APART:
                pairs += 1
                kept += one.measured < other.measured
    return pairs, kept, sizes, same


def error(found: Found) -> float:
    return found.measured / found.predicted - 1


def summary(found: list[Found]) -> str:
    rows = []
    for title, some in (
        *((network, [f for f in found if f.question.endswith(f"· {network}")]) for network in NETWORKS),
        ("all", found),
    ):
        errors = [abs(error(f)) for f in some]
        pairs, kept, sizes, same = ranking(some)
        rows.append(
            [title, len(some), f"{statistics.median(errors):.2%}", f"{max(errors):.2%}",
             f"{max(f.measured / f.due for f in some) - 1:.2%}", f"{kept} of {pairs}", f"{same} of {sizes}",
             sum(f.wrong for f in some)]
        )  # fmt: skip
    titles = ("network", "runs", "median error", "largest", "device behind, largest", "pairs in order",
              "fastest is the same", "#wrong")  # fmt: skip
    return grid(titles, rows)


def table(found: list[Found]) -> str:
    titles = ("question", "schedule", "threadblocks", "shared", "bytes", "slower", "predicted, µs", "due, µs",
              "measured, µs", "error", "#wrong")  # fmt: skip
    rows = [
        [f.question, f.name, f.blocks, f.shared, f.size_bytes, f"{f.slower:.0f}", f"{f.predicted:.2f}", f"{f.due:.2f}",
         f"{f.measured:.2f}", f"{error(f):+.2%}", f.wrong]
        for f in found
    ]  # fmt: skip
    return grid(titles, rows)


def where(folder: Path) -> tuple[str, str, tuple[float, int], Make]:
    """The table's name, what executes, how long and how large, and what makes an executor."""
    try:
        cp = cupy()
    except InputError as none:
        binary = built(folder, paced=True)
        words = f"Executed on CPU threads: the GPU's kernel behind its shim. No GPU took part ({none})."
        return "emulated", words, CPU, lambda p, g, pace: ShimExecutor(p, g, binary, pace=pace, limit_s=60)
    name = cp.cuda.runtime.getDeviceProperties(0)["name"].decode()
    script = f"gpu-{re.sub(r'[^A-Za-z0-9]+', '-', name).strip('-').lower()}-emulated"
    return script, f"Executed on a GPU: {name}.", GPU, lambda p, g, pace: GpuExecutor(p, g, pace=pace)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--last", type=float, help="seconds that the fastest schedule of a size is stretched to")
    parser.add_argument("--largest", type=int, help="bytes of the largest message")
    parser.add_argument("--budget", default="4s", help="of each synthesis")
    asked = parser.parse_args()
    found: list[Found] = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        script, words, (last, largest), make = where(folder)
        last, largest = asked.last or last, asked.largest or largest
        for network, collective in itertools.product(NETWORKS, COLLECTIVES):
            frontier = programs(folder, network, collective, asked.budget)
            for size in SIZES:
                if size <= largest and frontier:
                    found += executed(make, network, f"{collective} · {network}", frontier, size, last)
    text = (
        f"{words} Every schedule of a frontier and of searches with 1, 2 and 4 chunks (as far as it becomes an MSCCL"
        " XML) at every size, also where another one is the library's choice. All of a size run on a network *slower*"
        " by one factor, so that the device can follow it; times are given as if it were 1. *Predicted*: `synth"
        " simulate`. *Due*: when the program would have been over on the network, with those first who were first."
        " *Measured*: on the device's own clock. What is measured above due is the device's doing, the rest of the"
        " error the network's. *Shared*: links and limits that the program can find full. *Pairs*: of schedules whose"
        f" predictions differ by more than {APART - 1:.0%}."
    )
    write(script, page("emulated.py", "A network's time", [text, summary(found), table(found)]))
    if any(f.wrong for f in found):
        raise SystemExit("emulated: wrong elements, see the table")


if __name__ == "__main__":
    main()
