"""Compare algorithms written by hand: our compiler's programs, those of msccl-tools, and ours without passes.

    python -m results.scripts.handwritten [FOLDER]

makes handwritten.md. FOLDER holds msccl-tools' XML files, and FOLDER/instances-R the output of its scripts with R times
the instances. The script measures them and saves the figures in handwritten.json. Without FOLDER it uses the saved
figures, each with the checksum of the file that it was read from.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from emit.check.program import check
from emit.compiler.compile import compile_instructions
from emit.compiler.ir import Instructions
from emit.compiler.passes.registry import PASSES
from emit.language import load_scripts
from emit.msccl.format import write_msccl
from emit.msccl.read import read_msccl
from emit.program import Program
from emit.targets import target_named
from results.measuring.measure import ROOT, TABLES, grid, page, save, seconds_words, write

EXAMPLES = ROOT / "examples"
KEPT = TABLES / "handwritten.json"
GOAL_S = 0.5
INSTANCES = (2, 4, 8)  # Multiples of the instances in the settings.
TIMED = ("allpairs", {"passes": 2, "instances": 4})
# msccl-tools' file, our example of the same algorithm, and the example's settings.
PAIRS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("ms__allreduce_a100_ring_8_1_1_LL128.xml", "ring", {}),
    ("az__allreduce_1step_8_1.xml", "allpairs", {"passes": 1}),
    ("az__allreduce_a100_allpairs_8_1_LL.xml", "allpairs", {"passes": 2}),
    ("ndv4__ap2ll.xml", "allpairs", {"passes": 2, "instances": 2}),
    ("ms__hierarchical_allreduce_8_2_1_manual.xml", "hierarchical", {"nodes": 2, "gpus": 8}),
    ("ms__allgather_ring_8_1_1.xml", "allgather", {"way": "ring"}),
    ("ms__allgather_recursive_doubling_8_1.xml", "allgather", {"way": "doubling", "protocol": "Simple"}),
    ("az__allgather_allpairs_8_1_LL.xml", "allgather", {"way": "pairs", "protocol": "LL"}),
    ("az__alltoall_allpairs_8_1_Simple.xml", "alltoall", {}),
    ("az__alltoall_allpairs_8_2_Simple.xml", "alltoall", {"instances": 2}),
    ("alltoall-8n-0-9kb.xml", "alltoall", {"protocol": "LL"}),
    ("az__alltoall_a100_two_step_2_8.xml", "alltoall", {"nodes": 2, "steps": 2}),
    ("az__alltoall_a100_two_step_4_8.xml", "alltoall", {"nodes": 4, "steps": 2}),
)
OTHERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("halving_doubling", {}),
    ("alltoall", {"nodes": 3, "gpus": 4, "steps": 3}),
    ("alltonext", {}),
)


class Shape(NamedTuple):
    """The resources of a program.

    Attributes:
        steps: Number of steps of all ranks.
        threadblocks: Largest number of threadblocks of a rank.
        nops: Number of nops of all ranks.
        channels: Number of channels.
    """

    steps: int
    threadblocks: int
    nops: int
    channels: int


def shape_of(program: Program) -> Shape:
    """Return the resources of a program."""
    return Shape(
        program.nsteps,
        max(len(gpu.threadblocks) for gpu in program.gpus),
        sum(step.op == "nop" for *_, step in program.steps()),
        program.nchannels,
    )


def instructions_of(example: str, settings: Mapping[str, Any]) -> Instructions:
    """Return the instructions of an example with some settings."""
    options = [f"{name}={value}" for name, value in settings.items()]
    return load_scripts(EXAMPLES / f"{example}.py", options)[0].instructions()


def target_of(ir: Instructions) -> str:
    """Return the target that can load the algorithm."""
    return "msccl" if ir.header.collective == "custom" else "executor-nccl"


def right(ir: Instructions, disabled_passes: tuple[str, ...] = ()) -> Program:
    """Return the program of the instructions, compiled without the disabled passes and checked."""
    target = target_of(ir)
    program = compile_instructions(ir, target_named(target).limits, without=disabled_passes).program
    check(program, ir.goal, target=target).raise_if_wrong()
    return program


def kept_name(name: str, times: int) -> str:
    """Return the key and path in FOLDER of msccl-tools' file with so many times the instances."""
    return name if times == 1 else f"instances-{times}/{name}"


def measured(folder: Path) -> dict[str, Any]:
    """Read the figures of msccl-tools' files."""
    figures = {}
    for name in (kept_name(name, times) for times in (1, *INSTANCES) for name, _, _ in PAIRS):
        data = (folder / name).read_bytes()
        figures[name] = {
            "sha256": hashlib.sha256(data).hexdigest(),
            **shape_of(read_msccl(folder / name))._asdict(),
        }
    return figures


def instances(figures: Mapping[str, Any]) -> tuple[list[list[str]], list[str], list[str]]:
    """Return how programs with more instances compare with single ones and with msccl-tools'.

    Returns:
        A row for each algorithm and number of instances, the algorithms that cost more than so many times one instance,
        and the algorithms that cost more than msccl-tools'.
    """
    rows, dearer, larger = [], [], []
    for name, example, settings in PAIRS:
        single = shape_of(right(instructions_of(example, settings)))
        for times in INSTANCES:
            multiplied = {**settings, "instances": times * settings.get("instances", 1)}
            ours = shape_of(right(instructions_of(example, multiplied)))
            theirs = Shape(*(figures[kept_name(name, times)][field] for field in Shape._fields))
            command = words(example, multiplied)
            if ours.steps > times * single.steps or ours.threadblocks > times * single.threadblocks:
                dearer.append(command)
            if any(a > b for a, b in zip(ours, theirs, strict=True)):
                larger.append(command)
            cells = (f"{a} / {times * b} / {c}" for a, b, c in zip(ours, single, theirs, strict=True))
            rows.append([f"`{command}`", *cells])
    return rows, dearer, larger


def emission() -> tuple[float, int]:
    """Return the seconds from a script to the checked text of a program (the best of five), and the program's steps."""
    best = float("inf")
    steps = 0
    for _ in range(5):
        start_s = time.perf_counter()
        ir = instructions_of(*TIMED)
        program = compile_instructions(ir).program
        write_msccl(program, ir.goal)  # The writer checks the program.
        best = min(best, time.perf_counter() - start_s)
        steps = program.nsteps
    return best, steps


def words(example: str, settings: Mapping[str, Any]) -> str:
    """Format an example and its settings as on the command line."""
    return " ".join([f"examples/{example}.py", *(f"--set {k}={v}" for k, v in settings.items())])


def text(figures: Mapping[str, Any]) -> str:
    """Return the page."""
    rows = []
    larger, fewer = [], 0
    for name, example, settings in PAIRS:
        theirs = Shape(*(figures[name][field] for field in Shape._fields))
        ir = instructions_of(example, settings)
        ours = shape_of(right(ir))
        if any(a > b for a, b in zip(ours, theirs, strict=True)):
            larger.append(name)
        fewer += ours != theirs and name not in larger
        rows.append(
            [
                f"`{words(example, settings)}`",
                name,
                *(f"{a} / {b}" for a, b in zip(ours, theirs, strict=True)),
            ]
        )
    plain = []
    for example, settings in [*((e, s) for _, e, s in PAIRS), *OTHERS]:
        ir = instructions_of(example, settings)
        without_passes, with_passes = shape_of(right(ir, tuple(PASSES))), shape_of(right(ir))
        plain.append(
            [f"`{words(example, settings)}`", *(f"{a} / {b}" for a, b in zip(with_passes, without_passes, strict=True))]
        )
    instance_rows, dearer, larger_instances = instances(figures)
    seconds, steps = emission()
    parts = [
        "Each algorithm in examples/ is compiled (`synth compile`) and compared with msccl-tools' file of the same"
        " algorithm: ours / theirs. Both are counted from the programs. Ours pass the check in every order, also with"
        " a slot for every chunk (msccl-tools' recursive doubling does not).",
        f"Ours needs more of a resource in: **{', '.join(larger) or 'none'}** (goal: none). It needs less of one and"
        f" more of none in **{fewer} of {len(PAIRS)}** (goal: half).",
        grid(["algorithm", "msccl-tools", "steps", "threadblocks a rank", "nops", "channels"], rows),
        f"With {', '.join(map(str, INSTANCES))} times the instances: ours / so many times our figure above /"
        " msccl-tools'. More steps or threadblocks than so many times one instance:"
        f" **{', '.join(dearer) or 'none'}** (goal: none). More of a resource than msccl-tools:"
        f" **{', '.join(larger_instances) or 'none'}** (goal: none).",
        grid(["algorithm", "steps", "threadblocks a rank", "nops", "channels"], instance_rows),
        f"Time from the script to the checked XML of `{words(*TIMED)}`, {steps} steps: **{seconds_words(seconds)} s**"
        f" (goal {GOAL_S:g} s; {GOAL_S / seconds:.1f} × faster).",
        "The same algorithms with all passes / without passes (`--without-pass`):",
        grid(["algorithm", "steps", "threadblocks a rank", "nops", "channels"], plain),
    ]
    if larger or dearer or larger_instances or 2 * fewer < len(PAIRS) or seconds > GOAL_S:
        parts.insert(1, "**A goal is not reached.**")
    return page(__file__, "Algorithms written by hand", parts)


def main() -> None:
    """Measure, and write the table."""
    if len(sys.argv) > 1:
        save(KEPT, json.dumps(measured(Path(sys.argv[1])), indent=1) + "\n")
    write(__file__, text(json.loads(KEPT.read_text())))


if __name__ == "__main__":
    main()
