"""Measure the GPU interpreter on the GPUs of this machine: tests, bandwidth, latency as a graph, several GPUs.

    python -m results.scripts.gpu [--largest 256M-in-bytes]

makes gpu-NAME.md; NAME is the GPU's. Needs CuPy and a GPU; without them the script prints one line and writes nothing.
emulated.py measures the same interpreter at the speed of an emulated network.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from emit.check.program import check
from emit.compiler.compile import compile_instructions
from emit.language import load_scripts
from emit.program import FIFO_DEPTH, Program
from results.measuring.measure import ROOT, grid, page, write
from runtime.bench import measure
from runtime.gpu.cuda import cupy
from runtime.gpu.executor import GpuExecutor, Launch
from topologies.errors import InputError

EXAMPLES = ROOT / "examples"
RANKS = 8
CASES = (
    ("ring", "instances=1"),
    ("ring", "instances=8"),
    ("allpairs", "passes=1"),
    ("allpairs", "passes=2"),
    ("halving_doubling", "instances=4"),
)
SMALL = 8 << 10
CHECKED = 1 << 20  # Bytes of the messages whose results are checked.
TIMES = 20


def programs() -> Iterator[tuple[str, Program]]:
    """Yield hand-written all-reduces of 8 ranks, each with its name and settings."""
    for name, setting in CASES:
        ir = load_scripts(EXAMPLES / f"{name}.py", [f"ranks={RANKS}", setting])[0].instructions()
        yield f"{name} {setting}", compile_instructions(ir).program


def timed_us(cp: Any, once: Any, times: int = TIMES) -> float:
    """Return the median time in µs, on the GPU's clock, of the work that `once` queues on the current stream."""
    times_us = []
    for repetition in range(times + 3):
        start, end = cp.cuda.Event(), cp.cuda.Event()
        start.record()
        once()
        end.record()
        end.synchronize()
        if repetition >= 3:
            times_us.append(1e3 * cp.cuda.get_elapsed_time(start, end))
    return statistics.median(times_us)


def copy_rate(cp: Any, size_bytes: int) -> float:
    """Return GB/s read plus GB/s written of the GPU's own copy."""
    source, target = (cp.zeros(size_bytes, dtype=np.uint8) for _ in range(2))
    return 2 * size_bytes / timed_us(cp, lambda: cp.copyto(target, source)) / 1e3


def executor(program: Program, protocol: str) -> GpuExecutor:
    """Return an executor with the protocol's number of slots, or with the program's own number if it needs more."""
    changed = replace(program, protocol=protocol)
    enough = check(changed, target=None).ok
    return GpuExecutor(changed, depth=None if enough else FIFO_DEPTH[program.protocol])


def prepared(cp: Any, ready_executor: GpuExecutor, size_bytes: int) -> Launch:
    """Return a launch in place on zeros; the time does not depend on the values."""
    buffers = [cp.zeros(size_bytes // 4, dtype=np.float32) for _ in range(RANKS)]
    launch = ready_executor.prepare(buffers, buffers)
    assert launch is not None
    launch.references = (*launch.references, buffers)
    return launch


def over_several(largest: int, count: int) -> str:
    """Measure all-reduces with the ranks spread over 2 and over all GPUs of this process; return the table."""
    rows: list[list[object]] = []
    for number in sorted({2, min(count, RANKS)}):
        for title, program in programs():
            try:
                spread = GpuExecutor(program, devices=range(number))
                small = measure(program, None, CHECKED, spread)
                row = measure(program, None, largest, spread)
            except InputError as error:
                rows.append([number, title, str(error), "", ""])
                continue
            side = row.in_place or row.out_of_place
            assert side is not None
            rows.append([number, title, small.wrong + row.wrong, f"{side.time_us:.1f}", f"{row.busbw(side):.1f}"])
    return grid(["GPUs", "algorithm", "#wrong", f"Simple, {largest} B, µs", "busbw, GB/s"], rows)


def as_graph_us(cp: Any, launch: Launch) -> float:
    """Return the time in µs of one launch in a replayed graph of 20 launches."""
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        launch.go()  # The kernel must be loaded before it is captured.
        stream.synchronize()
        stream.begin_capture()
        for _ in range(20):
            launch.go()
        graph = stream.end_capture()
        return timed_us(cp, lambda: graph.launch(stream)) / 20


def tests(sanitizer: str | None) -> str:
    """Run the tests that need a GPU, under NVIDIA's sanitizer if it is given; return what pytest prints."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        str(ROOT / "tests/runtime/gpu/test_gpu.py"),
        "-k",
        "on_the_gpu",
    ]
    if sanitizer:
        command = [sanitizer, "--error-exitcode", "9", *command]
    process = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    words = process.stdout.strip().splitlines()[-3:]
    return f"exit code {process.returncode}: " + "; ".join(words)


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--largest", type=int, default=256 << 20, help="bytes of each rank")
    options = parser.parse_args()
    try:
        cp = cupy()
    except InputError as error:
        print(f"results/scripts/gpu.py cannot measure: {error}", file=sys.stderr)
        return
    name = cp.cuda.runtime.getDeviceProperties(0)["name"].decode()
    rate = copy_rate(cp, 1 << 30)
    moved_bytes = 2 * RANKS * options.largest
    rows = []
    for title, program in programs():
        try:
            simple, ll = executor(program, "Simple"), executor(program, "LL")
            wrong = sum(measure(program, None, CHECKED, e).wrong for e in (simple, ll))
            launch = prepared(cp, simple, options.largest)
            large_us = timed_us(cp, launch.go)
            launch.check()
            graph_launch = prepared(cp, ll, SMALL)
            graph_us = as_graph_us(cp, graph_launch)
            graph_launch.check()
        except InputError as error:
            rows.append([title, str(error), "", "", "", ""])
            continue
        share = moved_bytes / large_us / 1e3 / rate
        rows.append([title, wrong, f"{large_us:.1f}", f"{moved_bytes / large_us / 1e3:.0f}", f"{share:.0%}",
                     f"{graph_us:.2f}"])  # fmt: skip
    sanitizer = shutil.which("compute-sanitizer")
    count = int(cp.cuda.runtime.getDeviceCount())
    parts = [
        f"GPU: {name}. It runs all-reduces of float32 with {RANKS} ranks, in place. The GPU's copy rate (read and"
        f" written) is {rate:.0f} GB/s. *Moved*: {moved_bytes} bytes, every input read once and every output written"
        " once, over the time. *Share*: *moved* over the copy rate. *Graph*: time of one of the 20 launches of a"
        f" replayed graph, with {SMALL} bytes a rank.",
        grid(
            [
                "algorithm",
                "#wrong",
                f"Simple, {options.largest} B, µs",
                "moved, GB/s",
                "share",
                "LL, graph, µs",
            ],
            rows,
        ),
        over_several(options.largest, count)
        if count > 1
        else "This machine has one GPU, so no run is spread over several GPUs.",
        f"Tests on the GPU ended with {tests(None)}.",
        f"The same tests under compute-sanitizer ended with {tests(sanitizer)}."
        if sanitizer
        else "compute-sanitizer is not installed.",
    ]
    script = f"gpu-{re.sub(r'[^A-Za-z0-9]+', '-', name).strip('-').lower()}"
    write(script, page("gpu.py", "The GPU interpreter", parts))


if __name__ == "__main__":
    main()
