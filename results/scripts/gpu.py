"""The GPU interpreter on the GPUs of this machine: tests, bandwidth, latency as a graph, several GPUs.

    python -m results.scripts.gpu [--largest 256M-in-bytes]

makes gpu-NAME.md, NAME the GPU's. Needs CuPy and a GPU; without them it ends with one line and writes nothing.
emulated.py beside it is the same for networks that a GPU takes the time of.
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
from emit.language import load_script
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
CHECKED = 1 << 20  # bytes of the messages whose results are looked at
TIMES = 20


def programs() -> Iterator[tuple[str, Program]]:
    """All-reduces of 8 ranks, by hand."""
    for name, asked in CASES:
        ir = load_script(EXAMPLES / f"{name}.py", [f"ranks={RANKS}", asked]).instructions()
        yield f"{name} {asked}", compile_instructions(ir, "executor-nccl").program


def timed_us(cp: Any, once: Any, times: int = TIMES) -> float:
    """Median time on the GPU's clock of what `once` queues on the current stream."""
    found = []
    for turn in range(times + 3):
        begun, ended = cp.cuda.Event(), cp.cuda.Event()
        begun.record()
        once()
        ended.record()
        ended.synchronize()
        if turn >= 3:
            found.append(1e3 * cp.cuda.get_elapsed_time(begun, ended))
    return statistics.median(found)


def copy_rate(cp: Any, size_bytes: int) -> float:
    """GB/s read plus GB/s written of the GPU's own copy."""
    source, target = (cp.zeros(size_bytes, dtype=np.uint8) for _ in range(2))
    return 2 * size_bytes / timed_us(cp, lambda: cp.copyto(target, source)) / 1e3


def executor(program: Program, protocol: str) -> GpuExecutor:
    """With as many slots as the protocol has, or, where the program needs them, as the one it was compiled for."""
    changed = replace(program, protocol=protocol)
    enough = check(changed, target=None).ok
    return GpuExecutor(changed, depth=None if enough else FIFO_DEPTH[program.protocol])


def prepared(cp: Any, made: GpuExecutor, size_bytes: int) -> Launch:
    """Ready to be launched in place on zeros: the time does not depend on the values."""
    buffers = [cp.zeros(size_bytes // 4, dtype=np.float32) for _ in range(RANKS)]
    launch = made.prepare(buffers, buffers)
    assert launch is not None
    launch.kept = (*launch.kept, buffers)
    return launch


def over_several(largest: int, count: int) -> str:
    """All-reduce with the ranks spread over GPUs of this process, 2 and as many as there are."""
    rows: list[list[object]] = []
    for number in sorted({2, min(count, RANKS)}):
        for title, program in programs():
            try:
                made = GpuExecutor(program, devices=range(number))
                small = measure(program, None, CHECKED, made)
                row = measure(program, None, largest, made)
            except InputError as error:
                rows.append([number, title, str(error), "", ""])
                continue
            side = row.in_place or row.out_of_place
            assert side is not None
            rows.append([number, title, small.wrong + row.wrong, f"{side.time_us:.1f}", f"{row.busbw(side):.1f}"])
    return grid(["GPUs", "algorithm", "#wrong", f"Simple, {largest} B, µs", "busbw, GB/s"], rows)


def as_graph_us(cp: Any, launch: Launch) -> float:
    """Time of one launch, where a graph of 20 is replayed."""
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        launch.go()  # loaded before it is captured
        stream.synchronize()
        stream.begin_capture()
        for _ in range(20):
            launch.go()
        graph = stream.end_capture()
        return timed_us(cp, lambda: graph.launch(stream)) / 20


def tests(sanitizer: str | None) -> str:
    """What pytest says of the tests that need a GPU, under NVIDIA's sanitizer where it is installed."""
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
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    words = ended.stdout.strip().splitlines()[-3:]
    return f"exit code {ended.returncode}: " + "; ".join(words)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--largest", type=int, default=256 << 20, help="bytes a rank")
    asked = parser.parse_args()
    try:
        cp = cupy()
    except InputError as error:
        print(f"results/scripts/gpu.py: nothing measured: {error}", file=sys.stderr)
        return
    name = cp.cuda.runtime.getDeviceProperties(0)["name"].decode()
    rate = copy_rate(cp, 1 << 30)
    least = 2 * RANKS * asked.largest
    rows = []
    for title, program in programs():
        try:
            simple, ll = executor(program, "Simple"), executor(program, "LL")
            wrong = sum(measure(program, None, CHECKED, e).wrong for e in (simple, ll))
            launch = prepared(cp, simple, asked.largest)
            large = timed_us(cp, launch.go)
            launch.check()
            small = prepared(cp, ll, SMALL)
            short = as_graph_us(cp, small)
            small.check()
        except InputError as error:
            rows.append([title, str(error), "", "", "", ""])
            continue
        share = least / large / 1e3 / rate
        rows.append([title, wrong, f"{large:.1f}", f"{least / large / 1e3:.0f}", f"{share:.0%}",
                     f"{short:.2f}"])  # fmt: skip
    sanitizer = shutil.which("compute-sanitizer")
    count = int(cp.cuda.runtime.getDeviceCount())
    parts = [
        f"GPU: {name}. All-reduce of float32, {RANKS} ranks on it, in place. Copy rate of the GPU (read and written):"
        f" {rate:.0f} GB/s. *Moved*: every input read once and every output written once, {least} bytes, over the"
        f" time; *share*: of the copy rate. *Graph*: a launch of {SMALL} bytes a rank among 20 of a replayed graph.",
        grid(
            [
                "algorithm",
                "#wrong",
                f"Simple, {asked.largest} B, µs",
                "moved, GB/s",
                "share",
                "LL, graph, µs",
            ],
            rows,
        ),
        over_several(asked.largest, count) if count > 1 else "There is one GPU here: none was spread over several.",
        f"Tests on the GPU: {tests(None)}.",
        f"Under compute-sanitizer: {tests(sanitizer)}." if sanitizer else "compute-sanitizer is not installed here.",
    ]
    script = f"gpu-{re.sub(r'[^A-Za-z0-9]+', '-', name).strip('-').lower()}"
    write(script, page("gpu.py", "The GPU interpreter", parts))


if __name__ == "__main__":
    main()
