"""Execute programs at the speed of an emulated network: measured times against predicted ones, for whole frontiers.

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

NETWORKS = ("dgx1", "ndv2:2")  # ndv2:2 has two nodes of eight GPUs, each with one NIC of 12.5 GB/s.
COLLECTIVES = ("allreduce", "allgather", "alltoall")
CHUNKS = (0, 1, 2, 4)  # Chunks a block; 0 lets the search choose, for a whole frontier.
SIZES = (8 << 10, 256 << 10, 4 << 20, 64 << 20, 256 << 20)
APART = 1.01  # Predictions that differ by less are not ranked.
CPU = (
    0.5,
    4 << 20,
)  # Seconds of the fastest schedule of a size for each MANY threadblocks; largest message in bytes.
GPU = (0.02, 256 << 20)
MANY = 256

Make = Callable[[Program, Goal | None, Pace], GpuExecutor | ShimExecutor]


@dataclass(frozen=True)
class Found:
    """The run of a schedule at a message size.

    Attributes:
        question: Collective and network.
        name: Name of the schedule's file.
        blocks: Number of threadblocks.
        shared: Number of links and limits that the program can find busy.
        size_bytes: Message size in bytes.
        slower: Factor by which the emulated network is slower.
        predicted: Predicted time in µs on the network.
        due: Time in µs that the network would have taken in the order of use of this run.
        measured: Measured time in µs on the device's clock, divided by `slower`.
        wrong: Number of wrong elements.
    """

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
    """Return the programs of a frontier and of schedules with given numbers of chunks, after synthesising all of them.

    Raises:
        SystemExit: If a synthesis fails.
    """
    program_of_name: dict[str, tuple[str, Program, Goal | None]] = {}
    for chunks in CHUNKS:
        out = folder / f"{collective}-{network.replace(':', '-')}-{chunks or 'any'}"
        chunk_option = ["--chunks", chunks] if chunks else []
        synthesis = run(synth(collective, "--topo", network, "--budget", budget, "--out", out, *chunk_option))
        if synthesis.code:
            raise SystemExit(
                f"emulated: synth {collective} failed with exit code {synthesis.code}: {synthesis.err or synthesis.out}"
            )
        for entry in load_index(out):
            if entry.path.suffix == ".xml" and entry.path.stem not in program_of_name:
                goal = entry.goal()
                program = verify_file(entry.path, goal).program
                assert program is not None
                program_of_name[entry.path.stem] = entry.path.stem, program, goal
    return list(program_of_name.values())


def executed(
    make: Make,
    network: str,
    question: str,
    frontier: list[tuple[str, Program, Goal | None]],
    size: int,
    last: float,
) -> Iterator[Found]:
    """Run every schedule at one size on networks that are slower by one factor, and yield the runs.

    The factor is such that the fastest schedule takes `last` seconds or more.
    """
    topology = load(network)
    fastest = min(Predictor(program, topology).time_us(size) for _, program, _ in frontier)
    most_blocks = max(sum(len(gpu.threadblocks) for gpu in program.gpus) for _, program, _ in frontier)
    slower = max(1.0, last * 1e6 / fastest * max(1.0, most_blocks / MANY))
    for name, program, goal in frontier:
        pace = Pace(program, topology, slower=slower)
        executor = make(program, goal, pace)
        try:
            row = measure(program, goal, size, executor, Settings(iterations=1, warmup=0))
        except InputError as error:
            print(f"{name} at {size}: {error}", flush=True)
            continue
        emulation = executor.emulated
        assert emulation is not None
        predicted = pace.predictor.time_us(row.size_bytes)
        blocks = len(executor.encoded.blocks)
        print(f"{name} {size} B: predicted {predicted:.2f}, measured {emulation.measured_us:.2f} µs", flush=True)
        yield Found(
            question, name, blocks, pace.shared, row.size_bytes, slower, predicted, emulation.due_us,
            emulation.measured_us, row.wrong,
        )  # fmt: skip


def ranking(runs: list[Found]) -> tuple[int, int, int, int]:
    """Count how often measured times have the order of the predicted ones.

    Returns:
        The number of pairs whose predictions differ, how many of them are measured in this order, the number of sizes,
        and at how many of them the schedule predicted to be fastest is measured as fastest.
    """
    pairs = in_order = sizes = same = 0
    by_size: dict[tuple[str, int], list[Found]] = defaultdict(list)
    for execution in runs:
        by_size[execution.question, execution.size_bytes].append(execution)
    for rows in by_size.values():
        if len(rows) < 2:
            continue
        sizes += 1
        best = min(rows, key=lambda r: r.measured)
        same += best.predicted <= min(r.predicted for r in rows) * APART
        for earlier, later in itertools.combinations(sorted(rows, key=lambda r: r.predicted), 2):
            if later.predicted > earlier.predicted * APART:
                pairs += 1
                in_order += earlier.measured < later.measured
    return pairs, in_order, sizes, same


def error(execution: Found) -> float:
    """Return the relative error of the prediction."""
    return execution.measured / execution.predicted - 1


def summary(runs: list[Found]) -> str:
    """Return the table of errors and rankings, by network."""
    rows = []
    for title, group in (
        *((network, [f for f in runs if f.question.endswith(f"· {network}")]) for network in NETWORKS),
        ("all", runs),
    ):
        errors = [abs(error(f)) for f in group]
        pairs, in_order, sizes, same = ranking(group)
        rows.append(
            [title, len(group), f"{statistics.median(errors):.2%}", f"{max(errors):.2%}",
             f"{max(f.measured / f.due for f in group) - 1:.2%}", f"{in_order} of {pairs}", f"{same} of {sizes}",
             sum(f.wrong for f in group)]
        )  # fmt: skip
    titles = ("network", "runs", "median error", "largest error", "largest measured / due − 1", "pairs in order",
              "fastest as predicted", "#wrong")  # fmt: skip
    return grid(titles, rows)


def table(runs: list[Found]) -> str:
    """Return the table of all runs."""
    titles = ("question", "schedule", "threadblocks", "shared", "bytes", "slower", "predicted, µs", "due, µs",
              "measured, µs", "error", "#wrong")  # fmt: skip
    rows = [
        [f.question, f.name, f.blocks, f.shared, f.size_bytes, f"{f.slower:.0f}", f"{f.predicted:.2f}", f"{f.due:.2f}",
         f"{f.measured:.2f}", f"{error(f):+.2%}", f.wrong]
        for f in runs
    ]  # fmt: skip
    return grid(titles, rows)


def where(folder: Path) -> tuple[str, str, tuple[float, int], Make]:
    """Choose CPU threads or a GPU.

    Returns:
        The table's name, a sentence on the device, its settings (seconds of the fastest schedule, largest message in
        bytes), and a function that makes an executor.
    """
    try:
        cp = cupy()
    except InputError as no_gpu:
        binary = built(folder, paced=True)
        words = (
            f"The programs ran on CPU threads, which execute the GPU's kernel in a shim. No GPU took part ({no_gpu})."
        )
        return "emulated", words, CPU, lambda p, g, pace: ShimExecutor(p, g, binary, pace=pace, limit_s=60)
    name = cp.cuda.runtime.getDeviceProperties(0)["name"].decode()
    script = f"gpu-{re.sub(r'[^A-Za-z0-9]+', '-', name).strip('-').lower()}-emulated"
    return script, f"The programs ran on a GPU: {name}.", GPU, lambda p, g, pace: GpuExecutor(p, g, pace=pace)


def main() -> None:
    """Run the programs, and write the table; exit with an error if an element is wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--last", type=float, help="seconds that the fastest schedule of a size is stretched to")
    parser.add_argument("--largest", type=int, help="bytes of the largest message")
    parser.add_argument("--budget", default="4s", help="budget of each synthesis")
    options = parser.parse_args()
    runs: list[Found] = []
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        script, words, (last, largest), make = where(folder)
        last, largest = options.last or last, options.largest or largest
        for network, collective in itertools.product(NETWORKS, COLLECTIVES):
            frontier = programs(folder, network, collective, options.budget)
            for size in SIZES:
                if size <= largest and frontier:
                    runs += executed(make, network, f"{collective} · {network}", frontier, size, last)
    text = (
        f"{words} The runs are of every schedule of a frontier and of searches with 1, 2 and 4 chunks (if it has an"
        " MSCCL XML file), at every size, also where the library chooses another one. All runs of a size are on a"
        " network that is *slower* by one factor, so that the device can follow it; times are divided by this factor."
        " *Predicted*: `synth simulate`. *Due*: the program's time on the network if links are used in the measured"
        " order. *Measured*: time on the device's clock. The device causes the difference of *measured* and *due*, the"
        " network the rest of the error. *Shared*: links and limits that the program can find full. *Pairs*: pairs of"
        f" schedules whose predictions differ by more than {APART - 1:.0%}."
    )
    write(script, page("emulated.py", "A network's time", [text, summary(runs), table(runs)]))
    if any(f.wrong for f in runs):
        raise SystemExit("emulated: wrong elements, see the table")


if __name__ == "__main__":
    main()
